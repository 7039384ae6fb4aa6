"""What became of the messages that were published: which are safe, which were refused, which may be lost.

Messages are numbered as they are queued, over all connections of a client. Every Confirm that is answered, no
matter who asked and whether they still wait, settles those before it; so does the loss of a connection. What
went wrong is kept as news, and every task that it may concern is told of it once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakSet

from trio.lowlevel import Task, current_task

from omq.client.errors import MOST_REFUSALS, ConnectionLost, PublishRefused

MOST_NEWS = 64
"""How many failures are kept apart. Beyond that the oldest become one, so that somebody may be told of a
failure that is not theirs, but nobody misses one that is.
"""


@dataclass(slots=True, eq=False)
class News:
    """Of the messages after number `start`, up to and with `end`, some were refused or may be lost."""

    start: int
    end: int
    text: str
    command: str = ""
    argument: bytes = b""
    refusals: tuple[str, ...] = ()
    lost: bool = False
    private: bool = False
    """All of it is one message, and the one who published it waits to be told."""
    told: bool = False
    """Whether somebody was told who can be expected to act on it."""
    told_to: WeakSet[Task] = field(default_factory=WeakSet)


class Ledger:
    """The messages of a client, by number, and the news of them."""

    def __init__(self) -> None:
        self.published = 0
        """The number of the last message that was queued."""
        self.settled = 0
        """The fate of messages up to this number is known, or known to be unknown."""
        self.publisher: Task | None = None
        """The task that published last: it need not be looked up."""
        self._news: list[News] = []
        self._seen: WeakKeyDictionary[Task, int] = WeakKeyDictionary()

    # -- who publishes and asks ----------------------------------------------------------------------------

    def see(self) -> None:
        """The current task is about to publish: messages from here on concern it."""
        self.publisher = current_task()
        self._seen.setdefault(self.publisher, self.published)

    def see_asking(self) -> None:
        """The current task asks. If it has not published, what nobody was told yet concerns it."""
        task = current_task()
        if task not in self._seen:
            untold = (news.start for news in self._news if not news.told)
            self._seen[task] = min(untold, default=self.settled)

    # -- what has become of messages -----------------------------------------------------------------------

    @property
    def unsettled(self) -> bool:
        return self.published > self.settled

    def settle(self, end: int) -> None:
        """Messages up to number `end` are safe, but for those there is news of."""
        self.settled = max(self.settled, end)

    def refused(
        self, end: int, text: str, command: str, argument: bytes, refusals: Iterable[str], *, private: bool
    ) -> None:
        """Of the messages that were not settled, up to number `end`, some were refused."""
        news = News(self._start(end), end, text, command, argument, tuple(refusals))
        self._add(news, private=private)

    def lost(self, text: str, *, private: bool) -> None:
        """The connection is gone, and with it perhaps all that was not settled."""
        if self.unsettled:
            self._add(News(self.settled, self.published, text, lost=True), private=private)

    def _start(self, end: int) -> int:
        return min(self.settled, end - 1)

    def _add(self, news: News, *, private: bool) -> None:
        news.private = news.told = private and news.end - news.start == 1
        self.settle(news.end)
        self._news.append(news)
        if len(self._news) > MOST_NEWS:
            first, second = self._news[:2]
            self._news[:2] = [_merged(first, second)]

    # -- telling -------------------------------------------------------------------------------------------

    def tell(self, end: int) -> None:
        """Raise what the current task was not told of messages up to number `end`."""
        task = current_task()
        since = self._seen.get(task, 0)
        found = [
            news for news in self._news if news.end > since and news.start < end and task not in news.told_to
        ]
        for news in found:
            news.told = True
        self._raise(found)

    def tell_publisher(self, number: int) -> None:
        """The same, for a task that asks about its message `number`: without what others were told who wait
        for messages of their own.
        """
        task = current_task()
        since = self._seen.get(task, 0)
        self._raise(
            [
                news
                for news in self._news
                if news.start < number
                and news.end > since
                and task not in news.told_to
                and (news.end >= number or not news.private)
            ]
        )

    def tell_untold(self) -> None:
        """Raise what nobody was told of."""
        found = [news for news in self._news if not news.told]
        for news in found:
            news.told = True
        self._raise(found)

    def loss_told(self, *, to_all: bool) -> None:
        """The current task is told that a connection was lost, which is all there is to say. It speaks for
        all when it asked about all messages, and not only about its own.
        """
        task = current_task()
        for news in self._news:
            if news.lost:
                news.told_to.add(task)
                news.told = news.told or to_all

    def _raise(self, found: list[News]) -> None:
        if not found:
            return
        task = current_task()
        for news in found:
            news.told_to.add(task)
        refusals = tuple(refusal for news in found for refusal in news.refusals)[:MOST_REFUSALS]
        for news in found:
            if news.lost:
                raise ConnectionLost("; ".join((news.text, *refusals)))
        last = found[-1]
        raise PublishRefused(last.text, last.command, last.argument, refusals)


def _merged(first: News, second: News) -> News:
    both = News(
        first.start,
        second.end,
        first.text if first.lost else second.text,
        second.command or first.command,
        second.argument or first.argument,
        (*first.refusals, *second.refusals)[:MOST_REFUSALS],
        lost=first.lost or second.lost,
        private=first.private and second.private,
        told=first.told and second.told,
    )
    both.told_to.update(task for task in first.told_to if task in second.told_to)
    return both
