"""Fuzzing: everything a user can pass, and rows that others wrote, is accepted and kept, or refused with our error."""
