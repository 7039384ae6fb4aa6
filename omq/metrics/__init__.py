"""The state of a server for those who watch it: metrics for Prometheus, and whether it is ready."""
