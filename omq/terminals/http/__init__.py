"""The terminal of HTTP, and the way of the omq protocol through a WebSocket."""
