"""A long message of a producer whose body goes to a disk as it arrives."""

from omq.access.session import Session
from omq.drivers.confirmation import Confirmation
from omq.drivers.reasons import Failure, Refused
from omq.drivers.sequences import Origin
from omq.drivers.uploads import Upload
from omq.protocol.amqp_1_0.long_messages import Beginning, LongOpening
from omq.protocol.amqp_1_0.types import DecodeError
from omq.terminals.amqp_1_0.posted import failed
from omq.terminals.connection.held import HeldPublishes

_FOOTER = b"\x00\x53\x78"
"""The descriptor of the only section that may follow the body."""


async def begun(
    session: Session,
    held: HeldPublishes,
    name: bytes,
    beginning: Beginning,
    opening: LongOpening,
    *,
    is_alone: bool,
) -> "UploadedMessage | None":
    """Begin a message to a topic, or one that is refused; None if it must be held in memory. A connection
    that has `held` messages of the topic holds this one, too: it must not overtake them. One on which other
    messages have begun must not wait for room (`is_alone`): these need it, and cannot go on meanwhile.
    """
    if opening.has_too_much(b"") or beginning.octets > session.max_uploaded_bytes or held.has(name):
        return None
    try:
        with held.excused:
            upload = await session.upload(name, beginning.size, may_wait=is_alone and not held.is_worker)
    except Refused as refused:
        return UploadedMessage(beginning, opening, refused.failure)
    return None if upload is None else UploadedMessage(beginning, opening, upload)


class UploadedMessage:
    """One message. If it is refused, the rest of it is dropped as it comes. Call `close` at the end."""

    def __init__(self, beginning: Beginning, opening: LongOpening, upload: Upload | Failure) -> None:
        """Begin with nothing of the body. The message may be refused already."""
        self._is_kept = True
        self._opening = opening
        self._size = self._left = beginning.size
        self._after = bytearray()
        self._upload = upload

    async def add(self, octets: bytes) -> None:
        """Take the next octets of the message."""
        body, after = octets[: self._left], octets[self._left :]
        self._left -= len(body)
        upload = self._upload
        if isinstance(upload, Failure) or not self._is_kept:
            return
        self._after += after
        if body:
            try:
                await upload.add(body)
            except Refused as refused:
                self._refuse(refused.failure)

    @property
    def must_be_held(self) -> bool:
        """Whether the message can only be stored as a whole: the section that began is not all of its body,
        or much is around it.
        """
        if isinstance(self._upload, Failure) or not self._is_kept:
            return False
        after = bytes(self._after)
        return not _FOOTER.startswith(after[: len(_FOOTER)]) or self._opening.has_too_much(after)

    @property
    def octets(self) -> int:
        """The octets of the message that have come."""
        return len(self._opening.octets) + self._size - self._left + len(self._after)

    async def whole(self) -> bytes | None:
        """Return the octets of the message that have come; None if it goes on here, because it is refused, or
        no topic keeps it. After that only `close` may be called.
        """
        assert isinstance(self._upload, Upload), "a message that is refused need not be held"
        try:
            body = await self._upload.read_back()
        except Refused as refused:
            self._refuse(refused.failure)
            return None
        if body is None:
            self._is_kept = False
            return None
        return self._opening.octets + body + self._after

    def head(self) -> bytes:
        """Return the stored head of the message, which is complete. Raises `DecodeError`."""
        if self._left:
            raise DecodeError(f"the last {self._left} octets of a body of {self._size} are missing")
        if isinstance(self._upload, Failure):
            return self._opening.head(b"") or b""  # which tells whether it is of an idempotent producer
        if not self._is_kept:
            return b""
        head = self._opening.head(bytes(self._after))
        assert head is not None, "otherwise it is held"
        return head

    async def post(self, head: bytes, origin: Origin | None) -> Confirmation:
        """Post the message, unless it was refused."""
        upload = self._upload
        if isinstance(upload, Failure):
            return failed(upload)
        try:
            return await upload.post(head, origin)
        except Refused as refused:
            return failed(refused.failure)

    def _refuse(self, failure: Failure) -> None:
        self.close()
        self._upload = failure

    def close(self) -> None:
        """End it; a post that was made stays, and one that waits goes on."""
        if isinstance(self._upload, Upload):
            self._upload.close()
