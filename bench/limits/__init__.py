"""What limits, many queues and many priorities cost: `make bench-limits`."""
