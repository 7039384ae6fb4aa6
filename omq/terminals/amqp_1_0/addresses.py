"""The meaning of an address of a link: the topic that it names, and the delivery of a topic that it makes.

An address is the name of a topic. Two prefixes are no part of the name: `queue://` and `topic://`, which
clients with a JMS interface write. If there is no such topic, the first of these that says something decides
how it is made: the prefix of the address, the capabilities and the distribution mode of the terminus, and
then the configuration (`amqp1_default`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from omq.access.direct import DYNAMIC
from omq.model import MAX_TOPIC_OCTETS, Delivery, Persistence, Persistent, Sync, Transient
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.decoding import read_all
from omq.protocol.amqp_1_0.performatives import Source, Target
from omq.protocol.amqp_1_0.types import DecodeError


class Treatment(Enum):
    """The treatment of the messages of an address by a router (router-message-bus, "Proposed change")."""

    MULTICAST = "every consumer gets every message"
    QUEUE = "one consumer gets each message"
    DIRECT = "one consumer gets each message at once, without a queue"

    @property
    def delivery(self) -> Delivery:
        """The delivery of a topic of this treatment."""
        return Delivery.BROADCAST if self is Treatment.MULTICAST else Delivery.ROUND_ROBIN


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """A topic, and how to make it if there is none."""

    name: bytes
    delivery: Delivery
    persistence: Persistence
    wanted: Delivery | None
    """The delivery that the client demands of the topic; None if it accepts any."""


@dataclass(frozen=True, slots=True)
class DirectAddress:
    """A node without a queue."""

    name: bytes | None
    """None for a node that the server is to make."""

    def as_topic(self) -> TopicAddress:
        """Return the address of the topic that has this name."""
        return TopicAddress(self.name or b"", Delivery.ROUND_ROBIN, Transient(), None)


_STRIPPED = ((b"queue://", Treatment.QUEUE), (b"topic://", Treatment.MULTICAST))


@dataclass(frozen=True, slots=True)
class _Entry:
    """The properties of addresses with a prefix."""

    prefix: bytes
    treatment: Treatment
    persistence: Persistence | None
    """None where it is that of any other topic."""


_DEFAULTS = (
    _Entry(b"openstack.org/om/notify/multicast", Treatment.MULTICAST, Transient()),
    _Entry(b"openstack.org/om/rpc/multicast", Treatment.MULTICAST, Transient()),
    _Entry(b"openstack.org/om/rpc/unicast", Treatment.DIRECT, None),
    _Entry(b"openstack.org/om/rpc/anycast", Treatment.DIRECT, None),
    _Entry(b"openstack.org/om/notify", Treatment.QUEUE, Persistent(Sync.WEAK)),
    _Entry(b"broadcast.", Treatment.MULTICAST, Transient()),
    _Entry(b"exclusive.", Treatment.DIRECT, None),
    _Entry(b"unicast.", Treatment.DIRECT, None),
)


class Prefixes:
    """The treatments of addresses by their prefixes: the longest one counts."""

    def __init__(self, configured: Mapping[str, str]) -> None:
        """Create the table. `configured` has the names of treatments by prefix, and replaces entries with
        equal prefixes.
        """
        own = [_Entry(prefix.encode(), Treatment[name.upper()], None) for prefix, name in configured.items()]
        entries = {entry.prefix: entry for entry in (*_DEFAULTS, *own)}
        self._entries = sorted(entries.values(), key=lambda entry: -len(entry.prefix))

    def find(self, name: bytes) -> _Entry | None:
        """Return the entry for an address, if there is one."""
        return next((entry for entry in self._entries if name.startswith(entry.prefix)), None)


_QUEUES = {"queue", "temporary-queue"}
_TOPICS = {"topic", "temporary-topic"}
_MODES = {"copy": Treatment.MULTICAST, "move": Treatment.QUEUE}


def resolve(
    terminus: Source | Target, prefixes: Prefixes, default: Treatment, persistence: Persistence
) -> TopicAddress | DirectAddress:
    """Return the meaning of the address of a terminus. `default` and `persistence` are for a topic of which
    neither the address nor the client says anything.

    Raises LinkProblem.
    """
    if terminus.dynamic:
        return DirectAddress(None)
    name = _name(terminus.address)
    wanted: Treatment | None = None
    for prefix, treatment in _STRIPPED:
        if name.startswith(prefix):
            name, wanted = name.removeprefix(prefix), treatment
    if not 0 < len(name) <= MAX_TOPIC_OCTETS:
        raise LinkProblem(
            Condition.NOT_FOUND, f"an address has 1 to {MAX_TOPIC_OCTETS} octets, this one {len(name)}"
        )
    if name.startswith((b"$", b"/management")):
        raise LinkProblem(Condition.NOT_FOUND, "there is no such node")
    entry = prefixes.find(name)
    if name.startswith(DYNAMIC) or (entry is not None and entry.treatment is Treatment.DIRECT):
        return DirectAddress(name)
    wanted = _capability(terminus.capabilities) or wanted
    delivery = None if wanted is None else wanted.delivery
    if entry is not None:
        return TopicAddress(name, entry.treatment.delivery, entry.persistence or persistence, delivery)
    mode = _MODES.get(terminus.distribution_mode or "") if isinstance(terminus, Source) else None
    chosen = wanted or mode or default
    if terminus.durable and not isinstance(persistence, Persistent):
        persistence = Persistent(Sync.WEAK)
    return TopicAddress(name, chosen.delivery, persistence, delivery)


def _name(encoded: bytes) -> bytes:
    try:
        address = read_all(encoded)
    except DecodeError as problem:
        raise LinkProblem(Condition.DECODE_ERROR, f"the address: {problem}") from problem
    if address is None:
        raise LinkProblem(Condition.NOT_FOUND, "there is no address")
    if not isinstance(address, str):
        raise LinkProblem(Condition.INVALID_FIELD, "an address is a string")
    return address.encode()


def _capability(capabilities: Sequence[str]) -> Treatment | None:
    said = set(capabilities)
    if said & _QUEUES:
        return Treatment.QUEUE
    return Treatment.MULTICAST if said & _TOPICS else None
