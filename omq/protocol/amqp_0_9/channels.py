"""The state of one channel in the protocol: whether it is open, and the message that is incomplete."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from omq.protocol.amqp import openamq
from omq.protocol.amqp import properties as stored_properties
from omq.protocol.amqp.head import MAX_HEAD, joined
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.amqp_0_9.events import LongBegun, LongEnded, LongPart, PublishRun
from omq.protocol.amqp_0_9.frames import BASIC, CONTENT
from omq.protocol.amqp_0_9.methods import BasicPublish
from omq.protocol.amqp_0_9.problems import ChannelProblem, ConnectionProblem, ReplyCode
from omq_storage import codec
from omq_storage.batches import Bodies


@dataclass(frozen=True, slots=True)
class _Published:
    """A Basic.Publish was read, its header was not."""

    method: BasicPublish


@dataclass(slots=True)
class _Whole:
    """A message that is collected here."""

    method: BasicPublish
    head: bytes
    properties: int
    body: bytearray
    size: int


@dataclass(slots=True)
class _Long:
    """A message whose body is handed on as it comes."""

    method: BasicPublish
    missing: int


_Content = _Published | _Whole | _Long


class ChannelState(Enum):
    """Whether a channel takes methods."""

    OPEN = auto()
    CLOSING = auto()
    """The server sent Channel.Close: everything but Channel.Close-Ok is dropped."""


class ChannelInput:
    """One channel that is open or closing."""

    __slots__ = ("_content", "number", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = ChannelState.OPEN
        self._content: _Content | None = None

    @property
    def publish(self) -> BasicPublish | None:
        """The method of the message of which a part was read, if there is one."""
        return None if self._content is None else self._content.method

    @property
    def is_idle(self) -> bool:
        """Whether it is open, and not in the middle of a message."""
        return self.state is ChannelState.OPEN and self._content is None

    @property
    def held(self) -> int:
        """The octets that are reserved for that message here."""
        match self._content:
            case _Whole(_, head, _, _, size):
                return len(head) + size
            case _Published() | _Long() | None:
                return 0
            case other:
                assert_never(other)

    def close(self) -> None:
        """Drop everything from now on."""
        self.state = ChannelState.CLOSING
        self._content = None

    def begin(self, method: BasicPublish) -> None:
        """Begin a message, whose Basic.Publish was read."""
        self._content = _Published(method)

    def header(self, payload: bytes, max_message: int, whole: int) -> PublishRun | LongBegun | None:
        """Take the payload of a header frame; collect a body of up to `whole` octets here.

        Raises `ChannelProblem` and `ConnectionProblem`.
        """
        if not isinstance(self._content, _Published):
            raise self._unexpected("a header frame")
        method = self._content.method
        properties, size = self._properties(payload)
        head = joined(method.exchange, method.routing_key, properties)
        if len(head) > MAX_HEAD:
            text = f"names and properties take {len(head)} octets, more than {MAX_HEAD}"
            raise self._refused(ReplyCode.CONTENT_TOO_LARGE, text)
        if size > max_message:
            text = f"the message has {size} octets, and no message may have more than {max_message}"
            raise self._refused(ReplyCode.PRECONDITION_FAILED, text)
        flags = stored_properties.flags_of(properties)
        if not size:
            self._content = None
            return _run(self.number, method, head, flags, b"")
        if size <= whole:
            self._content = _Whole(method, head, flags, bytearray(), size)
            return None
        self._content = _Long(method, size)
        return LongBegun(
            self.number, method.exchange, method.routing_key, method.mandatory, head, flags, size
        )

    def body(self, payload: bytes) -> tuple[PublishRun | LongPart | LongEnded, ...]:
        """Take the payload of a body frame, which may be empty. Raise `ConnectionProblem`."""
        match self._content:
            case _Published() | None:
                raise self._unexpected("a body frame")
            case _Whole(method, head, flags, body, size):
                if len(payload) > size - len(body):
                    raise self._too_much(len(payload), size - len(body))
                body += payload
                if len(body) < size:
                    return ()
                self._content = None
                return (_run(self.number, method, head, flags, bytes(body)),)
            case _Long() as content:
                if len(payload) > content.missing:
                    raise self._too_much(len(payload), content.missing)
                content.missing -= len(payload)
                part = (LongPart(self.number, payload),) if payload else ()
                if content.missing:
                    return part
                self._content = None
                return (*part, LongEnded(self.number))
            case other:
                assert_never(other)

    def _properties(self, payload: bytes) -> tuple[bytes, int]:
        """Return the property flags and properties of a header frame, and the size of its body."""
        if len(payload) < CONTENT.size:
            raise self._malformed(f"a content header of {len(payload)} octets has no size")
        class_id, weight, size = CONTENT.unpack_from(payload)
        if class_id != BASIC:
            raise self._unexpected(f"a content header of class {class_id}")
        if weight:
            raise self._malformed(f"the weight of a content header is {weight}, not 0")
        end = codec.native.properties_end(payload, CONTENT.size) if codec.COMPILED else -1
        if end < 0:
            try:
                end = stored_properties.skip(payload, CONTENT.size, len(payload))
            except FieldError as problem:
                raise self._malformed(str(problem)) from problem
        if end != len(payload):
            raise self._malformed(f"{len(payload) - end} octets follow the last property")
        return payload[CONTENT.size :], size

    def _unexpected(self, what: str) -> ConnectionProblem:
        match self._content:
            case None:
                return ConnectionProblem(
                    ReplyCode.UNEXPECTED_FRAME, f"{what} without Basic.Publish on channel {self.number}"
                )
            case _Published():
                missing = "the content header"
            case _Whole() | _Long():
                missing = "the body"
            case other:
                assert_never(other)
        text = f"{what} instead of {missing} of Basic.Publish on channel {self.number}"
        return ConnectionProblem(ReplyCode.UNEXPECTED_FRAME, text, BasicPublish.CLASS, BasicPublish.METHOD)

    def interrupted(self) -> ConnectionProblem:
        """Return the problem of a method between a Basic.Publish and the end of its body."""
        return self._unexpected("a method")

    def _malformed(self, text: str) -> ConnectionProblem:
        return ConnectionProblem(ReplyCode.FRAME_ERROR, text, BasicPublish.CLASS, BasicPublish.METHOD)

    def _too_much(self, octets: int, missing: int) -> ConnectionProblem:
        return self._malformed(f"a body frame has {octets} octets, and the body misses {missing}")

    def _refused(self, code: ReplyCode, text: str) -> ChannelProblem:
        return ChannelProblem(code, text, BasicPublish.CLASS, BasicPublish.METHOD)


def widened_header(payload: bytes) -> bytes:
    """Translate the payload of a header frame from OpenAMQ's form. Raises `ConnectionProblem`."""
    try:
        return payload[: CONTENT.size] + openamq.widened_properties(payload[CONTENT.size :])
    except FieldError as problem:
        raise ConnectionProblem(ReplyCode.FRAME_ERROR, str(problem)) from problem


def _run(channel: int, method: BasicPublish, head: bytes, flags: int, body: bytes) -> PublishRun:
    return PublishRun(
        channel, method.exchange, method.routing_key, method.mandatory, Bodies([body]), [head], flags
    )
