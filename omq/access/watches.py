"""The watchers of the server. It collects the statistics of topics once for all of them.

A round begins when the period of a watcher is over and everything of its last round is sent. So a watcher
that does not read is told less, and nothing is held for it except the list of topics that it must still be
told of. A look at all topics finds those that have changed since the last look, and gives each of these a new
revision. A round of a watcher has the topics whose revisions are above that of its last round. Their numbers
are read when they are sent, a few at a time.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator

import trio

from omq import watching
from omq.access.administered_server import AdministeredServer
from omq.access.limits import Quota, spent
from omq.access.quotas import MOST_WATCHERS
from omq.access.rights import Names, Rights
from omq.access.session import Session
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.reasons import Reason, Refused
from omq.drivers.signal import Signal
from omq.drivers.slices import Slices
from omq.model import Topic

TOPICS_A_FRAME = 50
"""The greatest number of topics in one Statistics.t: about half a millisecond of work."""

LINES_A_FRAME = 10
"""The greatest number of lines of the log in one Statistics.t: a line may need many escapes."""

IDS_A_FRAME = 1000
"""The greatest number of deleted topics in one Statistics.t."""

MOST_GONE = 10_000
"""The greatest number of deleted topics that are remembered. A watcher that has missed more begins again."""

TOPICS_A_STEP = 64
"""The number of topics that are examined between two looks at the clock, to find the deleted ones."""


class _Seen:
    """A topic as the last look found it."""

    __slots__ = ("behind", "driver", "look", "mark", "revision")

    def __init__(self) -> None:
        self.driver: Driver | None = None
        self.mark = 0
        """The hash of `Driver.mark`: a change that gives the same one is found at the next change."""
        self.behind = 0
        self.revision = 0
        self.look = 0


class Watcher:
    """One connection that watches. Its terminal sends what `take` gives, one after another."""

    def __init__(
        self,
        watches: "Watches",
        rights: Callable[[], Rights],
        quota: Quota,
        period: int,
        wake: Callable[[], None],
    ) -> None:
        """Create a watcher that watches nothing. `rights` returns those of the client now, and `quota` counts
        its watchers. `wake` is called when a round begins.
        """
        self._watches = watches
        self.quota = quota
        self._rights = rights
        self._wake = wake
        self._period = period / 1000
        self._sends: Iterator[watching.Statistics] | None = None
        self.due = math.inf
        """When its next round begins."""
        self.revision = 0
        """The revision of its last round."""
        self.allowed = self.watch
        """The topics that it might watch in its last round."""
        self.line = 0
        """The number of the last line of the log that it was told."""

    @property
    def watch(self) -> Names:
        """The topics that it may watch now."""
        return self._rights().watch

    @property
    def is_idle(self) -> bool:
        """Whether everything of its last round is taken."""
        return self._sends is None

    def start(self) -> None:
        """Begin the first round soon: the client knows that it watches."""
        self.due = trio.current_time()
        self._watches.moved()

    def begin(self, changed: list[_Seen], gone: list[int], *, again: bool) -> None:
        """Begin a round."""
        self.due = trio.current_time() + self._period
        self._sends = self._round(changed, gone, again=again)
        self._wake()

    def take(self) -> watching.Statistics | None:
        """Return the frame to send next; None until the next round."""
        if self._sends is None:
            return None
        taken = next(self._sends, None)
        if taken is None:
            self._sends = None
            self._watches.moved()
        return taken

    def close(self) -> None:
        """Watch no more. Further calls do nothing."""
        self._sends = None
        self._watches.remove(self)

    def _round(self, changed: list[_Seen], gone: list[int], *, again: bool) -> Iterator[watching.Statistics]:
        if again:
            yield watching.Began(round(self._period * 1000))
        if self.watch.are_all:
            yield self._watches.administered.totals(self._watches.used)
            lines = self._watches.administered.warnings(self.line)
            for start in range(0, len(lines), LINES_A_FRAME):
                some = lines[start : start + LINES_A_FRAME]
                self.line = some[-1].number
                yield watching.Warnings(some)
        for start in range(0, len(gone), IDS_A_FRAME):
            yield watching.Gone(tuple(gone[start : start + IDS_A_FRAME]))
        while changed:
            found = []
            allowed = self.watch  # which a reload may have changed since the round began
            for seen in changed[-TOPICS_A_FRAME:]:
                driver = seen.driver
                if driver is not None and not driver.deleted and driver.topic.topic in allowed:
                    found.append(_topic(driver, seen.behind))
            del changed[-TOPICS_A_FRAME:]
            yield watching.Topics(_now(), tuple(found))
        yield watching.Complete(_now())


class Watches:
    """All watchers of a server. The server runs `run` as a task."""

    def __init__(self, catalogue: Catalogue, administered: AdministeredServer) -> None:
        self._catalogue = catalogue
        self.administered = administered
        self._watchers: dict[Watcher, None] = {}
        self._signal = Signal()
        self._look = 0
        self._revision = 0
        # By the ids of the topics; those that have changed last are at the end.
        self._seen: dict[int, _Seen] = {}
        self._gone: deque[tuple[int, Topic]] = deque()  # deleted topics, with their revisions
        self._forgotten = 0
        """The highest revision of a deleted topic that is not remembered any more."""

    @property
    def used(self) -> int:
        """The number of watchers."""
        return len(self._watchers)

    def add(
        self,
        session: Session,
        period: int,
        wake: Callable[[], None],
        instead: Watcher | None,
    ) -> Watcher:
        """Return a new watcher of this session; the caller closes `instead`, one of the same session, which
        does not count. Raises Refused.
        """
        replaced = int(instead in self._watchers)
        if len(self._watchers) - replaced >= MOST_WATCHERS:
            what = f"there are {MOST_WATCHERS} connections that watch, the most there may be"
            raise Refused(Reason.QUOTA, what)
        quota = session.watchers
        if quota.most is not None and quota.used - replaced >= quota.most:
            raise spent(quota, session.quota_owner, "watching connection")
        watcher = Watcher(self, lambda: session.rights, quota, period, wake)
        quota.used += 1
        self._watchers[watcher] = None
        self._signal.set()
        return watcher

    def remove(self, watcher: Watcher) -> None:
        """See `Watcher.close`."""
        if watcher in self._watchers:
            del self._watchers[watcher]
            watcher.quota.give()
            self._signal.set()

    def moved(self) -> None:
        """Look again: a watcher is due, or has taken all of its round."""
        self._signal.set()

    async def run(self) -> None:
        """Begin the rounds of the watchers, until cancelled."""
        while True:
            if not self._watchers:
                self._seen.clear()
                self._gone.clear()
                self._forgotten = self._revision
                await self._signal.wait()
                continue
            idle = [watcher for watcher in self._watchers if watcher.is_idle]
            due = min((watcher.due for watcher in idle), default=math.inf)
            if due > trio.current_time():
                with trio.CancelScope(deadline=due):
                    await self._signal.wait()
                continue
            await self._look_at_topics()
            now = trio.current_time()
            for watcher in idle:
                if watcher.due <= now and watcher in self._watchers:
                    await self._begin(watcher)

    async def _begin(self, watcher: Watcher) -> None:
        """Tell a watcher the changes since its last round."""
        allowed = watcher.watch
        # A revision says nothing about topics that the client might not watch before, or may no longer watch.
        again = not watcher.revision or watcher.revision < self._forgotten or allowed != watcher.allowed
        watcher.allowed = allowed
        since = 0 if again else watcher.revision
        changed: list[_Seen] = []
        slices = Slices()
        for seen in reversed(self._seen.values()):  # which changes in this task only
            if seen.revision <= since:
                break
            await slices.step()
            if seen.driver is not None and seen.driver.topic.topic in allowed:
                changed.append(seen)
        gone = [
            topic.id
            for revision, topic in self._gone
            if not again and revision > since and topic.topic in allowed
        ]
        if watcher in self._watchers:
            watcher.begin(changed, gone, again=again and watcher.revision > 0)
            watcher.revision = self._revision

    async def _look_at_topics(self) -> None:
        """Find the topics that have changed."""
        self._look += 1
        self._revision += 1
        slices = Slices()
        for driver in self._catalogue.in_turn():
            await slices.step()
            if driver.deleted:
                continue
            seen = self._seen.get(driver.topic.id)
            if seen is None:
                seen = self._seen[driver.topic.id] = _Seen()
            seen.look = self._look
            mark = hash(driver.mark())
            if seen.driver is driver and mark == seen.mark and not seen.behind:
                continue
            behind = await driver.lag(slices) if driver.subscriber_count() else 0
            if seen.driver is not driver or mark != seen.mark or behind != seen.behind:
                seen.driver, seen.mark, seen.behind = driver, mark, behind
                seen.revision = self._revision
                del self._seen[driver.topic.id]
                self._seen[driver.topic.id] = seen
        await self._forget(slices)

    async def _forget(self, slices: Slices) -> None:
        """Find the topics that are no more."""
        gone = []
        for number, (id, seen) in enumerate(self._seen.items()):
            if not number % TOPICS_A_STEP:
                await slices.step()
            if seen.look != self._look:
                gone.append(id)
        for id in gone:
            driver = self._seen.pop(id).driver
            if driver is not None:
                self._gone.append((self._revision, driver.topic))
        while len(self._gone) > MOST_GONE:
            self._forgotten, _ = self._gone.popleft()


def _topic(driver: Driver, behind: int) -> watching.TopicWatch:
    info, numbers = driver.info(), driver.statistics()
    octets, seconds = driver.retention
    return watching.TopicWatch(
        id=info.id,
        topic=info.topic,
        delivery=info.delivery,
        persistence=info.persistence,
        messages=info.messages,
        octets=info.bytes,
        first=info.first,
        last=info.last,
        subscribers=info.subscribers,
        ready=driver.ready,
        unconfirmed=numbers.unsettled,
        behind=behind,
        messages_in=numbers.messages_in,
        octets_in=numbers.octets_in,
        messages_out=numbers.messages_out,
        octets_out=numbers.octets_out,
        waiting=numbers.waiting_publishers,
        failures=numbers.failures,
        retention_octets=octets,
        retention_ms=None if seconds is None else round(1000 * seconds),
    )


def _now() -> int:
    return time.time_ns() // 1000
