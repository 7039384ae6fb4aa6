"""The form in which a connection sends messages: how a protocol frames them.

A `Form` belongs to one source of messages. A protocol with several channels on one connection gives each of
its consumers a form of its own, which has the channel and numbers the deliveries.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from omq.drivers.seam import MessageOutline, Octets, Selection


class MessageInPieces(Protocol):
    """One message that leaves in pieces, and the number of its octets that have left."""

    @property
    def body(self) -> int:
        """The octets of its body that have left for good: less than all of them until `is_done`."""

    @property
    def is_begun(self) -> bool:
        """Whether any octet of it has left. Then the rest must follow."""

    @property
    def is_done(self) -> bool:
        """Whether all of it has left."""

    def framed(self, octets: Octets) -> Sequence[Octets]:
        """Frame a piece of the body, which begins at octet `body`. Whatever must stand before the piece and
        has not left, such as the rest of a header, comes first.
        """

    def sent(self, octets: int) -> None:
        """Note that N `octets` of the last result of `framed` have left."""

    def given_up(self, *, is_done: bool) -> "AbandonedMessage | None":
        """Give the rest of the message up. `is_done`: the message counts as sent, and is not settled by its
        subscriber. Return None where the protocol has no words for it, and nothing else may follow.
        """


class AbandonedMessage(msgspec.Struct, frozen=True):
    """A message of which a part has left, and whose rest will not."""

    message: int
    octets: Octets
    """Octets after those that have left, which tell the client that the rest does not come."""


class Form(Protocol):
    """The framing of the messages of one source. omq and DMP put an opening before the body
    (`ContiguousMessage`); a protocol that cuts bodies into frames has a `MessageInPieces` of its own.
    """

    framed: int
    """The number of messages that the last call of `whole` framed: the first ones of its selections."""

    def whole(self, selections: Sequence[Selection]) -> Sequence[Octets]:
        """Frame these messages, one after another: at most 1,024 parts for 512 selections. A protocol with
        windows for what it sends leaves out those that do not fit, and those whose credit the client has
        withdrawn. A form that writes heads leaves out messages when the portion of a step is spent
        (`omq.protocol.amqp.portions`): another call frames them, unless this one framed none.
        """

    def sent(self, selections: Sequence[Selection], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        """Return the number of whole messages in the first `octets` of the last result of `whole`, and the
        number of octets of the next one. That one goes on with `begin`; `whole` frames the later ones again.
        """

    def begin(self, message: MessageOutline) -> MessageInPieces:
        """Start to send one message in pieces."""


class ContiguousMessage:
    """A message whose body follows its opening without anything between, as in omq and DMP."""

    __slots__ = ("_opening", "_size", "body", "is_begun")

    def __init__(self, opening: bytes, size: int) -> None:
        """Create a message of which nothing has left, with an `opening` that is never empty."""
        self._opening = opening  # the octets of it that have not left
        self._size = size
        self.body = 0
        self.is_begun = False

    @property
    def is_done(self) -> bool:
        return not self._opening and self.body == self._size

    def framed(self, octets: Octets) -> Sequence[Octets]:
        return (self._opening, octets) if self._opening else (octets,)

    def sent(self, octets: int) -> None:
        self.is_begun = self.is_begun or octets > 0
        opening, self._opening = self._opening, self._opening[octets:]
        self.body += octets - (len(opening) - len(self._opening))

    def given_up(self, *, is_done: bool) -> None:
        return None


def selection_at(selections: Sequence[Selection], index: int) -> tuple[Selection, int]:
    """Return the selection with the message at this index among all of these, and the message."""
    for selection in selections:
        if index < len(selection.ids):
            return selection, selection.ids[index]
        index -= len(selection.ids)
    raise IndexError(index)


def selections_behind(selections: Sequence[Selection], count: int) -> Sequence[Selection]:
    """Return these selections without their first `count` messages."""
    for index, selection in enumerate(selections):
        if not count:
            return selections[index:]
        if count < len(selection.ids):
            return [msgspec.structs.replace(selection, ids=selection.ids[count:]), *selections[index + 1 :]]
        count -= len(selection.ids)
    return ()
