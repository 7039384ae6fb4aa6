"""Subscriptions and feeds: iterators over messages, with a timeout."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from omq.blocking.entered import EnteredIterator
from omq.blocking.opened import OpenMessage
from omq.blocking.portal import Portal, checked
from omq.client import Envelope, EnvelopeRun, Message, MessageRun, Topic
from omq.client import Feed as AsyncFeed
from omq.client import Subscription as AsyncSubscription

Source = TypeVar("Source")
Item = TypeVar("Item")
Run = TypeVar("Run")


class Receiving(EnteredIterator[Source], ABC, Generic[Source, Item, Run]):
    """An iterator over messages, and over runs of messages."""

    def __init__(
        self,
        portal: Portal,
        make: Callable[[], AbstractAsyncContextManager[Source]],
        timeout: float | None,
    ) -> None:
        """Subscribe as `make` says. Raises ValueError for a `timeout` that cannot be."""
        self._timeout = checked(timeout)
        super().__init__(portal, portal.enter(make))
        self.ended = False
        """Whether the topic was deleted, after which there is no further message. To close this does not set
        it.
        """
        # The client's thread fills these. So messages that have arrived are not lost when Ctrl-C interrupts a
        # call: the next call returns them.
        self._items: deque[Item] = deque()
        self._runs: deque[Run] = deque()

    def __next__(self) -> Item:
        try:
            item = self.receive(self._timeout)
        except TimeoutError:
            raise StopIteration from None
        if item is None:
            raise StopIteration
        return item

    def receive(self, timeout: float | None = None) -> Item | None:
        """Return the next message, or None when the topic was deleted or this is closed.

        Raises TimeoutError when none arrives within `timeout` seconds (None waits without limit); and as
        iteration does.
        """
        return self._next(self._items, self._take_items, timeout)

    def next_run(self, timeout: float | None = None) -> Run | None:
        """Return the next run of messages that arrived together. Otherwise the same as `receive`."""
        return self._next(self._runs, self._take_run, timeout)

    def runs(self) -> Iterator[Run]:
        """Iterate over the messages in runs of those that arrived together, which is faster. Do not iterate
        over single messages then.
        """
        while True:
            try:
                run = self.next_run(self._timeout)
            except TimeoutError:
                return
            if run is None:
                return
            yield run

    def _next(
        self, taken: "deque[_T]", take: Callable[[], Awaitable[None]], timeout: float | None
    ) -> "_T | None":
        if not taken and not self.ended:
            self._portal.call_within(timeout, take)
        return taken.popleft() if taken else None

    # -- in the client's thread ----------------------------------------------------------------------------

    async def _take_items(self) -> None:
        run = await self._received()
        if run is None:
            self.ended = not self._is_left
        else:
            self._items += self._items_of(run)

    async def _take_run(self) -> None:
        run = await self._received()
        if run is None:
            self.ended = not self._is_left
        else:
            self._runs.append(run)

    @abstractmethod
    async def _received(self) -> Run | None:
        """Wait for the next run; None when the topic was deleted."""

    @abstractmethod
    def _items_of(self, run: Run) -> Iterable[Item]:
        """Return the messages of a run."""


_T = TypeVar("_T")


class Subscription(Receiving[AsyncSubscription, Message, MessageRun]):
    """Messages of one topic, in order. `Client.subscribe` creates it; one thread at a time may use it.

    `for message in subscription` gives `Message` objects (`id`, `topic`, `body`); `for run in
    subscription.runs()` gives `MessageRun`s of messages that arrived together, which is faster. Use one of
    the two. Iteration ends when no message arrives within the `timeout` of `Client.subscribe`, and may then
    be begun again; or when the topic is deleted (`ended` is True then).

    With credit, the subscription confirms a message when the caller asks for the next one, or passes the
    message to `received`. A message whose handler raised, and the last one before the end of the loop, stays
    unconfirmed, and goes to another worker when this subscription is closed.

    Iteration raises ConnectionLost when the connection ends for good, after the messages that arrived before;
    with credit it drops those, because other workers get them.
    """

    @property
    def topic(self) -> Topic | None:
        """The topic that the server subscribed us to, with its id."""
        return self._opened.topic

    def received(self, message: Message | int) -> None:
        """Confirm a message now, before the next one is asked for. Only with credit: otherwise this raises
        ValueError.
        """
        self._portal.call(self._opened.received, message)

    async def _take_items(self) -> None:
        if self._opened.credit is None:
            await super()._take_items()
            return
        # One by one, because a request for the next message confirms the last one.
        message = await anext(self._opened, None)
        if message is None:
            self.ended = not self._is_left
        else:
            self._items.append(message)

    async def _received(self) -> MessageRun | None:
        return await self._opened.next_run()

    def _items_of(self, run: MessageRun) -> list[Message]:
        return run.messages()


class Feed(Receiving[AsyncFeed, Envelope, EnvelopeRun]):
    """Messages of one topic, in order, with their heads. `Client.feed` creates it; one thread at a time may
    use it.

    `for envelope in feed` gives `Envelope` objects (`head`, `body`); `for run in feed.runs()` gives
    `EnvelopeRun`s of messages that arrived together, which is faster. `for message in feed.opened()` gives
    messages of any size, whose bodies are received in pieces. Use one of the three. Iteration ends when no
    message arrives within the `timeout` of `Client.feed`, and may then be begun again; or when the topic is
    deleted (`ended` is True then).

    The first two hold each message whole. Before one whose body has more than 64 MiB they raise BodyTooLong;
    then `opened` goes on with it.

    Iteration raises ConnectionLost when the connection broke or the server stopped, and FeedFailed when the
    server ended the feed for another reason.
    """

    def __init__(
        self,
        portal: Portal,
        make: Callable[[], AbstractAsyncContextManager[AsyncFeed]],
        timeout: float | None,
    ) -> None:
        super().__init__(portal, make, timeout)
        self._open_messages: deque[OpenMessage] = deque()
        self._last_opened: OpenMessage | None = None

    @property
    def topic(self) -> bytes:
        """The topic's name."""
        return self._opened.topic

    def opened(self) -> Iterator[OpenMessage]:
        """Iterate over messages of any size without holding their bodies: a body of more than 1 MiB is
        received while it is read, see `OpenMessage`. Use nothing else of the feed then.
        """
        while True:
            try:
                message = self.next_opened(self._timeout)
            except TimeoutError:
                return
            if message is None:
                return
            yield message

    def next_opened(self, timeout: float | None = None) -> OpenMessage | None:
        """Return the next message of `opened`, after the rest of the last one was skipped; None when the
        topic was deleted or this is closed.

        Raises TimeoutError when neither a message nor octets of that rest arrive within `timeout` seconds
        (None waits without limit); and as iteration does.
        """
        last = self._last_opened
        if last is not None and not self._is_left:
            last.skip(timeout)
        self._last_opened = message = self._next(self._open_messages, self._take_opened, timeout)
        return message

    async def _take_opened(self) -> None:
        message = await anext(self._opened.opened(), None)
        if message is None:
            self.ended = not self._is_left
        else:
            opened = OpenMessage(self._portal, message, self._timeout)
            await opened.take_held()
            self._open_messages.append(opened)

    async def _received(self) -> EnvelopeRun | None:
        return await self._opened.next_run()

    def _items_of(self, run: EnvelopeRun) -> Iterable[Envelope]:
        return run.envelopes()
