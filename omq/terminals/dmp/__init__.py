"""The terminal of DMP."""
