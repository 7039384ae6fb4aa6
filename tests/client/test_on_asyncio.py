"""The tests of the client again, on asyncio: those that use nothing of Trio themselves, such as its clock."""

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import anyio
import pytest
import test_bulk
import test_client
import test_client_tls
import test_dmp
import test_many_tasks
import test_reconnect
import test_what_can_be_published
from certificates import Authority
from client_helpers import OpenServer, connect_to
from threaded_server import ThreadedServer, in_a_thread

MODULES = [
    test_bulk,
    test_client,
    test_client_tls,
    test_dmp,
    test_many_tasks,
    test_reconnect,
    test_what_can_be_published,
]

SECONDS = 60.0

GIVEN = {
    "open_omq",
    "server",
    "client",
    "strict",
    "nursery",
    "monkeypatch",
    "caplog",
    "tmp_path",
    "authority",
}
"""The fixtures that this module has for asyncio, too."""


def names_in(code: CodeType) -> set[str]:
    """Return the names that a function uses, and the functions within it."""
    inner = (names_in(each) for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*inner)


def cases_of(module: ModuleType) -> Iterator[Any]:
    for name, test in vars(module).items():
        if not (name.startswith("test_") and inspect.iscoroutinefunction(test)):
            continue
        if {"trio", "quiet"} & names_in(test.__code__):
            continue
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        for chosen in itertools.product(*(mark.args[1] for mark in marks)):
            arguments: dict[str, Any] = {}
            for mark, value in zip(marks, chosen, strict=True):
                match mark.args[0]:
                    case str(argument):
                        arguments[argument] = value
                    case several:
                        arguments |= dict(zip(several, value, strict=True))
            if inspect.signature(test).parameters.keys() - arguments.keys() <= GIVEN:
                values = "-".join(f"{value!r:.30}" for value in arguments.values())
                yield pytest.param(test, arguments, id=f"{name}[{values}]" if values else name)


TESTS = [case for module in MODULES for case in cases_of(module)]


def test_most_tests_run_on_asyncio() -> None:
    assert len(TESTS) > 100


@pytest.mark.parametrize(("test", "arguments"), TESTS)
def test_the_same_on_asyncio(
    test: Callable[..., Any],
    arguments: dict[str, Any],
    open_omq: OpenServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = arguments | {"tmp_path": tmp_path, "monkeypatch": monkeypatch, "caplog": caplog}
    if "authority" in inspect.signature(test).parameters:
        given["authority"] = Authority(tmp_path / "authority")
    asyncio.run(run(test, given, open_omq))


def test_cancellation_as_asyncio_does_it(open_omq: OpenServer) -> None:
    async def main() -> None:
        async with in_a_thread(open_omq()) as server, connect_to(server) as client:  # type: ignore[arg-type]  # `connect_to` uses the port only
            async with client.subscribe("t") as messages:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await anext(messages)
                waiting = asyncio.ensure_future(anext(messages))
                await asyncio.sleep(0)
                waiting.cancel()
                await client.publish("t", b"x")
                assert (await anext(messages)).body == b"x"

            async def publish() -> None:
                async with connect_to(server) as other, other.sink("t") as sink:  # type: ignore[arg-type]  # `connect_to` uses the port only
                    await sink.publish(b"y")
                    inside.set()
                    await asyncio.sleep(SECONDS)

            inside = asyncio.Event()
            task = asyncio.create_task(publish())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.gather(*(client.topics() for _ in range(3)))
            await client.publish_confirmed("t", b"z")

    asyncio.run(main())


async def run(test: Callable[..., Any], given: dict[str, Any], open_omq: OpenServer) -> None:
    def opener(port: int = 0, **settings: object) -> AbstractAsyncContextManager[ThreadedServer]:
        return in_a_thread(open_omq(port, **settings))

    wanted = inspect.signature(test).parameters
    with anyio.fail_after(SECONDS):
        async with AsyncExitStack() as stack:
            given["open_omq"] = opener
            if {"server", "client"} & wanted.keys():
                server: Any = await stack.enter_async_context(opener())
                given["server"] = server
                if "client" in wanted:
                    given["client"] = await stack.enter_async_context(connect_to(server))
            if "strict" in wanted:
                given["strict"] = await stack.enter_async_context(test_many_tasks.strict_client(opener))
            if "nursery" in wanted:
                group = await stack.enter_async_context(anyio.create_task_group())
                stack.callback(group.cancel_scope.cancel)
                given["nursery"] = group
            await test(**{name: given[name] for name in wanted})
