"""Timeouts to detect a server that has fallen silent.

The protocol promises a Ping at least every 50 seconds on every omq connection, and a null message at least as
often on every feed. When the network or the server fails without closing the connection, a client that only
receives gets no error from the operating system; one that sends gets it only after 15 minutes of
retransmission.
"""

PROMISED_SECONDS = 50.0
"""A server sends something at least this often (docs/PROTOCOL.md, "Pings and silence")."""

SILENCE_SECONDS = 2 * PROMISED_SECONDS
"""A connection is lost when the client has received nothing for this time."""
