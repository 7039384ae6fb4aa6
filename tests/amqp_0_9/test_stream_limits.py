"""The arguments `x-max-age` and `x-max-length-bytes` of a stream, and arguments that it refuses."""

from pathlib import Path
from typing import Any

import pytest
import trio
from server_command import RunningServer, running_server

from omq.client import connect

from .broker import Broker
from .wire import declare_queue

SECONDS = 60
REFUSED = "channel.close 406 PRECONDITION_FAILED (50,10)"
HOUR = 3_600_000
MOST_OCTETS = 5_000_000
MOST_MS = 5_400_250
"""The limits of the configuration here."""


async def kept(server: RunningServer, name: str) -> tuple[int | None, int | None]:
    """Return the retention of a topic, in octets and milliseconds."""
    with trio.fail_after(SECONDS):
        async with (
            connect(f"omq://127.0.0.1:{server.port}", id="guest:guest") as client,
            client.watch() as rounds,
        ):
            async for each in rounds:
                for numbers in each.topics.values():
                    found = numbers.topic
                    if found.topic == name.encode():
                        return found.retention_octets, found.retention_ms
    raise AssertionError(f"there is no topic {name}")


def declared(broker: Broker, queue: str, **arguments: Any) -> str:
    return broker.channel().call(declare_queue(1, queue, durable=1, **arguments)).told()


@pytest.mark.parametrize(
    "arguments",
    [
        {"x_message_ttl": 1000},
        {"x_expires": 1000},
        {"x_max_length": 5},
        {"x_overflow": "drop-head"},
        {"x_dead_letter_exchange": "amq.fanout"},
        {"x_dead_letter_exchange": "amq.fanout", "x_dead_letter_routing_key": "k"},
        {"x_max_priority": 3},
        {"x_delivery_limit": 3},
        {"x_single_active_consumer": True},
        {"x_max_age": "1x"},
        {"x_max_age": "0s"},
        {"x_max_age": 3600},
    ],
)
def test_a_stream_refuses_what_it_would_not_keep(arguments: dict[str, object], broker: Broker) -> None:
    assert declared(broker, "refused", x_queue_type="stream", **arguments) == REFUSED
    assert (
        broker.channel().call(declare_queue(1, "refused", passive=1)).told().startswith("channel.close 404")
    )


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_other_queues_have_no_age(kind: str, broker: Broker) -> None:
    assert declared(broker, "ages", x_queue_type=kind, x_max_age="1h") == REFUSED


async def test_limits_of_a_stream_survive_a_restart(tmp_path: Path) -> None:
    (tmp_path / "omq.toml").write_text(
        f"retention_bytes = {MOST_OCTETS}\nretention_seconds = {MOST_MS / 1000}\n"
    )
    options = ("--config", tmp_path / "omq.toml", "--listen", "127.0.0.1:0", "--store", tmp_path / "store")
    with running_server(*options) as server:
        broker = Broker(("127.0.0.1", server.port))
        assert declared(
            broker, "both", x_queue_type="stream", x_max_age="1h", x_max_length_bytes=4000
        ).endswith("consumers=0")
        declared(broker, "age", x_queue_type="stream", x_max_age="2h")
        declared(broker, "much", x_queue_type="stream", x_max_length_bytes=MOST_OCTETS * 2)
        declared(broker, "plain", x_queue_type="stream")
        broker.close()
    with running_server(*options) as server:
        assert await kept(server, "both") == (4000, HOUR)
        assert await kept(server, "age") == (MOST_OCTETS, MOST_MS)
        assert await kept(server, "much") == (MOST_OCTETS, MOST_MS)
        assert await kept(server, "plain") == (MOST_OCTETS, MOST_MS)
        broker = Broker(("127.0.0.1", server.port))
        ok = "queue.declare-ok messages=0 consumers=0"
        agreements: list[dict[str, Any]] = [{}, {"x_max_age": "60m"}, {"x_max_length_bytes": 4000}]
        for agreeing in agreements:
            assert declared(broker, "both", x_queue_type="stream", **agreeing) == ok
        assert declared(broker, "much", x_queue_type="stream", x_max_length_bytes=MOST_OCTETS * 2) == ok
        differences: list[dict[str, Any]] = [{"x_max_age": "2h"}, {"x_max_length_bytes": 4001}]
        for differing in differences:
            assert declared(broker, "both", x_queue_type="stream", **differing) == REFUSED
        assert declared(broker, "plain", x_queue_type="stream", x_max_age="1h") == REFUSED
        broker.close()


def test_a_refusal_names_both_values(broker: Broker) -> None:
    declared(broker, "named", x_queue_type="stream", x_max_age="1h")
    channel = broker.channel()
    refused = channel.call(declare_queue(1, "named", durable=1, x_queue_type="stream", x_max_age="1D"))
    assert (
        b"'x-max-age' for queue 'named' in vhost '/': received '86400s' but current is '3600s'"
        in refused.args
    )
