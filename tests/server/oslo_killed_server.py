"""A server of oslo.messaging, or a client whose server is killed in the middle of a call: run with a Python
that has oslo.messaging, and a port.
"""

import sys
import time

import oslo_messaging
from oslo_config import cfg

SECONDS = 60
TOPIC = "worker"


class Endpoint:
    """The methods of the server."""

    target = oslo_messaging.Target(version="1.0")

    def hang(self, _: object) -> None:
        """Say that the call came, and never end it."""
        print("in the middle", flush=True)
        time.sleep(SECONDS)

    def add(self, _: object, a: int, b: int) -> int:
        return a + b


def serve(transport: object) -> None:
    """Serve until this process is killed."""
    target = oslo_messaging.Target(topic=TOPIC, server="one")
    server = oslo_messaging.get_rpc_server(transport, target, [Endpoint()], executor="threading")
    server.start()
    print("serving", flush=True)
    sys.stdin.read()


def call(transport: object) -> None:
    """Call a server that is killed meanwhile, and then another one."""
    target = oslo_messaging.Target(topic=TOPIC, version="1.0")
    client = oslo_messaging.get_rpc_client(transport, target, timeout=SECONDS)
    client.call({}, "add", a=1, b=1)  # from here on its links are attached
    try:
        client.prepare(timeout=5).call({}, "hang")
    except oslo_messaging.MessagingException as problem:
        print(f"lost: {type(problem).__name__}", flush=True)
    sys.stdin.readline()  # there is another server now
    print(client.call({}, "add", a=1, b=2), flush=True)


def main() -> None:
    cfg.CONF([], project="test")
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, f"amqp://127.0.0.1:{sys.argv[1]}")
    (serve if sys.argv[2] == "serve" else call)(transport)


if __name__ == "__main__":
    main()
