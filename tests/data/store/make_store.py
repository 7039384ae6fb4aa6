"""Makes an archive of a store as this version writes it, with something of everything that a store can hold.

    python tests/data/store/make_store.py store-1.tar.xz

`tests/server/test_stores_of_older_formats.py` says what is in it. An archive that was made is never made
again: it shows that a later version still reads what an earlier one wrote.
"""

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import trio

from omq.client import Delivery, Persistence, Persistent, Sync, Transient, connect

SETTINGS = """\
[[topics]]
name = "trimmed"
persistence = "weak"
retention_seconds = 1
"""

LEVELS = {"strong": Sync.STRONG, "weak": Sync.WEAK, "async": Sync.ASYNC}


def body(topic: str, message: int) -> bytes:
    """Return the body of the message with this id."""
    return f"{topic} {message}".encode() + b"." * (6000 if message % 50 == 0 else 0)


async def fill(port: int) -> None:
    """Publish everything."""
    async with connect(f"omq://127.0.0.1:{port}") as client:
        for name, sync in LEVELS.items():
            kept: Persistence = Persistent(sync)
            await client.declare(name, Delivery.BROADCAST, kept)
            # Some together and some one by one, which are merged later.
            await client.publish_many(name, [body(name, message) for message in range(1, 101)])
            for message in range(101, 151):
                await client.publish_confirmed(name, body(name, message))
            work = f"{name}-work"
            await client.declare(work, Delivery.ROUND_ROBIN, kept)
            await client.publish_many(work, [body(work, message) for message in range(1, 21)])
            await client.confirm()
            async with client.subscribe(work, credit=10) as messages:
                run = await messages.next_run()
                assert run is not None
                # The first five are done, but for the third.
                for message in (1, 2, 4, 5):
                    await messages.received(message)
                await client.confirm()
            numbered = f"{name}-numbered"
            await client.declare(numbered, Delivery.BROADCAST, kept)
            async with client.sink(numbered, producer="fixture") as sink:
                for message in range(1, 11):
                    await sink.publish(body(numbered, message))
        await client.declare("passing", Delivery.BROADCAST, Transient())
        await client.publish_confirmed("passing", b"by")
        await client.declare("deleted", Delivery.BROADCAST, Persistent(Sync.WEAK))
        await client.delete("deleted")
        for message in range(1, 101):
            await client.publish_confirmed("trimmed", body("trimmed", message))
        # Until positions were saved, checkpoints taken, small blocks merged and old ones deleted.
        await trio.sleep(6)
        for message in range(101, 106):
            await client.publish_confirmed("trimmed", body("trimmed", message))


def main() -> None:
    """Run a server, fill it, kill it, and pack what it left."""
    target = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "omq.toml").write_text(SETTINGS)
        command = [sys.executable, "-m", "omq.cli.server", "--listen", "127.0.0.1:0", "--store", "store"]
        environment = {**os.environ, "OMQ_BOOT_ID": "fixture"}
        with subprocess.Popen(
            [*command, "--config", "omq.toml"], stdout=subprocess.PIPE, env=environment, cwd=directory
        ) as server:
            assert server.stdout is not None
            trio.run(fill, int(server.stdout.readline().rpartition(b":")[2]))
            server.send_signal(signal.SIGKILL)
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for path in sorted((directory / "store").rglob("*")):
                if path.is_file() and path.name not in ("lock", "lock.mdb"):
                    entry = archive.gettarinfo(path, str(path.relative_to(directory)))
                    entry.uid = entry.gid = entry.mtime = 0
                    entry.uname = entry.gname = ""
                    with path.open("rb") as file:
                        archive.addfile(entry, file)


if __name__ == "__main__":
    main()
