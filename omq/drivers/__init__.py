"""Drivers: the messages behind each topic's name (terminal-driver RFC, section 3.5.1)."""
