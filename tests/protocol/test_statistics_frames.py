"""The sexps of Statistics, Connections and Subscribers."""

import pytest

from omq import watching as w
from omq.model import Delivery, Persistent, Sync, Transient
from omq.protocol.omq import types
from omq.protocol.omq.commands import parse, sexp_of_command
from omq.protocol.omq.frames import FrameDecoder, FrameError, encode
from omq.protocol.omq.sexp import read, write

NAMES = (b"prices", b"the news", b"", b'"(', b"a|#b", b"\xff\x00", b"7")


def topic(name: bytes, octets: int | None) -> w.TopicWatch:
    """Return a topic whose numbers all differ."""
    persistence = Transient() if octets is None else Persistent(Sync.STRONG)
    return w.TopicWatch(
        1,
        name,
        Delivery.ROUND_ROBIN,
        persistence,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        12,
        13,
        14,
        15,
        octets,
        octets,
    )


def server(name: bytes) -> w.Server:
    """Return numbers of a server."""
    writer = w.WriterInfo(name, 1, 2, 3, 4, 5, 6, 7, 8, name or None)
    return w.Server(
        time_us=1, version=name, uptime=2, connections=3, max_connections=4,
        protocols=(w.ProtocolCount(name, 5), w.ProtocolCount(b"omq", 6)), subscriptions=7,
        max_subscriptions=8, topics=9, max_topics=10, leases=11, watchers=12, turned_away=13,
        memory=(w.Share(name, 14, 15),), writers=(writer, writer), disk_free=16, disk_reserve=17,
        store_octets=18, spool=19, spool_limit=20,
    )  # fmt: skip


def connection(name: bytes) -> w.ConnectionInfo:
    """Return a connection with two subscriptions."""
    subscriptions = (w.SubscriptionInfo(name, 1, 2, None, 3, 4), w.SubscriptionInfo(name, None, 2, 5, 3, 4))
    return w.ConnectionInfo(
        1, name, name, name, True, 2, 3, 4, 5, 6, 7, 8, 9, None, name or None, subscriptions
    )  # fmt: skip


FRAMES: list[types.Frame] = [
    types.Watched(w.Began(1000)),
    types.Watched(w.Gone(())),
    types.Watched(w.Gone((1, 22, 333))),
    types.Watched(w.Complete(-1)),
    types.ConnectionList(()),
    types.SubscriberList(()),
    types.Done(7),
    types.Watched(w.Topics(1, tuple(topic(name, number) for name in NAMES for number in (None, 16)))),
    types.ConnectionList(tuple(connection(name) for name in NAMES)),
    types.SubscriberList(tuple(w.SubscriberInfo(1, name, name, name, None, 2, 3, 4, 5, 6) for name in NAMES)),
    *(types.Watched(server(name)) for name in NAMES),
    *(types.Watched(w.Warnings((w.Line(1, 2, b"ERROR", b"omq", name),))) for name in NAMES),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_statistics_are_written_in_machine_form_and_read_again(frame: types.Frame) -> None:
    octets = encode(frame)
    assert FrameDecoder().feed(octets) == [frame]
    if not isinstance(frame, types.Done):
        sexp = read(octets[5:])
        assert sexp is not None
        assert write(sexp) == octets[5:]


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0d(Began)", b"\x0d(Began(period x))", b"\x0dBegan", b"\x0d", b"\x0d(Ended(period 1))",
        b"\x0e(())", b"\x0eConnections", b"\x0f((connection 1))", b"\x10\x00",
        b"\x0d(Topics(time_us 1)(list(((id 1)))))",
    ],
)  # fmt: skip
def test_malformed_statistics_are_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        FrameDecoder().feed(len(payload).to_bytes(4, "big") + payload)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"(Watch 1000)", types.Watch(1000)),
        (b"(Connections 0)", types.Connections(0)),
        (b"(Subscribers prices)", types.Subscribers(b"prices")),
        (b"(Disconnect 7)", types.Disconnect(7)),
        (b"(Purge prices)", types.Purge(b"prices")),
        (b"(Retain prices Configured)", types.Retain(b"prices", w.Configured())),
        (b"(Retain prices(Limits(octets(1))(ms())))", types.Retain(b"prices", w.Limits(1, None))),
    ],
)
def test_commands(line: bytes, command: types.Command) -> None:
    assert parse(line) == command
    assert sexp_of_command(command) == line
