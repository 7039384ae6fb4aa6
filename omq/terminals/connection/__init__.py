"""The common parts of the connections of all protocols."""
