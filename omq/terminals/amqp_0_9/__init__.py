"""The terminal of AMQP 0-9-1 and 0-9."""
