"""Exchanges and queues with many bindings that end: no message takes these from then on, and they are removed
in steps, between which others have their turn.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
from exchange_helpers import exchange, queue
from served_drivers import Drivers, opened

from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Refused
from omq.exchanges.bindings import STEP
from omq.exchanges.exchanges import ExchangeRegistry
from omq.protocol.amqp.fields import LongString, Table
from omq.protocol.steps import finished

BINDINGS = 10 * STEP


@pytest.fixture
async def drivers(tmp_path: Path) -> AsyncIterator[Drivers]:
    async with opened(tmp_path / "store") as drivers:
        yield drivers


@pytest.fixture
async def exchanges(drivers: Drivers) -> ExchangeRegistry:
    """Return exchanges of which `amq.direct` and `e` lead to the queue `q`, and to the exchange `f`."""
    exchanges = ExchangeRegistry(drivers.catalogue)
    await drivers.catalogue.declare_queue(b"q", QueueOptions())
    await exchanges.declare(b"e", b"direct", auto_delete=True)
    await exchanges.declare(b"f", b"fanout")
    return exchanges


class Removed(trio.abc.Instrument):
    """The greatest number of bindings that are removed in one step of a task."""

    def __init__(self) -> None:
        self.count = 0
        self.most = 0
        self._before = 0

    def admit(self) -> Callable[[], None]:
        """Count a binding when it is removed."""
        return self._release

    def _release(self) -> None:
        self.count += 1

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, self.count - self._before)
        self._before = self.count


async def removed_by(end: Callable[[], Awaitable[object]], removed: Removed) -> None:
    """Wait until all bindings of an end are removed."""
    trio.lowlevel.add_instrument(removed)
    await end()
    with trio.fail_after(60):
        while removed.count < BINDINGS:
            await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(removed)


def names(exchanges: ExchangeRegistry, source: bytes, key: bytes) -> list[bytes]:
    return [driver.topic.topic for driver in finished(exchanges.route_in_steps(source, key))]


@pytest.mark.parametrize("destination", [queue(b"q"), exchange(b"f")])
async def test_the_bindings_of_an_exchange_are_removed_in_steps(
    destination: object, exchanges: ExchangeRegistry
) -> None:
    removed = Removed()
    bound = queue(b"q") if destination == queue(b"q") else exchange(b"f")
    for number in range(BINDINGS):
        await exchanges.bind(b"e", bound, b"%d" % number, admit=removed.admit)
    await removed_by(lambda: exchanges.delete(b"e"), removed)
    assert 0 < removed.most <= STEP
    assert exchanges.bindings() == []


@pytest.mark.parametrize("name", [b"q", b"f"])
async def test_the_bindings_of_a_destination_are_removed_in_steps(
    name: bytes, exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    removed = Removed()
    for number in range(BINDINGS):
        bound = queue(name) if name == b"q" else exchange(name)
        await exchanges.bind(b"e", bound, b"%d" % number, admit=removed.admit)
    if name == b"q":
        await removed_by(lambda: drivers.catalogue.delete(name), removed)
    else:
        await removed_by(lambda: exchanges.delete(name), removed)
    assert 0 < removed.most <= STEP
    assert exchanges.bindings() == []
    assert not exchanges.has(b"e")  # it was auto-delete


async def test_long_arguments_make_shorter_steps(exchanges: ExchangeRegistry, drivers: Drivers) -> None:
    removed = Removed()
    entries = tuple((b"k%d" % number, LongString(b"v")) for number in range(30))
    await exchanges.declare(b"h", b"headers")
    for number in range(BINDINGS):
        arguments = Table((*entries, (b"x", LongString(b"%d" % number))))
        await exchanges.bind(b"h", queue(b"q"), b"", arguments, removed.admit)
    await removed_by(lambda: drivers.catalogue.delete(b"q"), removed)
    assert 0 < removed.most <= STEP // 30 + 1


async def test_a_queue_with_the_name_of_one_that_has_gone_has_no_binding(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    for number in range(BINDINGS):
        await exchanges.bind(b"amq.direct", queue(b"q"), b"%d" % number)
    deleted = drivers.catalogue.lookup(b"q")
    await drivers.catalogue.delete(b"q")
    await drivers.catalogue.declare_queue(b"q", QueueOptions())
    assert drivers.catalogue.lookup(b"q") is not deleted
    # No other task has had a turn in which it could have removed all bindings.
    assert not [key for key in range(BINDINGS) if names(exchanges, b"amq.direct", b"%d" % key)]
    assert exchanges.bindings() == exchanges.bindings(destination=queue(b"q")) == []
    assert list(exchanges.each_binding()) == []
    for key in (b"0", b"%d" % (BINDINGS // 2), b"%d" % (BINDINGS - 1)):
        await exchanges.bind(b"amq.direct", queue(b"q"), key)
        assert names(exchanges, b"amq.direct", key) == [b"q"]
    assert len(exchanges.bindings(b"amq.direct")) == 3


async def test_an_exchange_with_the_name_of_one_that_ended_has_no_binding(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    """It ended with its last binding, and itself was the destination of many."""
    for number in range(BINDINGS):
        await exchanges.bind(b"f", exchange(b"e"), b"%d" % number)
    await exchanges.bind(b"e", queue(b"q"), b"k")
    assert names(exchanges, b"f", b"k") == [b"q"]
    await drivers.catalogue.delete(b"q")
    assert not exchanges.has(b"e")
    assert exchanges.bindings() == []
    await exchanges.declare(b"e", b"fanout")
    await drivers.catalogue.declare_queue(b"q", QueueOptions())
    await exchanges.bind(b"e", queue(b"q"), b"")
    assert names(exchanges, b"f", b"k") == []
    assert names(exchanges, b"e", b"k") == [b"q"]


async def test_a_change_waits_for_the_bindings_of_what_has_gone(
    exchanges: ExchangeRegistry, drivers: Drivers
) -> None:
    """So a client that was told of an end finds gone what ended with it, and may use the names again."""
    for number in range(BINDINGS):
        await exchanges.bind(b"e", queue(b"q"), b"%d" % number)
    await drivers.catalogue.delete(b"q")
    await exchanges.swept()
    with pytest.raises(Refused, match="there is no exchange 'e'"):
        exchanges.find(b"e")
    await exchanges.declare(b"e", b"topic")
