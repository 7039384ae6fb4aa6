"""The answer to /readyz, and the metrics of a server that cannot store."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from quietness import pass_time
from trio.testing import MockClock

from omq.metrics.readiness import SLOW_SECONDS
from omq_storage.errors import StoreFailed
from omq_storage.levels import Level

from .conversation import eventually, serving
from .http_conversation import ask, request
from .metrics_samples import metrics


async def test_a_server_is_ready(store: Path) -> None:
    async with serving(store) as host:
        answered = await ask(host, request("/readyz"))
        assert (answered.status, answered.body) == (200, b"ready\n")


async def test_a_server_without_room_on_its_disk_is_not_ready(store: Path) -> None:
    async with serving(store, disk_reserve_bytes=1 << 60) as host:
        answered = await ask(host, request("/readyz"))
        assert answered.status == 503
        assert b"strong: the disk has less free than" in answered.body
        assert (await metrics(host))['omq_writer_refusing{level="weak"}'] == 1
        assert (await ask(host, request("/healthz"))).status == 200


@pytest.mark.parametrize("level", [b"Strong", b"Weak", b"Async"])
async def test_a_server_that_cannot_store_is_not_ready(
    store: Path, level: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare prices Broadcast (Persistent %s))" % level)
        environment = host.server.catalogue.writers[Level(level.decode().lower())].environment

        def fail(*_: object) -> NoReturn:
            raise StoreFailed("the disk does not answer")

        with monkeypatch.context() as patch:
            for name in ("append", "append_commit"):
                patch.setattr(environment, name, fail)
            await client.say(b"(Publish prices x)", b"(Confirm 1)")
            for _ in range(2):
                await client.error()
            answered = await ask(host, request("/readyz"))
            assert answered.status == 503
            assert answered.body.startswith(level.lower() + b": ")
        await client.say(b"(Publish prices x)")
        await client.confirm(2)
        assert (await ask(host, request("/readyz"))).status == 200


async def test_the_server_finds_out_by_itself_that_the_disk_answers_again(
    store: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock
) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare prices Broadcast (Persistent Strong))")
        environment = host.server.catalogue.writers[Level.STRONG].environment

        def fail(*_: object) -> NoReturn:
            raise StoreFailed("the disk does not answer")

        with monkeypatch.context() as patch:
            for name in ("append", "append_commit", "put_fragments"):
                patch.setattr(environment, name, fail)
            await client.say(b"(Publish prices x)")
            await client.error()
            await pass_time(clock, 10)
            assert (await ask(host, request("/readyz"))).status == 503
        await pass_time(clock, 2)
        assert (await ask(host, request("/readyz"))).status == 200


async def test_a_server_that_cannot_read_a_store_is_not_ready(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:

        def fail() -> NoReturn:
            raise StoreFailed("the disk does not answer")

        monkeypatch.setattr(host.server.catalogue.writers[Level.WEAK].environment, "usage", fail)
        answered = await ask(host, request("/readyz"))
        assert (answered.status, answered.body) == (503, b"weak: the disk does not answer\n")


async def test_a_commit_that_does_not_end_is_told(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("omq.drivers.writer.time", SimpleNamespace(perf_counter=lambda: now))
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare prices Broadcast (Persistent Strong))")
        environment = host.server.catalogue.writers[Level.STRONG].environment
        begun, may_go_on = threading.Event(), threading.Event()

        def waiting(call: Callable[..., Any]) -> Callable[..., Any]:
            def wait(*arguments: Any) -> Any:
                begun.set()
                may_go_on.wait(60)
                return call(*arguments)

            return wait

        for name in ("append", "append_commit"):
            monkeypatch.setattr(environment, name, waiting(getattr(environment, name)))
        await client.say(b"(Publish prices x)")
        try:
            await eventually(begun.is_set)
            now += SLOW_SECONDS - 1
            assert (await ask(host, request("/readyz"))).status == 200
            now += 1
            answered = await ask(host, request("/readyz"))
            assert answered.status == 503
            assert answered.body == b"strong: a commit has taken %d s\n" % SLOW_SECONDS
        finally:
            may_go_on.set()
        await client.confirm()
        assert (await ask(host, request("/readyz"))).status == 200
