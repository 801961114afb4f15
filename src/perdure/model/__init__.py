"""The rules, as pure functions. No driver, no clock, no I/O: time and randomness are arguments."""
