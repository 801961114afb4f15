"""The methods and objects of an app: tasks, jobs, workflows, bulk actions, statistics and workers."""
