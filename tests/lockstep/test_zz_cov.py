import sys, collections, time
from tests.lockstep.test_lockstep import *
from tests.lockstep import machine as m, model as mo, endings
C=collections.Counter()
def wrap(cls,name,key):
    f=getattr(cls,name)
    def g(self,*a,**k):
        r=f(self,*a,**k); C[key(self,r,*a)]+=1; return r
    setattr(cls,name,g)
def test_cov(machine):
    wrap(mo.Model,'cancel',lambda s,r,*a:('cancel',r)); wrap(mo.Model,'requeue',lambda s,r,*a:('requeue',r))
    wrap(mo.Model,'run_now',lambda s,r,*a:('run_now',r)); wrap(mo.Model,'delete',lambda s,r,*a:('delete',r))
    wrap(mo.Model,'claim',lambda s,r,*a:('claim',len(r)))
    wrap(mo.Model,'rescue',lambda s,r,*a:('rescue',len(r))); wrap(mo.Model,'expire',lambda s,r,*a:('expire',r))
    wrap(mo.Model,'enqueue',lambda s,r,*a:('enqueue',r.__name__ if isinstance(r,type) else 'twin' if any(not x.created for x in r) else 'ok'))
    wrap(mo.Model,'_report',lambda s,r,*a:('report',r))
    wrap(mo.Model,'_settle',lambda s,r,j,o:('settle',type(o).__name__+'/'+getattr(o,'kind',''),j.state,j.reason))
    wrap(mo.Model,'_stands',lambda s,r,l,o:('stands',r))
    wrap(mo.Model,'_cool',lambda s,r,q,a:('cool',s.queues[q].throttles))
    t=time.time()
    run_state_machine_as_test(machine, settings=settings(SHORT,database=None,max_examples=int(__import__('os').environ.get('EX','50'))))
    print(time.time()-t)
    for k,v in sorted(C.items(),key=str): print(k,v)
