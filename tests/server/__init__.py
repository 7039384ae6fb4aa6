"""Tests of the server over real sockets, in its own protocol's octets and without the client library."""
