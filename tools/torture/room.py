"""No room: the disk is full, the map is full, the memory is spent; no descriptors, no threads, no places for
readers.

Publishers get a clear Error or wait; what was confirmed is there; subscribers go on; and when there is room
again everything works again, without a restart.
"""

import ctypes
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
from examiner import Examiner, Served
from server import Server
from tally import Outcome, leaves

from omq.client import (
    Client,
    Delivery,
    FromBeginning,
    PublishRefused,
    ServerError,
    connect,
)
from omq.model import PERSISTENCES, PersistenceName

LEVELS: tuple[PersistenceName, ...] = ("strong", "weak", "async")
BODY = b"." * 20_000
GROUP = 20
MOST_LOG_LINES = 30
MIB = 1 << 20


HOUSEKEEPING_SECONDS = 6.0
"""The number of seconds in which all periodic work of the server runs, except checkpoints of Async."""

IDLE_SECONDS = 11.0
"""The number of seconds that Trio keeps an idle thread."""

STEADY = 100
"""Number of messages for each level during a shortage."""

PIDS = Path("/sys/fs/cgroup/pids")

LEAST_PLACES = 3000

TAKE_SLOTS = Path(__file__).with_name("take_slots.py")


class Failed(Exception):
    """A promise was broken."""


class NotPermitted(Exception):
    """The system does not let this process cause this shortage."""


Scenario = Callable[[Path], Awaitable[int]]
"""Called with the number of confirmed messages."""


async def room(directory: Path, count: int, chance: random.Random, done: Callable[[], None]) -> Outcome:
    """Run every scenario `count` times, two at a time: some of them mostly wait."""
    outcome = Outcome()
    places = trio.CapacityLimiter(2)

    async def run(scenario: Scenario, place: Path) -> None:
        async with places:
            try:
                confirmed = await scenario(place)
                outcome.messages += confirmed
            except* Failed as group:
                outcome.blame(str(place), map(str, leaves(group)))
            except* NotPermitted as group:
                outcome.left_out += [f"{scenario.__name__}: {reason}" for reason in leaves(group)]

    for number in range(count):
        async with trio.open_nursery() as nursery:
            for scenario in SCENARIOS:
                place = directory / f"{scenario.__name__}-{number}"
                place.mkdir()
                nursery.start_soon(run, scenario, place)
        done()
    return outcome


async def file_limit(directory: Path) -> int:
    """Reach a limit of the file size, as with a disk quota."""
    with Server(directory / "store", "disk_reserve_bytes = 0\n", "this-boot", {}) as server:
        port = await server.ready()
        pid = server.process.pid

        def fill() -> None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (3 * MIB, resource.RLIM_INFINITY))

        def empty() -> None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

        confirmed = await _without_room(port, fill, empty, server, b"full")
    _all_is_there(directory)
    return confirmed


async def full_disk(directory: Path) -> int:
    """Fill a small file system with another program. Raises NotPermitted where it cannot be mounted."""
    disk = directory / "disk"
    disk.mkdir()
    _mount(disk)
    server = Server(disk / "store", "disk_reserve_bytes = 0\n", "this-boot", {})
    try:
        port = await server.ready()
        ballast = disk / "ballast"

        def fill() -> None:
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            ballast.write_bytes(bytes(max(0, free - 4 * MIB)))

        confirmed = await _without_room(port, fill, ballast.unlink, server, b"full")
        # A start, too, must do without room, and even after a power failure, when it has most to write.
        _fill_up(ballast)
        server.kill()
        server = Server(disk / "store", "disk_reserve_bytes = 0\n", "another-boot", {})
        async with connect(f"omq://127.0.0.1:{await server.ready()}") as client:
            await _read_back(client, LEVELS[0], GROUP, at_least=True)
            await _delete_in_need(client, "spare of the last")
        ballast.unlink()
        server.stop()
        shutil.copytree(disk / "store", directory / "store")
    finally:
        server.kill()
        with trio.CancelScope(shield=True):
            await trio.run_process(["umount", disk])
    _all_is_there(directory)
    return confirmed


async def full_map(directory: Path) -> int:
    """Let the store reach its configured map size."""
    with Server(
        directory / "store", "disk_reserve_bytes = 0\nmap_bytes = 3_000_000\n", "this-boot", {}
    ) as server:
        port = await server.ready()
        return await _without_room(port, lambda: None, None, server, b"full")


async def no_descriptors(directory: Path) -> int:
    """Take all file descriptors of the server with connections."""
    with Server(
        directory / "store", "weak_flush_seconds = 0.1\nhandshake_seconds = 600\n", "this-boot", {}
    ) as server:
        port = await server.ready()
        pid = server.process.pid
        async with connect(f"omq://127.0.0.1:{port}") as client:
            for level in LEVELS:
                await client.declare(level, Delivery.BROADCAST, PERSISTENCES[level])
            async with client.subscribe(LEVELS[1]) as messages:
                used = _descriptors(pid)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
                crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
                await _until(lambda: "cannot be accepted" in server.log(), "nothing in the log")
                await trio.sleep(HOUSEKEEPING_SECONDS)  # the time of the server's periodic work
                for number in range(50):
                    for level in LEVELS:
                        await client.publish_confirmed(level, b"%d" % number)
                    if (await messages.__anext__()).body != b"%d" % number:
                        raise Failed("a subscriber did not get what it should")
                    await trio.sleep(0.02)
                for one in crowd:
                    one.close()
            with trio.fail_after(20):
                async with connect(f"omq://127.0.0.1:{port}") as another:
                    await another.topics()
        _is_quiet(server)
        server.kill()
    # A power failure leaves this: the checkpoints were taken all the while.
    with Server(directory / "store", "", "another-boot", {}) as server:
        async with connect(f"omq://127.0.0.1:{await server.ready()}") as client:
            kept = {info.topic.decode(): info.messages for info in await client.topics()}
        if kept[LEVELS[0]] != 50 or kept[LEVELS[1]] < 25:
            raise Failed(f"after a power failure there was of 50 messages each: {kept}")
    return 50 * len(LEVELS)


async def own_disk(directory: Path) -> int:
    """Fill a disk with the store itself; delete topics to make room, each after a kill and a restart.

    Raises NotPermitted where the disk cannot be mounted.
    """
    disk = directory / "disk"
    disk.mkdir()
    _mount(disk)
    confirmed = 0
    server: Server | None = None
    try:
        for turn in range(4):
            for level in LEVELS:
                server = Server(disk / "store", "disk_reserve_bytes = 0\n", "this-boot", {})
                async with connect(f"omq://127.0.0.1:{await server.ready()}") as client:
                    for info in await client.topics():
                        await _delete_in_need(client, info.topic.decode())
                    topic = f"{level} {turn}"
                    try:
                        await client.declare(topic, Delivery.BROADCAST, PERSISTENCES[level])
                    except ServerError as refusal:
                        raise Failed(f"{topic}: deletions made no room for a topic: {refusal}") from refusal
                    stored = await _publish_until_refused(client, topic, b"full")
                    await _read_back(client, topic, stored)
                    confirmed += stored
                server.kill()
    finally:
        if server is not None:
            server.kill()
        with trio.CancelScope(shield=True):
            await trio.run_process(["umount", disk])
    return confirmed


async def no_places(directory: Path) -> int:
    """Hold all reader slots of LMDB in another process."""
    with Server(directory / "store", "weak_flush_seconds = 0.1\n", "this-boot", {}) as server:
        async with connect(f"omq://127.0.0.1:{await server.ready()}") as client:
            for level in LEVELS:
                await client.declare(level, Delivery.BROADCAST, PERSISTENCES[level])
            command = [sys.executable, str(TAKE_SLOTS), str(directory / "store")]
            others = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert others.stdin is not None
            assert others.stdout is not None
            async with others.stdin, others.stdout:
                if int(await others.stdout.receive_some()) < LEAST_PLACES:
                    raise Failed("the other process did not get its places")
                await _publish_steadily(client)
            await others.wait()
        _is_quiet(server)
    _all_is_there(directory)
    return STEADY * len(LEVELS)


async def no_threads(directory: Path) -> int:
    """Let no thread start for some seconds. Raises NotPermitted where no control group can be created."""
    group = PIDS / f"omq-torture-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise NotPermitted(f"no control group can be created ({error.strerror})") from error
    server = Server(directory / "store", "weak_flush_seconds = 0.1\n", "this-boot", {})
    try:
        async with connect(f"omq://127.0.0.1:{await server.ready()}") as client:
            for level in LEVELS:
                await client.declare(level, Delivery.BROADCAST, PERSISTENCES[level])
            (group / "cgroup.procs").write_text(str(server.process.pid))
            (group / "pids.max").write_text("1")
            await trio.sleep(IDLE_SECONDS)  # until the threads that there are have ended
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_publish_steadily, client)
                    await trio.sleep(HOUSEKEEPING_SECONDS)
                    (group / "pids.max").write_text("max")
        if "one can be started" not in server.log():
            raise Failed("threads could be started")
        _is_quiet(server)
    finally:
        server.kill()
        group.rmdir()
    _all_is_there(directory)
    return STEADY * len(LEVELS)


async def _publish_steadily(client: Client) -> None:
    for number in range(STEADY):
        for level in LEVELS:
            await client.publish_confirmed(level, b"%d" % number)
        await trio.sleep(0.02)


async def little_memory(directory: Path) -> int:
    """Publish many times as much as fits into the memory, while a subscriber reads nothing."""
    settings = "disk_reserve_bytes = 0\nmemory_bytes = 4_194_304\nmax_message_bytes = 4_194_304\n"
    with Server(directory / "store", settings, "this-boot", {}) as server:
        port = await server.ready()
        url = f"omq://127.0.0.1:{port}"
        async with connect(url) as client:
            for level in LEVELS:
                await client.declare(level, Delivery.BROADCAST, PERSISTENCES[level])
            stuck = socket.create_connection(("127.0.0.1", port))
            stuck.sendall(bytes(7) + b"\1(Connect 1 stuck)\n")
            for level in LEVELS:
                stuck.sendall(b'(Subscribe "%b" From_beginning)\n' % level.encode())

            async def publish(level: str) -> None:
                async with connect(url) as publisher:
                    for _ in range(10):
                        await publisher.publish_many(level, [BODY] * 50)
                    await publisher.confirm()

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    for level in LEVELS:
                        for _ in range(4):
                            nursery.start_soon(publish, level)
            for info in await client.topics():
                if info.messages != 4 * 10 * 50:
                    raise Failed(f"{info.messages} messages were stored of {4 * 10 * 50}")
            stuck.close()
        _is_quiet(server)
    return len(LEVELS) * 4 * 10 * 50


SCENARIOS: tuple[Scenario, ...] = (
    file_limit,
    full_disk,
    own_disk,
    full_map,
    no_descriptors,
    no_places,
    no_threads,
    little_memory,
)


async def _without_room(
    port: int, fill: Callable[[], object], empty: Callable[[], object] | None, server: Server, word: bytes
) -> int:
    """Publish until there is no room; then check that the server continues, and publishing resumes.

    Tells how many messages were confirmed.
    """
    async with connect(f"omq://127.0.0.1:{port}") as client:
        confirmed: dict[str, int] = {}
        for level in LEVELS:
            await client.declare(level, Delivery.BROADCAST, PERSISTENCES[level])
            await client.declare(f"work {level}", Delivery.ROUND_ROBIN, PERSISTENCES[level])
            await client.publish_many(f"work {level}", [b"job"] * 20)
            await client.declare(f"spare {level}", Delivery.BROADCAST, PERSISTENCES[level])
            await client.publish_many(f"spare {level}", [BODY] * 20)
        await client.declare("spare of the last", Delivery.BROADCAST, PERSISTENCES[LEVELS[0]])
        await client.publish_many("spare of the last", [BODY] * 20)
        await client.declare("passing", Delivery.BROADCAST, PERSISTENCES["transient"])
        await client.confirm()
        fill()
        for level in LEVELS:
            confirmed[level] = await _publish_until_refused(client, level, word)
        # Operations that need no room continue.
        async with client.subscribe("passing") as passing:
            await client.publish("passing", b"by")
            with trio.fail_after(20):
                await passing.__anext__()
        for level in LEVELS:
            await _read_back(client, level, confirmed[level])
            async with client.subscribe(f"work {level}", credit=5) as work:
                for _ in range(20):
                    with trio.fail_after(20):
                        await work.__anext__()
        await trio.sleep(1)  # housekeeping tries, too
        _is_quiet(server)
        if empty is None:
            # The only way to room is to delete.
            for level in LEVELS:
                await client.delete(level)
                await client.declare(level, Delivery.BROADCAST, PERSISTENCES[level])
                confirmed[level] = 0
        else:
            for level in LEVELS:
                await _delete_in_need(client, f"spare {level}")
            empty()
        for level in LEVELS:
            await _publish_again(client, level)
            await _read_back(client, level, confirmed[level] + 1, at_least=True)
        return sum(confirmed.values())


async def _publish_until_refused(client: Client, level: str, word: bytes) -> int:
    """Return the number of confirmed messages."""
    confirmed = 0
    for _ in range(500):
        await client.publish_many(level, [BODY] * GROUP)
        try:
            await client.confirm()
        except PublishRefused as refusal:
            if word.decode() not in str(refusal):
                raise Failed(f"the reason is not clear: {refusal}") from refusal
            return confirmed
        confirmed += GROUP
    raise Failed(f"{level}: there was always room")


async def _publish_again(client: Client, level: str) -> None:
    """Publish when there is room again: the server detects that by itself."""
    for _ in range(100):
        try:
            await client.publish_confirmed(level, b"again")
        except ServerError:
            await trio.sleep(0.1)
        else:
            return
    raise Failed(f"{level}: nothing can be published though there is room again")


async def _read_back(client: Client, level: str, count: int, at_least: bool = False) -> None:
    infos = {info.topic.decode(): info for info in await client.topics()}
    kept = infos[level].messages
    if kept < count or (kept > count + GROUP and not at_least):
        raise Failed(f"{level}: {count} messages were confirmed, and {kept} are kept")
    async with client.subscribe(level, FromBeginning()) as messages:
        for _ in range(count):
            with trio.fail_after(20):
                body = (await messages.__anext__()).body
            if body not in (BODY, b"again"):
                raise Failed(f"{level}: a message is not what it was")


async def _delete_in_need(client: Client, topic: str) -> None:
    """Delete a topic while there is no room: deleting makes room, so it must work then."""
    try:
        await client.delete(topic)
    except ServerError as refusal:
        raise Failed(f"nothing can be deleted without room: {refusal}") from refusal


def _all_is_there(directory: Path) -> None:
    with Examiner() as examiner:
        finding = examiner.examine(directory / "store", "another-boot")
    if not isinstance(finding, Served):
        raise Failed(f"it does not start again: {finding}")


async def _until(condition: Callable[[], bool], otherwise: str) -> None:
    for _ in range(200):
        if condition():
            return
        await trio.sleep(0.05)
    raise Failed(otherwise)


def _descriptors(pid: int) -> int:
    """Return the number of open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _fill_up(ballast: Path) -> None:
    """Fill a file system completely."""
    with ballast.open("wb", buffering=0) as file:
        for size in (MIB, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass  # it is full


def _is_quiet(server: Server) -> None:
    # Not counted: those for connects and ends of connections, of which the server bounds the rate.
    lines = sum(" omq.connections: " not in line for line in server.log().splitlines())
    if lines > MOST_LOG_LINES:
        raise Failed(f"the log has {lines} lines: {server.log()[-1000:]}")


def _mount(place: Path) -> None:
    """Mount a file system of 24 MiB in memory. Raises NotPermitted."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"omq", os.fsencode(place), b"tmpfs", 0, b"size=24m") != 0:
        raise NotPermitted(f"no file system can be mounted ({os.strerror(ctypes.get_errno())})")
