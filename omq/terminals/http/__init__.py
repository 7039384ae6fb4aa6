"""The terminal of HTTP, and the WebSockets that carry the omq protocol."""
