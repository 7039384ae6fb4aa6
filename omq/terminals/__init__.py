"""Terminals: one protocol each, on one socket each (terminal-driver RFC, section 3.5.2)."""
