"""What an app offers its callers: tasks, jobs, workflows, bulk actions, statistics and workers."""
