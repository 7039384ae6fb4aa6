"""Exchanges and bindings: which topics get a message that is published to an exchange of AMQP 0-9-1."""
