"""The parts of the wire format that DMP and AMQP 0-9 share: field tables, properties, short strings."""
