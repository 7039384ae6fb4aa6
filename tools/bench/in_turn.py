"""Many clients, each of which publishes its next message when the last one has arrived: no two messages of a
client come together, so nothing can be handled in bulk.
"""

import select
import time
from collections.abc import Sequence
from functools import partial

from around import topic_names
from cases import cores
from measure import Sample, Settings, server
from systems import RECEIVE_OCTETS, SOCKET_SECONDS, Kind, System, make_body
from workers import Begin, BenchFailure, Span, cpu_seconds, run_beside


def take_turns(system: System, topics: Sequence[bytes], size: int, seconds: float, begin: Begin) -> Span:
    """Publish and receive with a pair of connections for each topic. The messages are those that arrived, and
    each that was sent must arrive.
    """
    subscribers = [system.subscribe(Kind.LIVE, [topic]) for topic in topics]
    publishers = [system.publisher(Kind.LIVE, topic, place) for place, topic in enumerate(topics)]
    data = [system.encode(Kind.LIVE, topic, make_body(place, size)) for place, topic in enumerate(topics)]
    poll = select.epoll()
    places: dict[int, int] = {}
    for place, subscriber in enumerate(subscribers):
        places[subscriber.fileno()] = place
        poll.register(subscriber, select.EPOLLIN)
    incomplete = [b""] * len(topics)
    begin()
    cpu = cpu_seconds()
    start = time.perf_counter_ns()
    end = start + int(seconds * 1e9)
    for publisher, message in zip(publishers, data, strict=True):
        publisher.socket.sendall(message)
    arrived, waiting = 0, len(topics)
    while waiting:
        events = poll.poll(SOCKET_SECONDS)
        if not events:
            raise BenchFailure(f"{waiting} messages did not arrive within {SOCKET_SECONDS:.0f} s")
        for descriptor, _ in events:
            place = places[descriptor]
            part = subscribers[place].recv(RECEIVE_OCTETS)
            if not part:
                raise BenchFailure("the server closed a connection")
            incomplete[place] += part
            if system.count(incomplete[place]):
                incomplete[place] = b""
                arrived += 1
                if time.perf_counter_ns() < end:
                    publishers[place].socket.sendall(data[place])
                else:
                    waiting -= 1
    return Span(start, time.perf_counter_ns(), arrived, cpu_seconds() - cpu, {})


def in_turn(system: System, settings: Settings, size: int, clients: int) -> Sample:
    """Measure the messages a second of all clients together."""
    topics = topic_names(clients)
    with server(system, Kind.LIVE, settings, topics):
        task = partial(take_turns, system, topics, size, settings.seconds)
        results, used = run_beside(
            system.cpu_seconds, {"clients": task}, settings.seconds + 2 * SOCKET_SECONDS
        )
    span = results["clients"]
    seconds = (span.end - span.start) / 1e9
    load = cores(span.cpu_seconds, seconds)
    counted = f"{span.messages} sent and arrived"
    return Sample(span.messages / seconds, span.messages, seconds, counted, cores(used, seconds), load)
