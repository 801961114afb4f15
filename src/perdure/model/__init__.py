"""The rules. No driver, no clock, no I/O: time and randomness are arguments."""
