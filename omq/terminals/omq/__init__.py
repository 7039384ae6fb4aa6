"""The terminal of the omq protocol."""
