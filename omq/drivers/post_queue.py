"""The posts of one sync level that wait for a commit, and the limits of one commit.

A commit is limited in octets and in idempotent producers: each producer takes a lookup in the store and two
records, which is far more work than a short message. Topics take turns, so a post waits for a few commits at
most, whatever is posted to other topics.
"""

from collections import OrderedDict, deque

import trio

from omq.drivers.posts import Post, StoredDriver

GROUP_OCTETS = 4 << 20
"""The limit of one commit in octets: less than the budget for posts, so that more can arrive meanwhile."""

GROUP_PRODUCERS = 1024
"""A commit with this number of idempotent producers takes no further post. One post of a sink has far fewer.
"""

GROUP_POSTS = 8192
"""The most posts of one commit: each takes some microseconds, however short it is."""

POSTS_IN_TURN = 128
"""The number of posts that are put into a commit after which the other tasks of the server have a turn."""


class CommitGroup:
    """The posts of one commit, which is limited in octets, posts and idempotent producers."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        self._octets = 0
        self._producers = 0

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        return (
            self._octets >= GROUP_OCTETS
            or self._producers >= GROUP_PRODUCERS
            or len(self.posts) >= GROUP_POSTS
        )

    def add(self, post: Post) -> None:
        """Add a post."""
        self.posts.append(post)
        self._octets += post.octets
        self._producers += len(post.producers)


class PostQueue:
    """The posts that wait for a commit. Posts of one topic keep their order."""

    def __init__(self) -> None:
        # In the order of their turns. A plain dict would search for its first entry among all deleted ones.
        self._turns: OrderedDict[StoredDriver, deque[Post]] = OrderedDict()
        self.count = 0
        """The number of the waiting posts."""
        self.octets = 0
        """Their octets."""
        self.messages = 0
        """Their messages."""

    @property
    def is_full(self) -> bool:
        """Whether the waiting posts are enough for a whole commit."""
        return self.octets >= GROUP_OCTETS

    def has(self, driver: StoredDriver) -> bool:
        """Return whether a post of this topic waits."""
        return driver in self._turns

    def add(self, post: Post) -> None:
        """Queue a post after those of its topic."""
        self._turns.setdefault(post.driver, deque()).append(post)
        self.count += 1
        self.octets += post.octets
        self.messages += post.batch.count

    async def next_group(self) -> list[Post]:
        """Take the posts of the next commit, in turn with other tasks. Nothing can cancel this: the posts
        would never be settled.
        """
        group = CommitGroup()
        while self.move_to(group):
            await trio.lowlevel.cancel_shielded_checkpoint()
        return group.posts

    def move_to(self, group: CommitGroup, most: int = POSTS_IN_TURN) -> bool:
        """Move at most `most` posts to a group: one of each topic, then the next of each, and so on. Return
        whether more can be moved.

        The post that reaches a limit of the group is the last one. The next group continues with the topic
        after it.
        """
        for _ in range(most):
            if not self._turns or group.is_full:
                return False
            driver, posts = self._turns.popitem(last=False)
            post = posts.popleft()
            if posts:
                self._turns[driver] = posts
            self.count -= 1
            self.octets -= post.octets
            self.messages -= post.batch.count
            group.add(post)
        return True
