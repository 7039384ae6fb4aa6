"""A synchronous client, with plain sockets: stored blocks in bulk, and sinks."""
