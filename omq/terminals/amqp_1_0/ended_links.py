"""Links that are over together, because their session or their connection is. They end in slices."""

from collections.abc import Iterable, Iterator
from typing import Any

from omq.access.link_names import LinkClaim
from omq.protocol.amqp_1_0.link import ReceivingLink, SendingLink
from omq.terminals.amqp_1_0.outgoing import Outgoing
from omq.terminals.amqp_1_0.producing import Producing

AnyLink = SendingLink | ReceivingLink

LinkEnd = Outgoing[Any] | Producing
"""The server's end of a link."""


class EndedLinks:
    """Such links (`omq.terminals.connection.endings.EndedPart`)."""

    __slots__ = ("_claims", "_free", "_links")

    def __init__(
        self,
        links: Iterable[tuple[AnyLink, LinkEnd]],
        claims: dict[AnyLink, LinkClaim],
        free: Iterator[None] | None = None,
    ) -> None:
        """Take links that are over. `claims`: theirs, and perhaps those of others. A link that gets the name
        of one of these meanwhile has it, and nothing happens to the one that is over. `free` frees the rest
        of their memory.
        """
        self._links = iter(links)
        self._claims = claims
        self._free = free

    def ending(self) -> Iterator[LinkEnd]:
        """Yield the ends of the links, which must be closed, and give up the names of the links."""
        for link, end in self._links:
            if (claim := self._claims.pop(link, None)) is not None:
                claim.release()
            yield end

    def free(self) -> Iterator[None]:
        """See `EndedPart`."""
        return iter(()) if self._free is None else self._free
