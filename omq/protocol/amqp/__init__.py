"""What DMP and AMQP 0-9 share on the wire: field tables, properties, short strings."""
