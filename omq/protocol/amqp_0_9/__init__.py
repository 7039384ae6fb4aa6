"""AMQP 0-9-1 with RabbitMQ's extensions and OpenAMQ's class Direct: a server's side, without a socket."""
