"""Messages of many stored topics that one read has brought, as one post for the writer of their level.

The compiled codec collects them (`omq_storage.routes`), and makes the stored values of a whole commit at
once. So Python does nothing for a single topic or message. A commit that fails is tried again topic by topic,
as other posts are: only then has each topic a post and an outcome of its own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from omq.drivers.confirmation import Confirmation, all_of
from omq.drivers.posts import Post
from omq.drivers.reasons import DELETED, Failure
from omq_storage.batches import Bodies

if TYPE_CHECKING:
    from omq_storage._codec import StorePart


class RoutedPost:
    """The messages of one read for the topics of one level. Each topic keeps their order."""

    __slots__ = ("_part", "_posts", "confirmation", "held", "messages")

    def __init__(self, part: "StorePart") -> None:
        self._part: StorePart | None = part
        self.messages = part.messages
        self.held = part.held
        """The octets that they take of the memory for posts."""
        self.confirmation = Confirmation()
        """It is settled when the outcome of all messages is known. See `failures`."""
        self._posts: list[tuple[bytes, int, Confirmation]] = []

    def failures(self) -> Iterator[tuple[bytes, int, Failure]]:
        """Return the topics whose messages failed: the name, the number of the messages, and the failure."""
        for name, count, confirmation in self._posts:
            if confirmation.failure is not None:
                yield name, count, confirmation.failure

    @property
    def failed(self) -> int:
        """The number of the topics whose messages failed, when the outcome is known."""
        return 0 if self.confirmation.failure is None else sum(1 for _ in self.failures())

    def take(self) -> "StorePart":
        """Return the messages, once: the post may outlive its commit, and must not keep their memory."""
        part, self._part = self._part, None
        assert part is not None, "a post is committed once"
        return part

    def divided(self, part: "StorePart") -> Iterator[Post]:
        """Return a post for each topic. Its outcomes are those of the posts from now on."""
        for place, (name, driver) in enumerate(zip(part.names, part.owners(), strict=True)):
            batch = Bodies(part.bodies(place))
            confirmation = Confirmation()
            self._posts.append((name, batch.count, confirmation))
            if driver is None:
                confirmation.settle(DELETED)
            else:
                yield Post(driver, batch, batch.octets, confirmation, failures=driver.failures)
        self.confirmation.settle_as(all_of(confirmation for _, _, confirmation in self._posts))
