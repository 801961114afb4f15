"""The benchmarks' own arithmetic, on made-up results: what they measure is measured elsewhere."""
