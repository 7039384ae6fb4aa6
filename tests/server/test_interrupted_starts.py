"""Starts after a power failure that do not get through: what the next one gives, it never gives twice."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server

import pytest
from forked import run_forked
from server_command import COMMAND

from omq.protocol.omq.types import Confirmed, Error, Message

from .conversation import declared, numbered, publish, serving_process
from .test_persistence import replayed

SETTINGS = "weak_flush_seconds = 60\nasync_flush_seconds = 60\n"


async def cut_off(store: Path) -> Path:
    """Return a store as a power failure left it: ids 1 to 10 were seen, and are not in the last
    checkpoint.
    """
    cut = store.with_name("cut")
    async with serving_process(store, SETTINGS) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        other = await declared(host, b"Broadcast (Persistent Async)", b"other")
        await other.send(publish(b"other", numbered(1, 10)))
        assert await other.ask(b"(Confirm 1)") == Confirmed(1)
        await client.send(publish(b"t", numbered(1, 10)))
        assert await client.ask(b"(Confirm 1)") == Confirmed(1)
        assert [frame.id for frame in await replayed(host) if isinstance(frame, Message)] == [*range(1, 11)]
        await host.kill()
    shutil.copytree(store, cut)
    return cut


def refused(store: Path, *, port: int = 0, descriptors: int | None = None) -> str:
    """Return the error of a server that does not start after the power failure."""
    options = ["--listen", f"127.0.0.1:{port}", "--store", str(store)]
    environment = {**os.environ, "OMQ_BOOT_ID": "another-boot"}
    if descriptors is None:
        done = run_forked([COMMAND, *options], text=True, env=environment)
    else:
        limit = (descriptors, descriptors)
        done = subprocess.run(
            [sys.executable, "-m", "omq.cli.server", *options],
            env=environment,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
            timeout=60,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert not done.stdout
    return done.stderr


def few_descriptors(store: Path) -> None:
    # With fewer it reaches no level, with more all of them.
    for descriptors in range(12, 40, 2):
        copy = shutil.copytree(store, store.with_name(f"few-{descriptors}"))
        if "async" in refused(copy, descriptors=descriptors):
            shutil.rmtree(store)
            copy.rename(store)
            return
    pytest.fail("no limit lets a start reach one level and not the next")


def address_in_use(store: Path) -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        assert "in use" in refused(store, port=taken.getsockname()[1])


@contextmanager
def damaged(file: Path) -> Iterator[None]:
    whole = file.read_bytes()
    file.write_bytes(whole[:8192] + os.urandom(len(whole) - 8192))
    yield
    file.write_bytes(whole)


def another_level_is_damaged(store: Path) -> None:
    with damaged(store / "async" / "data.mdb"):
        assert "async/data.mdb is damaged" in refused(store)


def another_level_is_repaired(store: Path) -> None:
    file = store / "async" / "data.mdb"
    file.write_bytes(file.read_bytes()[:8192])
    assert "async/data.mdb is damaged" in refused(store)
    environment = {**os.environ, "OMQ_BOOT_ID": "another-boot"}
    run_forked(["omq", "store", "repair", "--store", store], env=environment).check_returncode()


@pytest.mark.parametrize(
    "interrupt", [few_descriptors, address_in_use, another_level_is_damaged, another_level_is_repaired]
)
async def test_no_id_gets_a_second_meaning(store: Path, interrupt: Callable[[Path], None]) -> None:
    cut = await cut_off(store)
    interrupt(cut)
    async with serving_process(cut, SETTINGS, boot_id="another-boot") as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await client.send(publish(b"t", [b"after"]))
        assert await client.ask(b"(Confirm 1)") == Confirmed(1)
        gone, found = await replayed(host)
        assert isinstance(found, Message)
        assert isinstance(gone, Error)
        why = b"they were lost before they were durable"
        assert gone.text == b"Subscribe t: messages 1 to %d are gone: %s" % (found.id - 1, why)
        assert found.body == b"after"
        assert found.id > 10


async def test_messages_recovered_after_a_kill_survive_a_machine_restart(store: Path) -> None:
    """The checkpoints of the first server were a minute away; the second one takes one before it listens."""
    cut = await cut_off(store)
    async with serving_process(cut, SETTINGS) as host:
        await host.kill()
    async with serving_process(cut, SETTINGS, boot_id="another-boot") as host:
        for topic in (b"t", b"other"):
            kept = await replayed(host, topic)
            assert [frame.body for frame in kept if isinstance(frame, Message)] == numbered(1, 10)
