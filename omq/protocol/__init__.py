"""The protocols without input or output: bytes in, events out. Nothing here needs Trio or a socket."""
