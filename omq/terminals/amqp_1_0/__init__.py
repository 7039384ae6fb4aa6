"""The terminal of AMQP 1.0."""
