"""The commands: omq-server and omq."""
