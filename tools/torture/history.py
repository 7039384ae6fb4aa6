"""Received and confirmed messages of clients, and a check that a later start keeps these promises."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from omq.model import Persistent, Sync, Transient

SECOND = 1_000_000_000

PRODUCER = b"producer"
"""An idempotent producer, which repeats its unconfirmed messages after a failure."""

PRODUCED = frozenset(("strong", "weak"))
"""The topics that it publishes to."""

MARK = b"mark:"
"""Begins the bodies of the messages that the examiner publishes."""


class Safety(Enum):
    """The levels, with the type of topic that has each."""

    TRANSIENT = Transient()
    STRONG = Persistent(Sync.STRONG)
    WEAK = Persistent(Sync.WEAK)
    ASYNC = Persistent(Sync.ASYNC)


AMQP_WORK, AMQP_DEAD = "amqp-work", "amqp-dead"
"""A queue, and that of its dead letters."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A topic of the load."""

    name: str
    safety: Safety
    is_work: bool = False
    """Round-robin, with credit."""
    is_trimmed: bool = False
    """Retention deletes its oldest messages."""
    is_amqp: bool = False
    """A queue that clients of AMQP publish to and consume. They learn no ids."""
    may_repeat: bool = False
    """A message may be there twice."""


ROUND = tuple(
    Kind(f"{safety.name.lower()}-{number}", safety)
    for safety in (Safety.STRONG, Safety.WEAK, Safety.ASYNC)
    for number in range(4)
)
"""Topics that are published to in turn, message by message: one commit has messages of all of them."""

KINDS = (
    *ROUND,
    Kind("strong", Safety.STRONG),
    Kind("weak", Safety.WEAK),
    Kind("async", Safety.ASYNC),
    Kind("trimmed", Safety.WEAK, is_trimmed=True),
    Kind("passing", Safety.TRANSIENT),
    Kind("strong-work", Safety.STRONG, is_work=True),
    Kind("weak-work", Safety.WEAK, is_work=True),
    Kind(AMQP_WORK, Safety.STRONG, is_work=True, is_amqp=True),
    Kind(AMQP_DEAD, Safety.STRONG, is_work=True, is_amqp=True, may_repeat=True),
)


@dataclass(frozen=True, slots=True)
class Stored:
    """The messages of a topic after a start. Bodies are short: publisher and number."""

    messages: list[tuple[int, bytes]]
    """Ids and bodies in the order of arrival; of round-robin topics, the delivered ones."""
    gaps: list[tuple[int, int]]
    """First and last id of the reported gaps."""
    next_id: int
    """The id of a message that was published after that, to mark the end."""
    mark: bytes
    """Its body."""
    is_routed: bool = True
    """Whether a message that is published to the exchange of a queue of AMQP arrives there."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The time of the failure, and the messages that it may lose."""

    when: int
    due: Mapping[Safety, int]
    """The time of each level up to which every promise must be kept."""
    ids_are_consecutive: bool


@dataclass(slots=True)
class ClientObservations:
    """The facts that clients know of one topic, each with its time (`time.monotonic_ns`)."""

    published: set[bytes] = field(default_factory=set)
    confirmed: dict[bytes, int] = field(default_factory=dict)
    seen: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    done: dict[bytes, int] = field(default_factory=dict)
    """Work whose Received was sent."""
    meant: dict[int, bytes] = field(default_factory=dict)
    """Messages by id that an earlier failure may have lost."""
    wrong: list[str] = field(default_factory=list)
    """Promises that were broken while the server ran."""

    def see(self, id: int, body: bytes, when: int) -> None:
        """Note that a subscriber got a message."""
        known, _ = self.seen.setdefault(id, (body, when))
        if known != body:
            self.wrong.append(f"message {id} was {known!r} and is {body!r}")


class History:
    """The facts that clients know of all topics."""

    def __init__(self) -> None:
        self.topics = {kind.name: ClientObservations() for kind in KINDS}
        self.produced = dict.fromkeys(PRODUCED, 0)
        """Return for each topic with a producer the number of its messages that are certainly stored."""
        self.bound: int | None = None
        """When the queue of AMQP was bound to its exchange."""
        self.rejected: dict[bytes, int] = {}
        """When a consumer sent that it rejects a message."""
        self.dead_lettered: dict[bytes, int] = {}
        """When a consumer sent that it has a dead letter."""

    def broken(self, stored: Mapping[str, Stored], failure: Failure) -> list[str]:
        """Return a sentence for each promise that a start after a failure breaks."""
        found: list[str] = []
        for kind in KINDS:
            told = self.topics[kind.name]
            found += [f"{kind.name}: {wrong}" for wrong in told.wrong]
            if kind.name in stored:
                found += [f"{kind.name}: {text}" for text in _broken(kind, told, stored[kind.name], failure)]
            elif told.seen and min(when for _, when in told.seen.values()) <= failure.when:
                found.append(f"{kind.name}: the topic is gone")
        found += self._amqp_faults(stored, failure)
        return found

    def _amqp_faults(self, stored: Mapping[str, Stored], failure: Failure) -> Iterable[str]:
        """Yield the faults of the queues of AMQP together."""
        due = failure.due[Safety.STRONG]
        is_bound = self.bound is not None and self.bound <= due
        if AMQP_WORK not in stored or AMQP_DEAD not in stored:
            if is_bound:
                yield "a queue of AMQP is gone"
            return
        if is_bound and not stored[AMQP_WORK].is_routed:
            yield f"{AMQP_WORK}: the binding is gone"
        here = {body for name in (AMQP_WORK, AMQP_DEAD) for _, body in stored[name].messages}
        owed = {body for body, when in self.rejected.items() if when <= due}
        lost = owed - here - {body for body, when in self.dead_lettered.items() if when <= failure.when}
        if lost:
            yield f"{len(lost)} of {len(owed)} rejected messages are in no queue, as {min(lost)!r}"

    def after(self, stored: Mapping[str, Stored], failure: Failure) -> "History":
        """Return the facts that clients know after they received the messages of that start."""
        made = History()
        made.bound = self.bound
        for name, told in self.topics.items():
            new = made.topics[name]
            new.published |= told.published
            new.meant |= told.meant
            new.meant |= {id: body for id, (body, when) in told.seen.items() if when <= failure.when}
            if name in stored:
                new.seen = {id: (body, failure.when) for id, body in stored[name].messages}
        made.look(stored, failure.when)
        for name in PRODUCED.intersection(stored):
            bodies = [body for _, body in stored[name].messages if body.startswith(PRODUCER + b":")]
            made.produced[name] = len(bodies)
        return made

    def look(self, stored: Mapping[str, Stored], when: int) -> None:
        """Record that the examiner published a message to each topic, and confirmed the work it received."""
        for kind in KINDS:
            if kind.name in stored:
                told, topic = self.topics[kind.name], stored[kind.name]
                told.meant[topic.next_id] = topic.mark
                if kind.is_work:
                    told.done.update((body, when) for _, body in topic.messages)
                if kind.is_amqp:
                    for _, body in topic.messages:
                        self.rejected.pop(body, None)


def _broken(kind: Kind, told: ClientObservations, stored: Stored, failure: Failure) -> Iterable[str]:
    seen = told.meant | {id: body for id, (body, when) in told.seen.items() if when <= failure.when}
    bodies = [body for _, body in stored.messages]
    here = set(bodies)
    if len(here) != len(bodies) and not kind.may_repeat:
        yield "a message is there twice"
    for id, body in stored.messages:
        if body not in told.published and not body.startswith(MARK):
            yield f"message {id} was never published: {body!r}"
        if seen.get(id, body) != body:
            yield f"message {id} was {seen[id]!r} and is {body!r} now"
    highest = max([*seen, *(id for id, _ in stored.messages)], default=0)
    if stored.next_id <= highest:
        yield f"message {stored.next_id} is new, but {highest} was handed out before"
    if kind.safety is Safety.TRANSIENT:
        return
    yield from _lost(kind, told, stored, here, failure)
    if not kind.is_work:
        yield from _disorder(stored, failure)


def _lost(
    kind: Kind, told: ClientObservations, stored: Stored, here: set[bytes], failure: Failure
) -> Iterable[str]:
    due = failure.due[kind.safety]
    owed = {body for body, when in told.confirmed.items() if when <= due}
    owed |= {body for body, when in told.seen.values() if when <= due}
    if kind.is_work:
        owed -= {body for body, when in told.done.items() if when <= failure.when}
    if kind.is_trimmed:
        kept_from = stored.messages[0][0] if stored.messages else stored.next_id
        known = {body: id for id, (body, _) in told.seen.items()}
        owed = {body for body in owed if known.get(body, 0) >= kept_from}
    lost = owed - here
    if lost:
        yield f"{len(lost)} of {len(owed)} messages that were told to be safe are lost, as {min(lost)!r}"


def _disorder(stored: Stored, failure: Failure) -> Iterable[str]:
    numbers: dict[bytes, int] = {}
    before = 0
    gaps = set(stored.gaps)
    if failure.ids_are_consecutive and gaps:
        yield f"messages are missing: {sorted(gaps)}"
    for id, body in [*stored.messages, (stored.next_id, b"")]:
        if before and id != before + 1 and (before + 1, id - 1) not in gaps:
            yield f"message {id} follows {before}, and nothing was said of those between"
        before = id
        publisher, _, number = body.partition(b":")
        if not number or body.startswith(MARK):
            continue
        if int(number) <= numbers.get(publisher, -1):
            yield f"message {id} of publisher {publisher!r} is out of order"
        numbers[publisher] = int(number)
