"""The rest of a message of which a part has left: who has it, and how to begin such a message.

- **The channel gives it again** (`GivenAgain`), a piece at a time, from the store. Here nothing of it is
  held. If no message is begun this is the case, too: the channel gives everything again that was not sent.
- **It is in hand** (`InHand`): octets that nobody can give again, or so few of them that it would not be
  worth reading them again. They differ in nothing but who counts them. A little, up to LITTLE_OCTETS, is not
  counted. A transient round-robin topic counts its messages until they are done. Other messages take a share
  of the memory for stalled clients (`omq.drivers.stalled`).
- **It leaves in turns** (`InTurns`), which others have between: a piece that the channel gave, which gives it
  again if it does not leave soon, or a long message in memory, whose channel does not know yet that it is
  begun.
"""

from collections.abc import Sequence
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from omq.drivers.seam import LITTLE_OCTETS, Channel, MessageOutline, Octets, RemainderHolder, Selection
from omq.terminals.connection.forms import Form, MessageInPieces, selection_at
from omq_storage.blocks import FRAME_HEADER, Block

LONG_OCTETS = 256 << 10
"""A message that takes more memory is sent in pieces, where others have their turns between them."""


class GivenAgain(Struct, frozen=True):
    """The channel gives the rest."""

    begun: MessageInPieces | None
    """The message that is begun, if one is."""


class InHand(Struct, frozen=True):
    """The rest of the message that is begun."""

    begun: MessageInPieces
    body: Octets
    """The body from `begun.body` on."""
    share: Block | None
    """The block that takes a share of the memory for stalled clients, if nobody else counts the octets."""


class InTurns(Struct, frozen=True):
    """The rest of a message in memory, or of a piece behind which the channel gives the rest."""

    begun: MessageInPieces
    octets: Octets
    """The whole body, or the whole piece."""
    begin: int
    """The index in the body of their first octet."""
    most: int
    """The octets that leave in one turn."""
    block: Block | None
    """The block of a message in memory; None for a piece."""

    def unsent(self) -> Octets:
        """Return the octets that have not left."""
        return memoryview(self.octets)[self.begun.body - self.begin :]


Left = GivenAgain | InHand | InTurns


class Unfinished:
    """A message of which some pieces have left, each as a whole."""

    __slots__ = ("left",)

    def __init__(self, left: Left) -> None:
        self.left = left


def begin_after(
    form: Form, selections: Sequence[Selection], count: int, octets: int
) -> tuple[Block, MessageInPieces, Octets]:
    """Begin the message after the first `count` ones, of which N `octets` were sent. Return its block, the
    begun message, and the rest of its body.
    """
    selection, message = selection_at(selections, count)
    block = selection.block
    body = block.frame(message)[FRAME_HEADER:]
    begun = _begin(form, selection, message, len(body))
    begun.framed(body)
    begun.sent(octets)
    return block, begun, body[begun.body :]


def left_of(channel: Channel, begun: MessageInPieces, block: Block, body: Octets) -> Left:
    """Return the rest of a message in whose middle the client stalled, with its holder. `body` is the rest of
    the body.
    """
    if len(body) <= LITTLE_OCTETS:
        return InHand(begun, bytes(body), None)
    match channel.rest:
        case RemainderHolder.GIVEN_AGAIN:
            return GivenAgain(begun)
        case RemainderHolder.COUNTED:
            return InHand(begun, body, None)
        case RemainderHolder.HELD:
            return InHand(begun, body, block)
        case other:
            assert_never(other)


def may_pause(left: Left) -> bool:
    """Return whether others may have their turns before this."""
    match left:
        case GivenAgain(begun):
            return begun is not None
        case InHand():
            return False
        case InTurns():
            return True
        case _:
            assert_never(left)


def before_long(selections: tuple[Selection, ...]) -> tuple[Selection, ...]:
    """Return the messages before the first long one."""
    for index, selection in enumerate(selections):
        if selection.block.held > LONG_OCTETS:
            count = _short(selection.block, selection.ids)
            if count < len(selection.ids):
                short = (replace(selection, ids=selection.ids[:count]),) if count else ()
                return (*selections[:index], *short)
    return selections


def _short(block: Block, ids: range) -> int:
    """Return the number of these messages before the first long one among them."""
    at = ids[0]
    while at <= ids[-1]:
        whole = block.messages_within(at, LONG_OCTETS)
        if not whole and at in ids:
            return ids.index(at)
        at += max(whole, 1)
    return len(ids)


def begin_long(form: Form, selection: Selection, most: int) -> InTurns:
    """Begin the long message of a selection, N octets (`most`) in a turn. Nothing of it has left."""
    block, message = selection.block, selection.ids[0]
    body = memoryview(block.frame(message))[FRAME_HEADER:]
    return InTurns(_begin(form, selection, message, len(body)), body, 0, most, block)


def _begin(form: Form, selection: Selection, message: int, size: int) -> MessageInPieces:
    """Begin a message in memory, whose body has N octets (`size`)."""
    block = selection.block
    time, head = block.message_time(message), block.head(message)
    return form.begin(
        MessageOutline(
            block.topic, message, time, head, size, selection.deliveries, is_settled=selection.is_settled
        )
    )
