"""A large message on its way to a topic, piece by piece: the common part, and the way into a store."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from omq.drivers.confirmation import Confirmation
from omq.drivers.driver import Driver
from omq.drivers.problems import for_clients
from omq.drivers.producers import NO_PRODUCERS
from omq.drivers.reasons import Refused
from omq.drivers.sequences import Origin, producers_of
from omq.threads import in_thread
from omq_storage.crc import crc32c
from omq_storage.errors import StoreError
from omq_storage.fragments import FRAGMENT_OCTETS, Fragments, Uploaded

PORTION_OCTETS = 1 << 20
"""The octets that a message collects for a commit if the memory allows it; else it collects a fragment."""

SMALL_OCTETS = 4096
"""Octets that arrive are joined with the ones before them if they are fewer: each object of Python takes
memory of its own, which is many times as much for a client that sends one octet at a time.
"""


class Upload(ABC):
    """Takes the body of one message as it arrives. It holds a fragment, and more while memory is free.

    Call `close` at the end in any case: it deletes the octets that did not become a message. Another task may
    call it at any time, because a channel or a link may end while a part of its message waits to be written.
    """

    def __init__(self, driver: Driver) -> None:
        """Begin a message to a topic."""
        self._driver = driver
        self._collected: list[bytes | bytearray] = []
        self._octets = 0
        self._taken = 0  # octets of the memory for uploads
        self._size = 0
        self._checksum = 0
        self._is_posted = False
        self._is_used = False
        """Whether it writes, reads or posts."""
        self._is_closed = False

    async def add(self, octets: bytes) -> None:
        """Take the next octets of the body, and write them when they suffice. Raises Refused."""
        if len(octets) >= SMALL_OCTETS:
            self._collected.append(octets)
        elif self._collected and isinstance(last := self._collected[-1], bytearray):
            last += octets
        else:
            self._collected.append(bytearray(octets))
        self._octets += len(octets)
        self._size += len(octets)
        self._checksum = crc32c(octets, self._checksum)
        if self._octets < FRAGMENT_OCTETS:
            return
        if not self._taken and self._driver.resources.memory.uploaded.try_take(PORTION_OCTETS):
            self._taken = PORTION_OCTETS
        if self._octets >= max(self._taken, FRAGMENT_OCTETS):
            with self._using():
                await self._write(self._octets // FRAGMENT_OCTETS * FRAGMENT_OCTETS)

    async def _write(self, octets: int) -> None:
        """Write the first octets that are collected. Raises Refused."""
        whole = b"".join(self._collected)
        part = whole[:octets]
        self._collected = [whole[octets:]]
        del whole
        try:
            await self._put(part)
        finally:
            self._give_back()
        self._octets -= octets

    @abstractmethod
    async def _put(self, octets: bytes) -> None:
        """Write the next octets: a multiple of FRAGMENT_OCTETS, except at the end. Raise Refused."""

    async def read_back(self) -> bytes | None:
        """Return the octets that were added; None if no topic keeps them. Then only `close` may be called.
        Raises Refused.
        """
        with self._using():
            if self._octets:
                await self._write(self._octets)
            try:
                return await self._read_back()
            except StoreError as problem:
                raise Refused.of(for_clients(problem)) from problem

    @abstractmethod
    async def _read_back(self) -> bytes | None:
        """Return the octets that were written. Raise Refused and StoreError."""

    async def post(self, head: bytes, origin: Origin | None) -> Confirmation:
        """Post the message, whose body is complete. Raise Refused."""
        with self._using():
            if self._octets:
                await self._write(self._octets)
            confirmation = await self._post(head, origin)
            self._is_posted = True
            return confirmation

    @abstractmethod
    async def _post(self, head: bytes, origin: Origin | None) -> Confirmation:
        """Post the message, whose body is written. Raise Refused."""

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Delay `close` to the end of this block. A part that waits for its commit may still be written, and
        a post may still be made: what was written must not be deleted before.
        """
        self._is_used = True
        try:
            yield
        finally:
            self._is_used = False
            if self._is_closed:
                self.close()

    def close(self) -> None:
        """End the upload; a post that was made stays, and one that waits goes on."""
        self._is_closed = True
        if self._is_used:
            return
        self._collected.clear()
        self._give_back()
        if not self._is_posted:
            self._abandon()

    @abstractmethod
    def _abandon(self) -> None:
        """Delete the octets that were written."""

    def _give_back(self) -> None:
        if self._taken:
            self._driver.resources.memory.uploaded.give(self._taken)
            self._taken = 0


class StoredUpload(Upload):
    """Stores the body in fragments."""

    def __init__(self, driver: Driver, body: int) -> None:
        """Use `begin`."""
        assert driver.writer is not None
        super().__init__(driver)
        self._writer = driver.writer
        self._body = body
        self._index = 0
        self._producers = NO_PRODUCERS

    @classmethod
    async def begin(cls, driver: Driver) -> "StoredUpload":
        """Begin a message to a persistent topic. Raises Refused."""
        assert driver.writer is not None, "a transient topic has no store"
        try:
            return cls(driver, await in_thread(driver.writer.environment.bodies.begin))
        except StoreError as problem:
            raise Refused.of(for_clients(problem)) from problem

    async def post(self, head: bytes, origin: Origin | None) -> Confirmation:
        """See `Upload.post`. While the last octets are written, an earlier post of the producer may fail."""
        self._producers = self._driver.producers.of_post(producers_of([origin]))
        return await super().post(head, origin)

    async def _put(self, octets: bytes) -> None:
        part = Fragments(self._driver.topic.id, self._body, self._index, octets)
        await self._writer.fragments.put(self._driver, part)
        self._index += -(-len(octets) // FRAGMENT_OCTETS)

    async def _read_back(self) -> bytes:
        written = Uploaded(self._body, self._size, self._checksum).message(self._driver.topic.id, 0, 0, b"")
        return await in_thread(partial(self._writer.environment.bodies.loose, written))

    async def _post(self, head: bytes, origin: Origin | None) -> Confirmation:
        uploaded = Uploaded(self._body, self._size, self._checksum)
        confirmation = await self._driver.post_uploaded(uploaded, head, origin, self._producers)
        confirmation.listen(self._abandon)  # if the message was repeated or not stored
        return confirmation

    def _abandon(self) -> None:
        self._writer.environment.bodies.abandon(self._body)
