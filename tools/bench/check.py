"""Compares contents once, message by message; the measurements only count messages."""

import select
import time
from collections.abc import Callable, Iterable

from alone import NoServer
from measure import TOPIC, Settings, server
from systems import SOCKET_SECONDS, Kind, System, make_body
from work import wait_until_done
from workers import BenchFailure

_SIZES = (20, 100, 1024, 5000)
_BATCH = 40
_BATCHES = 10


def check_systems(
    systems: Iterable[System], check: Callable[[System], list[str]], say: Callable[[str], None]
) -> tuple[list[str], bool]:
    """Run `check` with every system that has a server. Return its lines, and whether a check failed."""
    checks: list[str] = []
    failed = False
    for system in systems:
        if isinstance(system, NoServer):
            continue
        try:
            found = check(system)
        except (BenchFailure, OSError) as failure:
            failed = True
            found = [f"{system.name}: FAILED: {failure}"]
        checks += found
        for text in found:
            say(f"contents: {text}")
    return checks, failed


def check_contents(system: System, settings: Settings) -> list[str]:
    """Send a few messages through every kind of topic and compare each body. Return a description of the
    comparison.
    """
    return [
        check_delivery(system, settings, Kind.LIVE, 2),
        check_delivery(system, settings, Kind.ROUND_ROBIN, 4),
        check_delivery(system, settings, Kind.ROUND_ROBIN_WEAK, 4),
        check_delivery(system, settings, Kind.WORK_QUEUE, 4),
        check_replay(system, settings, Kind.WEAK),
        check_replay(system, settings, Kind.STRONG),
    ]


def check_delivery(system: System, settings: Settings, kind: Kind, subscribers: int) -> str:
    """Check that every subscriber gets every message, in order; round-robin, one of them gets each
    message.
    """
    with server(system, kind, settings):
        sockets = [system.subscribe(kind, [TOPIC]) for _ in range(subscribers)]
        publisher = system.publisher(kind, TOPIC)
        places = {each.fileno(): place for place, each in enumerate(sockets)}
        poll = select.epoll()
        for descriptor in places:
            poll.register(descriptor, select.EPOLLIN)
        published: list[bytes] = []
        received: list[list[bytes]] = [[] for _ in sockets]
        rests = [b""] * subscribers
        deadline = time.monotonic() + SOCKET_SECONDS
        for batch in range(_BATCHES):
            numbers = range(batch * _BATCH, (batch + 1) * _BATCH)
            bodies = [make_body(number, _SIZES[number % len(_SIZES)]) for number in numbers]
            published += bodies
            publisher.send(system.encode_all(kind, [(TOPIC, body) for body in bodies]), len(bodies))
            expected = len(published) * (1 if kind.shared else subscribers)
            while sum(map(len, received)) < expected:
                if time.monotonic() > deadline:
                    raise BenchFailure(
                        f"{kind.name}: {sum(map(len, received))} of {expected} messages arrived"
                    )
                for descriptor, _ in poll.poll(0.1):
                    place = places[descriptor]
                    part = sockets[place].recv(65536)
                    if not part:
                        raise BenchFailure(f"{kind.name}: a subscriber was cut off")
                    whole = rests[place] + part
                    if kind is Kind.WORK_QUEUE:
                        taken = system.acknowledge(sockets[place], TOPIC, whole)
                        got, used = system.decode(kind, whole[: taken.octets])
                        sockets[place].sendall(taken.answer)
                    else:
                        got, used = system.decode(kind, whole)
                        if got:
                            sockets[place].sendall(system.ask(kind, TOPIC))
                    rests[place] = whole[used:]
                    received[place] += got
        if kind is Kind.WORK_QUEUE:
            wait_until_done(system, TOPIC)
        if kind.shared:
            # Numbers lead the bodies, so sorted bodies are the order of publication, whatever their size.
            if sorted(body for share in received for body in share) != published:
                raise BenchFailure("round-robin: not every message came to exactly one subscriber")
            if any(share != sorted(share) for share in received):
                raise BenchFailure("round-robin: a subscriber got messages out of order")
        elif any(share != published for share in received):
            raise BenchFailure("live: a subscriber got other messages than were published")
        for connected in sockets:
            connected.close()
        return f"{system.name}, {kind.value}: {len(published)} bodies compared at {subscribers} subscribers"


def check_replay(system: System, settings: Settings, kind: Kind) -> str:
    """Check that a stored topic replays its messages in order, also after a restart."""
    with server(system, kind, settings) as directory:
        chunk = system.chunk(kind, TOPIC, 200)
        publisher = system.publisher(kind, TOPIC)
        for _ in range(2):
            publisher.send(chunk.data, chunk.messages)
        count = 2 * chunk.messages
        publisher.confirm(count, count)
        publisher.socket.close()
        expected = [make_body(number, 200) for number in range(chunk.messages)] * 2
        for turn in ("", " after a restart"):
            if turn:
                system.stop()
                system.start(directory, kind)
            parts: list[bytes] = []
            system.replay(TOPIC, count, chunk.last, lambda part, parts=parts: parts.append(part.tobytes()))  # type: ignore[misc]  # a lambda with a default has no type
            data = b"".join(parts)
            bodies, used = system.decode(kind, data)
            if bodies != expected or used != len(data):
                raise BenchFailure(f"{kind.name}: the replay{turn} differs from what was published")
        return f"{system.name}, {kind.value}: {count} bodies compared in replay, again after a restart"
