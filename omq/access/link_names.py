"""The links of one client by their names, over all its connections.

The name of a link is unique among the links of one direction between two containers. A link of the same name
takes the place of the older one, also from another connection (AMQP 1.0, section 2.6.1, "Naming a Link"):
a client that connects again need not wait until the server notices that its former connection is gone.
"""

from collections.abc import Callable


class LinkNames:
    """The names of one client. Another client may use the same names of containers and links."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str, bool], LinkClaim] = {}

    def steal(self, container: str, name: str, *, is_sender: bool) -> None:
        """End the link that has this name."""
        claim = self._claims.pop((container, name, is_sender), None)
        if claim is not None:
            claim.stolen()

    def claim(self, container: str, name: str, stolen: Callable[[], None], *, is_sender: bool) -> "LinkClaim":
        """Claim the name for a link that is attached, and end the one that has it. `stolen` is called when
        another link takes the place of this one.
        """
        self.steal(container, name, is_sender=is_sender)
        key = container, name, is_sender
        claim = self._claims[key] = LinkClaim(self._claims, key, stolen)
        return claim


class LinkClaim:
    """The name of one link. Release it when the link is over."""

    __slots__ = ("_claims", "_key", "stolen")

    def __init__(
        self,
        claims: "dict[tuple[str, str, bool], LinkClaim]",
        key: tuple[str, str, bool],
        stolen: Callable[[], None],
    ) -> None:
        self._claims = claims
        self._key = key
        self.stolen = stolen

    def release(self) -> None:
        """Give the name up, unless another link has it."""
        if self._claims.get(self._key) is self:
            del self._claims[self._key]
