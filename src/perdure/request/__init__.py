"""What a caller asks for: options, filters, jobs, steps, times and signals."""
