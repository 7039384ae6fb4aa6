"""The outcomes of lines: commands and refusals, from the events of a reader and line by line."""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from omq.protocol.omq.commands import CommandError, parse
from omq.protocol.omq.events import BadLine, Event, Parsed, PublishRun, ReceivedRun, TooLong
from omq.protocol.omq.lines import LineReader
from omq.protocol.omq.types import Command, Publish, Received
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER

MIB = 1 << 20

Outcome = Command | BadLine | TooLong
T = TypeVar("T")


def outcomes(events: Iterable[Event]) -> list[Outcome]:
    """Return the events with each run taken apart into its commands."""
    found: list[Outcome] = []
    for event in events:
        match event:
            case PublishRun(topic, batch):
                bodies = batch.bodies()
                assert batch.count == len(bodies) > 0
                assert batch.octets == sum(map(len, bodies)) + FRAME_HEADER * len(bodies)
                assert batch.longest == max(map(len, bodies))
                found += [Publish(topic, body) for body in bodies]
            case ReceivedRun(topic, ids):
                assert ids
                found += [Received(topic, id) for id in ids]
            case Parsed(command):
                assert not isinstance(command, Publish)
                found.append(command)
            case BadLine() | TooLong():
                found.append(event)
    return found


def by_topic(found: Iterable[T]) -> list[T]:
    """Return the same, with Publish commands that follow one another sorted by topic: their order means
    nothing but within a topic.
    """
    ordered: list[T] = []
    for is_publish, stretch in groupby(found, key=lambda each: isinstance(each, Publish)):
        several = list(stretch)
        ordered += sorted(several, key=attrgetter("topic")) if is_publish else several
    return ordered


def run(topic: bytes, bodies: list[bytes]) -> PublishRun:
    return PublishRun(topic, Bodies(bodies))


def fed(*reads: bytes, max_line: int = MIB) -> list[Outcome]:
    """Return the outcomes of several reads one after the other, after which no octet is left over."""
    reader = LineReader(max_line)
    found = [outcome for data in reads for outcome in outcomes(reader.feed(data))]
    assert reader.buffered == 0
    return by_topic(found)


def each_parsed(lines: Iterable[bytes]) -> list[Command | bytes]:
    """Return the result of the parser of commands for each line alone: a command, or the sentence of a
    refusal.
    """
    found: list[Command | bytes] = []
    for line in lines:
        try:
            command = parse(line)
        except CommandError as error:
            found.append(error.sentence)
        else:
            if command is not None:
                found.append(command)
    return found


def told(found: list[Outcome]) -> list[Command | bytes]:
    return [outcome.error if isinstance(outcome, BadLine | TooLong) else outcome for outcome in found]
