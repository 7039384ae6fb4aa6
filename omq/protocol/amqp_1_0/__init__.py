"""AMQP 1.0 (ISO/IEC 19464), without a socket: octets in, events out."""
