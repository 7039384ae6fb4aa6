"""Drivers: the messages of each topic (terminal-driver RFC, section 3.5.1)."""
