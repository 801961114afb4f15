"""Both stores in lock-step with a plain model, driven by Hypothesis."""
