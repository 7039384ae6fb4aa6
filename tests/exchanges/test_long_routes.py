"""Routes that take long to compute: in steps, between which others have their turn."""

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest
from exchange_helpers import exchange, make, queue
from served_drivers import Drivers, opened

from omq.exchanges.exchanges import ExchangeRegistry
from omq.exchanges.routes import HEADERS_OF_ONE, OF_EXCHANGE, STEP, RouteIsLong
from omq.protocol.amqp.fields import Array, LongString, Number, NumberType, Table
from omq.protocol.amqp.head import Head, encode
from omq.protocol.amqp.properties import Properties
from omq.protocol.steps import Steps, finished

WORDS = 6
PATTERNS = [
    b".".join(words) + b".#.%d" % number for number, words in enumerate(product((b"a", b"*"), repeat=WORDS))
]
"""Patterns that all match the first words of a key of `a`, and stay candidates up to its end."""

KEY = b"a." * 40 + b"%d"
"""A key that the pattern with this number matches."""


@pytest.fixture
async def drivers(tmp_path: Path) -> AsyncIterator[Drivers]:
    async with opened(tmp_path / "store") as drivers:
        yield drivers


async def patterns(drivers: Drivers) -> ExchangeRegistry:
    """Return exchanges of which `amq.topic` has PATTERNS, each bound to a queue of its own."""
    exchanges = ExchangeRegistry(drivers.catalogue)
    for number, pattern in enumerate(PATTERNS):
        await make(drivers, b"q%d" % number)
        await exchanges.bind(b"amq.topic", queue(b"q%d" % number), pattern)
    return exchanges


def pauses(steps: Steps[object]) -> int:
    """Finish the work, and return the number of its pauses."""
    return sum(1 for _ in steps)


def names(exchanges: ExchangeRegistry, key: bytes) -> list[bytes]:
    (part,) = finished(exchanges.parts_in_steps(b"amq.topic", key, [b""]))
    return [driver.topic.topic for driver in part.route]


async def test_a_long_route_is_computed_in_steps(drivers: Drivers) -> None:
    exchanges = await patterns(drivers)
    with pytest.raises(RouteIsLong):
        exchanges.parts(b"amq.topic", KEY % 7, [b""], may_copy=False)
    nodes = len(PATTERNS) * (
        40 - WORDS
    )  # examined: at least the `#` of each pattern, for each word behind it
    assert pauses(exchanges.parts_in_steps(b"amq.topic", KEY % 7, [b""])) >= nodes // STEP
    assert names(exchanges, KEY % 7) == [b"q7"]
    # From now on the route is known, and takes no time.
    (part,) = exchanges.parts(b"amq.topic", KEY % 7, [b""], may_copy=False)
    assert [driver.topic.topic for driver in part.route] == [b"q7"]


async def test_the_other_routes_are_computed_at_once(drivers: Drivers) -> None:
    exchanges = await patterns(drivers)
    (part,) = exchanges.parts(b"amq.topic", b"b.c.d", [b""], may_copy=False)
    assert part.route == ()
    await exchanges.bind(b"amq.direct", queue(b"q0"), b"k")
    (part,) = exchanges.parts(b"amq.direct", b"k", [b""], may_copy=False)
    assert [driver.topic.topic for driver in part.route] == [b"q0"]


async def test_what_changes_between_two_steps(drivers: Drivers) -> None:
    exchanges = await patterns(drivers)
    await exchanges.declare(b"e", b"fanout")
    await exchanges.bind(b"amq.topic", exchange(b"e"), b"#")
    steps = exchanges.parts_in_steps(b"amq.topic", KEY % 7, [b""])
    next(steps)
    await exchanges.delete(b"e")
    for number in range(7):
        await exchanges.unbind(b"amq.topic", queue(b"q%d" % number), PATTERNS[number])
    await exchanges.bind(b"amq.topic", queue(b"q8"), KEY % 7)
    (part,) = finished(steps)
    assert b"q7" in [driver.topic.topic for driver in part.route]
    # The route was computed over a change, and is not kept.
    assert sorted(names(exchanges, KEY % 7)) == [b"q7", b"q8"]


@pytest.mark.parametrize("kind", [b"fanout", b"direct", b"headers"])
async def test_many_destinations_are_found_in_steps(drivers: Drivers, kind: bytes) -> None:
    exchanges = ExchangeRegistry(drivers.catalogue)
    await make(drivers, *(b"q%d" % number for number in range(STEP + 10)))
    await exchanges.declare(b"e", kind)
    arguments = Table(((b"x-match", LongString(b"any")), (b"k", Number(NumberType.INT32, 1))))
    for number in range(STEP + 10):
        bound = queue(b"q%d" % number)
        await exchanges.bind(b"e", bound, b"k", arguments if kind == b"headers" else Table())
    head = encode(Head(b"e", b"k", Properties(headers=Table(arguments.entries[1:]))))
    with pytest.raises(RouteIsLong):
        exchanges.parts(b"e", b"k", [head], may_copy=False)
    (part,) = finished(exchanges.parts_in_steps(b"e", b"k", [head], may_copy=False))
    assert len(part.route) == STEP + 10


def alternate(name: bytes) -> Table:
    """Return the arguments of an exchange with this alternate one."""
    return Table(((b"alternate-exchange", LongString(name)),))


@pytest.mark.parametrize("are_alternates", [True, False])
async def test_a_chain_of_exchanges_is_followed_in_steps(drivers: Drivers, are_alternates: bool) -> None:
    """Whether the bindings of one lead to the next one, or it is the alternate of one without bindings."""
    exchanges = ExchangeRegistry(drivers.catalogue)
    await make(drivers, b"q")
    await exchanges.declare(b"e0", b"fanout")
    await exchanges.bind(b"e0", queue(b"q"), b"")
    for number in range(1, STEP):
        behind = b"e%d" % (number - 1)
        if are_alternates:
            await exchanges.declare(b"e%d" % number, b"direct", alternate(behind))
        else:
            await exchanges.declare(b"e%d" % number, b"direct")
            await exchanges.bind(b"e%d" % number, exchange(behind), b"k")
    first = b"e%d" % (STEP - 1)
    steps = exchanges.parts_in_steps(first, b"k", [b""])
    assert pauses(steps) >= OF_EXCHANGE
    (part,) = exchanges.parts(first, b"k", [b""], may_copy=False)  # it is known from now on
    assert [driver.topic.topic for driver in part.route] == [b"q"]


async def test_many_headers_make_the_steps_of_a_chain_shorter(drivers: Drivers) -> None:
    exchanges = ExchangeRegistry(drivers.catalogue)
    for number in range(20):
        await exchanges.declare(b"e%d" % number, b"headers", alternate(b"e%d" % (number + 1)))
    headers = Table(tuple((b"%d" % number, LongString(b"")) for number in range(STEP)))
    head = encode(Head(b"e0", b"", Properties(headers=headers)))
    assert pauses(exchanges.parts_in_steps(b"e0", b"", [head])) >= 20 // HEADERS_OF_ONE


async def test_many_keys_make_the_steps_of_a_chain_shorter(drivers: Drivers) -> None:
    exchanges = ExchangeRegistry(drivers.catalogue)
    for number in range(20):
        await exchanges.declare(b"e%d" % number, b"direct", alternate(b"e%d" % (number + 1)))
    copies = Array(tuple(LongString(b"%d" % number) for number in range(STEP)))
    head = encode(Head(b"e0", b"k", Properties(headers=Table(((b"BCC", copies),)))))
    assert pauses(exchanges.parts_in_steps(b"e0", b"k", [head])) >= 20
