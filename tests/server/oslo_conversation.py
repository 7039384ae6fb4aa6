"""A server and clients of oslo.messaging with its AMQP 1.0 driver: run with a Python that has it, and a port.

It prints a line for each thing that worked.
"""

import sys
import tempfile
import threading
import time

import oslo_messaging
from oslo_config import cfg

SECONDS = 60
ROUNDS = 100


class Endpoint:
    """The methods of the servers."""

    target = oslo_messaging.Target(version="1.0")

    def __init__(self) -> None:
        self.notes = threading.Semaphore(0)

    def add(self, _: object, a: int, b: int) -> int:
        return a + b

    def fail(self, _: object) -> None:
        raise ValueError("no")

    def note(self, _: object) -> None:
        self.notes.release()


class Listener:
    """The notifications that came."""

    def __init__(self) -> None:
        self.events = threading.Semaphore(0)

    def info(self, *_: object) -> None:
        self.events.release()


def noted(semaphore: threading.Semaphore, count: int) -> None:
    """Wait until it was released so often."""
    for _ in range(count):
        assert semaphore.acquire(timeout=SECONDS)


def main() -> None:
    url, addresses = f"amqp://127.0.0.1:{sys.argv[1]}", sys.argv[2]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(f"[oslo_messaging_amqp]\naddressing_mode = {addresses}\n")
        file.flush()
        cfg.CONF([], project="test", default_config_files=[file.name])
    ours = oslo_messaging.get_rpc_transport(cfg.CONF, url)
    endpoint = Endpoint()
    servers = [
        oslo_messaging.get_rpc_server(
            ours, oslo_messaging.Target(topic="calculator", server=name), [endpoint], executor="threading"
        )
        for name in ("one", "two")
    ]
    for server in servers:
        server.start()
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, url)
    target = oslo_messaging.Target(topic="calculator", version="1.0")
    client = oslo_messaging.get_rpc_client(transport, target, timeout=SECONDS)

    begun = time.monotonic()
    for number in range(ROUNDS):
        assert client.call({}, "add", a=number, b=1) == number + 1
    print("called", file=sys.stdout)
    print(f"{(time.monotonic() - begun) / ROUNDS * 1000:.2f} ms a call", file=sys.stderr)
    try:
        client.call({}, "fail")
    except ValueError:
        print("failed as it should")
    client.cast({}, "note")
    noted(endpoint.notes, 1)
    print("cast")
    client.prepare(fanout=True).cast({}, "note")
    noted(endpoint.notes, 2)
    print("fanned out")
    assert client.prepare(server="two").call({}, "add", a=1, b=2) == 3
    print("called by name")
    lost = oslo_messaging.get_rpc_client(
        transport, oslo_messaging.Target(topic="nobody", version="1.0"), timeout=2
    )
    try:
        lost.call({}, "add", a=1, b=1)
    except oslo_messaging.MessagingException:
        print("nobody answered")

    notifications = oslo_messaging.get_notification_transport(cfg.CONF, url)
    notifier = oslo_messaging.Notifier(
        notifications, publisher_id="test", driver="messaging", topics=["notifications"]
    )
    listener = Listener()
    read = oslo_messaging.get_notification_listener(
        notifications, [oslo_messaging.Target(topic="notifications")], [listener], executor="threading"
    )
    # Legacy addresses of notifications are those of calls: without a listener nobody keeps them.
    if addresses == "legacy":
        read.start()
    for number in range(10):
        notifier.info({}, "event", {"number": number})
    if addresses == "routable":
        read.start()
    noted(listener.events, 10)
    print("notified")
    read.stop()
    read.wait()
    for server in servers:
        server.stop()
        server.wait()


if __name__ == "__main__":
    main()
