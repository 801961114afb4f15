"""``perdure bench``."""
