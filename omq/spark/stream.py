"""Stream reads: `spark.readStream.format("omq")`.

Spark stores the end of each micro-batch in the query's checkpoint, in the form of `omq.spark.positions`, and
repeats a micro-batch that did not complete.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from omq.bulk.access import Access, StoredTopic
from omq.bulk.errors import DataLoss
from omq.bulk.places import Edge, Pattern
from omq.bulk.ranges import Range, choose, cut, offsets, pack
from omq.counted import counted
from omq.spark import reading
from omq.spark.options import ReadOptions
from omq.spark.positions import Offsets, at, behind, offsets_of, positions_of
from omq.spark.reading import TopicPartition
from omq.spark.schema import check_schema

log = logging.getLogger("omq.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver while the query runs; the tasks call only `read`."""

    def __init__(
        self, options: ReadOptions, schema: StructType, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a reader. `now`: the clock, in seconds. Raise BadOptions for a schema with unknown columns
        or types.
        """
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._access: Access | None = None
        self._initial: Offsets | None = None
        self._target: dict[str, int] | None = None
        self._now = now
        self._last: float | None = None
        """When the last micro-batch with messages was planned; None if none was yet."""

    def __getstate__(self) -> dict[str, Any]:
        # The tasks get a copy without the driver's open connection.
        return self.__dict__ | {"_access": None}

    # -- on the driver -------------------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:
        access = self._opened()
        topics = choose(access, self._options.choice)
        begins = offsets(access, topics, self._options.start, begins=True)
        found = offsets_of({name: at(topics[name], message) for name, message in begins.items()})
        if self._options.start is Edge.LATEST:
            self._initial = found
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        # Spark accepts only one limit. `latestOffset` waits for the least number with both limits.
        wait = self._options.wait
        return ReadAllAvailable() if wait is None else ReadMinRows(wait.messages)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {name: topic.next for name, topic in self._topics().items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        if start == self._initial:
            # Make the first micro-batch empty: then the checkpoint contains the start of the query.
            self._initial = None
            return start
        topics = self._topics()
        before = positions_of(start)
        for name in before.keys() - topics.keys():
            self._lost(self._gone(name))
        ends = {name: topic.next for name, topic in topics.items()}
        if self._target is not None:
            ends = {name: min(ends[name], until) for name, until in self._target.items() if name in ends}
        begins = {}
        for name, end in ends.items():
            topic = topics[name]
            # Read a topic that newly matches a pattern from its beginning.
            begins[name] = topic.first
            if name in before:
                begins[name] = before[name].next
                is_new = before[name].id != topic.id
                if is_new or topic.next < begins[name]:
                    what = (
                        "it was deleted and created again, and has got to" if is_new else "it has only got to"
                    )
                    self._lost(f"Topic {name!r}: message {begins[name]} comes next, but {what} {topic.next}")
                    # The earlier messages of the same topic were read, or the query starts after them.
                    begins[name] = topic.first if is_new else topic.next
            if begins[name] < topic.first and not self._options.fail_on_data_loss:
                # Skip them here: otherwise they take room in micro-batches of a limited size. Tasks fail for
                # them if messages must not be lost.
                skipped = topic.first - begins[name]
                self._lost(f"Topic {name!r}: {counted(skipped, 'message')} before {topic.first} are gone")
                begins[name] = topic.first
            ends[name] = max(end, begins[name])
        if self._waits(limit, sum(end - begins[name] for name, end in ends.items())):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = share(begins, ends, limit.max_rows)
        if before.keys() == ends.keys() and all(
            before[name].id == topics[name].id and before[name].next == end for name, end in ends.items()
        ):
            return start  # no new messages
        self._last = self._now()
        ranges = [Range(topics[name], begins[name], end) for name, end in ends.items()]
        limits = self._options.min_partitions, self._options.max_records
        tasks = pack(cut(self._opened(), ranges, *limits), *limits)
        joined = {part.topic.name for task in tasks for part in task[1:]}
        of_topic: dict[str, list[Range]] = {name: [] for name in ends}
        for part in (part for task in tasks for part in task):
            of_topic[part.topic.name].append(part)
        return offsets_of(
            {name: behind(topics[name], begins[name], of_topic[name], name in joined) for name in ends}
        )

    def _waits(self, limit: ReadLimit, messages: int) -> bool:
        """Return whether to wait for more messages than these. The first micro-batch of a run never waits, as
        in the Kafka source.
        """
        wait = self._options.wait
        # A trigger that reads the messages of this moment would wait for messages that it must not read.
        if wait is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        if self._last is None or self._now() >= self._last + wait.seconds:
            return False
        return messages < wait.messages

    def reportLatestOffset(self) -> Offsets:
        return offsets_of({name: at(topic, topic.next) for name, topic in self._topics().items()})

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        topics = self._topics()
        tasks: list[list[Range]] = []
        for name, position in positions_of(end).items():
            if name not in topics:
                self._lost(self._gone(name))
            elif position.parts(topics[name]) and position.id != topics[name].id:
                self._lost(f"Topic {name!r}: it was deleted and created again; the messages to read are lost")
            else:
                for number, part in enumerate(position.parts(topics[name])):
                    if number == 0 and position.joined and tasks:
                        tasks[-1].append(part)
                    else:
                        tasks.append([part])
        return [TopicPartition(tuple(task)) for task in tasks]

    def commit(self, end: Offsets) -> None:
        """Do nothing: other readers may need the messages, so a query deletes none."""

    def stop(self) -> None:
        if self._access is not None:
            self._access.__exit__(None, None, None)
            self._access = None

    def _opened(self) -> Access:
        if self._access is None:
            self._access = self._options.place.open()
        return self._access

    def _topics(self) -> dict[str, StoredTopic]:
        access = self._opened()
        if not self._options.fail_on_data_loss and not isinstance(self._options.choice, Pattern):
            # Skip a deleted topic, like deleted messages.
            found = {name: topic for name, topic in access.topics().items() if topic.problem is None}
            return {name: found[name] for name in self._options.choice.names if name in found}
        return choose(access, self._options.choice)

    def _gone(self, name: str) -> str:
        """Describe the reason that the query's checkpoint has a topic that is not there."""
        if self._options.choice.has(name):
            return f"The topic {name!r} was deleted while a stream was reading it"
        return (
            f"The query's checkpoint contains the topic {name!r}, and its options do not select it any more"
        )

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{what}. With failOnDataLoss=false the stream continues with the available messages."
            )
        log.warning("%s; the stream continues with the available messages", what)

    # -- in the tasks --------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return reading.read(self._options, self._schema, partition)


def share(begins: Mapping[str, int], ends: Mapping[str, int], most: int) -> dict[str, int]:
    """Limit the ends to `most` messages in total, shared in proportion to each topic's waiting messages."""
    waiting = {name: end - begins[name] for name, end in ends.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(ends)
    shares = {name: count * most // total for name, count in waiting.items()}
    left = most - sum(shares.values())
    # Give the rest from rounding to the topics with the largest remainders.
    for name in sorted(waiting, key=lambda name: waiting[name] * most % total, reverse=True)[:left]:
        shares[name] += 1
    return {name: begins[name] + count for name, count in shares.items()}
