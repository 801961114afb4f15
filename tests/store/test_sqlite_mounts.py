"""Network file systems are recognized by the table of mounts."""

from __future__ import annotations

import pytest

from perdure.store.sqlite.mounts import network_file_system

MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:20 / /proc rw - proc proc rw
30 21 0:40 / /srv/shared rw,relatime shared:5 master:2 - nfs4 server:/export rw,vers=4.2
31 30 254:1 / /srv/shared/local rw - xfs /dev/vdb rw
32 21 0:41 / /mnt/win\\040dows rw - cifs //server/share rw
33 21 0:42 / /mnt/ssh rw - fuse.sshfs ann@server: rw
34 21 0:43 / /mnt/pool rw - fuse.mergerfs a:b rw
35 21 0:44 / /mnt/twice rw - nfs server:/export rw
36 35 254:2 / /mnt/twice rw - ext4 /dev/vdc rw
37 21 0:45 / /mnt/guest rw - 9p host rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/jobs.db", None),
        ("/srv/jobs.db", None),
        ("/srv/shared/jobs.db", "nfs4"),
        ("/srv/shared/deep/er/jobs.db", "nfs4"),
        ("/srv/shared-not/jobs.db", None),
        ("/srv/shared/local/jobs.db", None),
        ("/mnt/win dows/jobs.db", "cifs"),
        ("/mnt/ssh/jobs.db", "fuse.sshfs"),
        ("/mnt/pool/jobs.db", None),
        ("/mnt/twice/jobs.db", None),
        ("/mnt/guest/jobs.db", None),
    ],
)
def test_the_innermost_mount_counts(path: str, kind: str | None) -> None:
    assert network_file_system(path, MOUNTS) == kind


@pytest.mark.parametrize(
    "kind", ["nfs", "smb3", "smbfs", "ceph", "fuse.ceph-fuse", "glusterfs", "lustre", "fuse.s3fs"]
)
def test_kinds_that_are_refused(kind: str) -> None:
    assert network_file_system("/data/jobs.db", f"21 1 0:1 / / rw - {kind} somewhere rw") == kind


@pytest.mark.parametrize("kind", ["ext4", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", "virtiofs", "nfsd"])
def test_kinds_that_are_not(kind: str) -> None:
    assert network_file_system("/data/jobs.db", f"21 1 0:1 / / rw - {kind} somewhere rw") is None


def test_without_a_table_nothing_is_refused() -> None:
    assert network_file_system("/data/jobs.db", "") is None


def test_this_machine_has_a_local_root() -> None:
    assert network_file_system("/") is None
