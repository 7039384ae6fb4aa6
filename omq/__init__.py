"""omq: a typed publish/subscribe server and its client library."""
