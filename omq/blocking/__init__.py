"""A synchronous client with plain sockets: reads stored blocks in bulk, and publishes through sinks."""
