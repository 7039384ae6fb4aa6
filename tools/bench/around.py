"""Many topics: one connection publishes to them in turn, another subscribes to all of them or to one."""

import socket
import time
from functools import partial

from cases import cores
from measure import Due, Sample, Settings, publish_for, receive_live, server
from systems import CHUNK_OCTETS, SOCKET_SECONDS, Chunk, Kind, System, batches, make_body
from workers import BenchFailure, SharedCounters, run_beside

FIRST_ROUND = "seconds of the first round"

CHECKED_TOPICS = 7
CHECKED_ROUNDS = 20


def topic_names(count: int) -> tuple[bytes, ...]:
    """Return N names, all of the same length."""
    return tuple(b"topic-%05d" % number for number in range(count))


def rounds(
    system: System,
    topics: tuple[bytes, ...],
    size: int,
    kind: Kind = Kind.LIVE,
    octets: int = CHUNK_OCTETS,
    place: int = 0,
) -> Chunk:
    """Return a buffer of publish commands: whole rounds, with one message to each topic in turn, about
    `octets`.

    `first` and `last` are the bodies of the last topic. `place` is the number of the publisher.
    """
    one = len(system.encode(kind, topics[0], make_body(0, size)))
    count = max(1, octets // (one * len(topics))) * len(topics)
    bodies = [make_body(number, size) for number in range(count)]
    published = [(topics[number % len(topics)], body) for number, body in enumerate(bodies)]
    data = system.encode_all(kind, published, place)
    return Chunk(data, count, size, bodies[len(topics) - 1], bodies[-1])


def first_round(system: System, topics: tuple[bytes, ...]) -> float:
    """Publish one message to each topic, confirmed 500 at a time; the seconds it took."""
    begun = time.perf_counter()
    for some in batches(topics):
        publisher = system.publisher(Kind.LIVE, some[0])
        with publisher.socket:
            commands = [system.encode(Kind.LIVE, topic, make_body(0, 20)) for topic in some]
            publisher.send(b"".join(commands), len(some))
            publisher.confirm(len(some), len(some))
    return time.perf_counter() - begun


def around(system: System, settings: Settings, size: int, count: int, subscribed_to_all: bool) -> Sample:
    """Publish to `count` topics in turn until the server has read and the subscriber has got all.

    Messages published a second. Every topic has had a message before: what the first one costs is in
    `detail`, as the seconds that one to each topic took, beside the server's RssAnon at the end, in octets.
    """
    topics = topic_names(count)
    due = Due(topics, 1, False, 1) if subscribed_to_all else Due(topics[-1:], count, True, 1)
    with server(system, Kind.LIVE, settings, topics):
        first_seconds = first_round(system, topics)
        chunk = rounds(system, topics, size)
        board = SharedCounters()
        spans, used = run_beside(
            system.cpu_seconds,
            {
                "receiver": partial(receive_live, system, Kind.LIVE, chunk, board, 1, due),
                "publisher": partial(publish_for, system, Kind.LIVE, chunk, board, settings.seconds, 1, due),
            },
            settings.seconds + 3 * SOCKET_SECONDS,
        )
        anonymous = system.memory()[1]
    sent, got = spans["publisher"], spans["receiver"]
    # A subscriber of one topic may have everything before the server has read the messages of the others.
    seconds = (max(sent.end, got.end) - sent.start) / 1e9
    load = cores(sent.cpu_seconds + got.cpu_seconds, seconds)
    counted = f"{got.messages} deliveries of {sent.messages} published"
    detail = {"RssAnon": float(anonymous), FIRST_ROUND: first_seconds}
    value = sent.messages / seconds
    return Sample(value, sent.messages, seconds, counted, cores(used, seconds), load, detail)


def check_topics(system: System, settings: Settings) -> str:
    """Check that a subscriber of all topics gets every message, each topic's in order; one of one topic, its
    own.
    """
    topics = topic_names(CHECKED_TOPICS)
    count = CHECKED_TOPICS * CHECKED_ROUNDS
    bodies = [make_body(number, 100) for number in range(count)]
    with server(system, Kind.LIVE, settings, topics):
        of_one = system.subscribe(Kind.LIVE, topics[:1])
        of_all = system.subscribe(Kind.LIVE, topics)
        publisher = system.publisher(Kind.LIVE, topics[0])
        with of_one, of_all, publisher.socket:
            commands = [
                system.encode(Kind.LIVE, topics[number % len(topics)], body)
                for number, body in enumerate(bodies)
            ]
            publisher.send(b"".join(commands), count)
            received = receive_bodies(system, of_all, count)
            first_topic = receive_bodies(system, of_one, CHECKED_ROUNDS)
    for place in range(len(topics)):
        # The number that leads a body says which topic it was published to.
        if [body for body in received if int(body[:12]) % len(topics) == place] != bodies[
            place :: len(topics)
        ]:
            raise BenchFailure(f"{topics[place].decode()}: other messages arrived than were published")
    if first_topic != bodies[:: len(topics)]:
        raise BenchFailure("a subscriber of one topic got other messages than were published to it")
    return f"{system.name}, {len(topics)} topics: {count} bodies compared at one subscriber of all"


def receive_bodies(system: System, connected: socket.socket, count: int) -> list[bytes]:
    """Receive until `count` messages have arrived."""
    data, received = b"", list[bytes]()
    while len(received) < count:
        try:
            part = connected.recv(65536)
        except TimeoutError:
            raise BenchFailure(f"{len(received)} of {count} messages arrived") from None
        if not part:
            raise BenchFailure("the subscriber was cut off")
        got, used = system.decode(Kind.LIVE, data + part)
        data = (data + part)[used:]
        received += got
    return received
