"""Republish at a multiple of the original speed of the messages."""

import heapq
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from omq.bulk.access import Access, Gap
from omq.bulk.errors import OmqError
from omq.bulk.ranges import Range
from omq.bulk.remote import RetryPolicy
from omq.bulk.sinks import send
from omq.replay.copying import producers
from omq.replay.declaring import TargetTopics
from omq.replay.envelopes import ReplayProducer, bodies_size, envelopes
from omq.replay.gaps import LostMessages, pass_over, published
from omq.replay.meter import Meter
from omq.replay.plan import Plan
from omq.replay.request import ToServer
from omq_storage import numbers
from omq_storage.blocks import Block
from omq_storage.errors import StoreError

TICK_SECONDS = 0.02
"""Messages that are due within this interval are sent together."""

_LONGEST_TICK = 1 << 62
"""The microseconds of the longest tick, whatever the speed is."""

PORTION_OCTETS = 8 << 20
"""The most octets that are sent together when a replay has fallen behind."""


@dataclass(frozen=True, slots=True)
class DueMessages:
    """Messages of one topic that are sent together."""

    time: int
    """The time of the first message, in microseconds since the epoch."""
    source: str
    messages: range
    octets: int
    """The size of the bodies."""
    envelopes: bytes


def pace(plan: Plan, destination: ToServer, meter: Meter, stop: threading.Event) -> None:
    """Copy all of a plan, its topics merged in the order of time, until `stop` is set.

    Holds one block of each topic in memory. Raises as `copying.copy` does.
    """
    speed = plan.request.speed
    assert speed is not None
    names = producers(destination)
    tick = int(min(TICK_SECONDS * speed * 1e6, _LONGEST_TICK))
    with plan.request.source.open() as access:
        streams = [
            _due(access, part, names.of(part.topic), tick, plan.request.skip_lost, meter)
            for part in plan.parts
            if len(part)
        ]
        publish(heapq.merge(*streams, key=lambda due: due.time), plan, destination, speed, meter, stop)


def publish(
    dues: Iterable[DueMessages],
    plan: Plan,
    destination: ToServer,
    speed: float,
    meter: Meter,
    stop: threading.Event,
) -> None:
    """Send messages when they are due, each time with confirmation, until `stop` is set or that fails; then
    print for each topic how far it is published. Raises as `copying.copy` does.
    """
    place = destination.place
    # Retry only with a named producer: otherwise the server would store a repetition twice.
    retry_policy = place.retry_policy if destination.producer is not None else RetryPolicy(0)
    topics = TargetTopics(plan, destination)
    confirmed = {part.topic.name: part.start for part in plan.parts if len(part)}
    sent = dict(confirmed)
    failed: OmqError | StoreError | None = None
    with place.open() as server:
        try:
            for together in _in_time(dues, speed, stop):
                by_source: dict[str, list[DueMessages]] = {}
                for due in together:
                    by_source.setdefault(due.source, []).append(due)
                for source, parts in by_source.items():
                    target = (destination.topic or source).encode()
                    server.ask(partial(topics.declare, target=target))
                    count = sum(len(part.messages) for part in parts)
                    sent[source] = parts[-1].messages.stop
                    send(server, retry_policy, target, b"".join(part.envelopes for part in parts), count)
                    confirmed[source] = sent[source]
                    meter.add(source, count, sum(part.octets for part in parts))
        except (OmqError, StoreError) as error:
            failed = error
    lost = failed if isinstance(failed, LostMessages) else None
    has_begun = any(sent[part.topic.name] > part.start for part in plan.parts if len(part))
    # A replay that fails before its first message has nothing to report.
    if stop.is_set() or lost is not None or (failed is not None and has_begun):
        for part in filter(len, plan.parts):
            name = part.topic.name
            after = confirmed[name]
            # An error about lost messages itself says where its topic continues.
            left = part.start < after < part.end and (lost is None or name != lost.topic)
            there = f"; --first {after} continues there" if left and sent[name] == after else ""
            meter.say(f"{name}: {published(part, after, sent[name])}{there}")
    if failed is not None:
        raise failed


def _in_time(dues: Iterable[DueMessages], speed: float, stop: threading.Event) -> Iterator[list[DueMessages]]:
    """Wait until messages are due, and yield those that are due together. Raises what `dues` raises, when the
    messages before are yielded.
    """
    waiting: list[DueMessages] = []
    octets = 0
    begin: tuple[float, int] | None = None
    try:
        for due in dues:
            now = time.monotonic()
            if begin is None:
                begin = now, due.time
            at = begin[0] + (due.time - begin[1]) / 1e6 / speed
            if waiting and (at > now or octets >= PORTION_OCTETS):
                yield waiting
                waiting, octets = [], 0
            if stop.wait(min(max(0.0, at - time.monotonic()), threading.TIMEOUT_MAX)):
                return
            waiting.append(due)
            octets += len(due.envelopes)
    except (OmqError, StoreError):
        if waiting:
            yield waiting
        raise
    if waiting:
        yield waiting


def _due(
    access: Access, part: Range, producer: ReplayProducer, tick: int, skip_lost: bool, meter: Meter
) -> Iterator[DueMessages]:
    """Split the messages of a topic into pieces of at most `tick` microseconds."""
    for block, messages in _blocks(access, part, skip_lost, meter):
        deltas = [0] * block.count if block.deltas is None else numbers.unpack(block.deltas)
        begin = messages.start
        while begin < messages.stop:
            after = begin + 1
            delta = deltas[begin - block.first]
            while after < messages.stop and deltas[after - block.first] < delta + tick:
                after += 1
            together = range(begin, after)
            made = envelopes(block, together, producer)
            yield DueMessages(
                block.time + delta, part.topic.name, together, bodies_size(block, together), made
            )
            begin = after


def _blocks(access: Access, part: Range, skip_lost: bool, meter: Meter) -> Iterator[tuple[Block, range]]:
    """Yield the blocks of a range, with the ids of their messages in it. Fetch each block separately, since
    much time may pass between two of them.
    """
    position = part.start
    while position < part.end:
        info = access.block_at(part.topic, position, part.end)
        until = part.end if info is None else min(part.end, info.next)
        for found in list(access.fetch(part.topic, position, until, _kept)):
            if isinstance(found, Gap):
                pass_over(part, found, meter, skip_lost)
                position = found.next
            else:
                yield found
                position = found[1].stop


def _kept(block: Block, messages: range) -> tuple[Block, range]:
    return block.copy(), messages
