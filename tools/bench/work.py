"""Workers that share the messages of a queue, and that acknowledge them where the queue is stored."""

import select
import socket
import time
from collections.abc import Iterator, Sequence

from systems import RECEIVE_OCTETS, SOCKET_SECONDS, System
from workers import BenchFailure, SharedCounters


def arriving(
    sockets: Sequence[socket.socket], board: SharedCounters, received: Sequence[int]
) -> Iterator[int]:
    """Yield the place of each socket that can be read, until the workers have everything that was published.

    The caller counts in `received` how many messages each worker got. Fails when the counts stop.
    """
    poll = select.epoll()
    places = {each.fileno(): place for place, each in enumerate(sockets)}
    for descriptor in places:
        poll.register(descriptor, select.EPOLLIN)
    counted, since = 0, time.monotonic()
    while not board.target or sum(received) < board.target:
        for descriptor, _ in poll.poll(0.02):
            yield places[descriptor]
        now = time.monotonic()
        if sum(received) > counted:
            counted, since = sum(received), now
        elif now - since > SOCKET_SECONDS:
            raise BenchFailure(f"{counted} of {board.target} messages arrived, then nothing")


def work(
    system: System, topic: bytes, board: SharedCounters, sockets: Sequence[socket.socket]
) -> tuple[int, list[int]]:
    """Receive and acknowledge until the workers have everything. Return the moment of the last message, and
    how many messages each worker got.

    Fails unless the server then has no message left that is not acknowledged.
    """
    received = [0] * len(sockets)
    rests = [b""] * len(sockets)
    end = 0
    for place in arriving(sockets, board, received):
        data = sockets[place].recv(RECEIVE_OCTETS)
        if not data:
            raise BenchFailure(f"a worker was cut off with {received[place]} messages")
        whole = rests[place] + data
        taken = system.acknowledge(sockets[place], topic, whole)
        rests[place] = whole[taken.octets :]
        if taken.messages:
            received[place] += taken.messages
            board.set_received(place, received[place])
            end = time.perf_counter_ns()
        sockets[place].sendall(taken.answer)
    if sum(received) != board.target:
        raise BenchFailure(f"{sum(received)} messages arrived, {board.target} were published")
    wait_until_done(system, topic)
    return end, received


def wait_until_done(system: System, topic: bytes) -> None:
    """Wait until the server knows that every message is acknowledged."""
    deadline = time.monotonic() + SOCKET_SECONDS
    while left := system.unacknowledged(topic):
        if time.monotonic() > deadline:
            raise BenchFailure(f"{left} messages were received and are not acknowledged")
        time.sleep(0.01)
