"""`omq sub`: the selection of topics, start, end, and output on a terminal."""

import datetime
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
from cli_helpers import SECONDS, Shell, on_a_terminal, running_server
from ports import reserved_port
from relays import relayed
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.cli import command_line
from omq.cli.client import ACTIONS
from omq.cli.printer import Printer, StoppedClock
from omq.cli.since import replay_since
from omq.cli.subscribing import sub
from omq.client import connect
from omq.model import FromMessage


@contextmanager
def subscribed(shell: Shell, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with shell.start("sub", *arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


# -- which topics ----------------------------------------------------------------------------------------


def test_several_topics_and_one_count(shell: Shell) -> None:
    for topic in ("a1", "a2", "a3"):
        shell.ok("pub", topic, "-", "--confirm", input=b"%s 1\n%s 2\n" % (topic.encode(), topic.encode()))
    read = shell.ok("sub", "a1", "a2", "a2", "--from", "beginning", "--count", "4")
    assert sorted(read.splitlines()) == [b"a1 1", b"a1 2", b"a2 1", b"a2 2"]
    assert len(shell.ok("sub", "a1", "a2", "a3", "--from", "beginning", "--count", "5").splitlines()) == 5


@pytest.mark.parametrize("extra", [(), ("--dmp",)])
def test_a_pattern_selects_topics_by_their_beginning(shell: Shell, extra: tuple[str, ...]) -> None:
    start = "dmp" if extra else "omq"
    for topic in (f"{start}.prices.eur", f"{start}.prices.usd", f"{start}.prices", f"{start}.news"):
        shell.ok("pub", topic, topic, "--confirm")
    arguments = ("sub", f"{start}.prices.*", f"{start}.news", "--from", "beginning")
    read = shell.ok(*arguments, "--count", "3", *extra)
    assert sorted(read.decode().split()) == [
        f"{start}.news", f"{start}.prices.eur", f"{start}.prices.usd"
    ]  # fmt: skip
    assert f"{start}.prices.*".encode() not in shell.ok("topics")


def test_topics_that_appear_later_are_printed_from_their_beginning(shell: Shell) -> None:
    shell.ok("pub", "later.1", "before", "--confirm")
    with subscribed(shell, "later.*", "--format", "json") as process:
        shell.wait_for_subscriber("later.1")
        shell.ok("pub", "later.2", "-", "--confirm", input=b"".join(b"%d\n" % n for n in range(100)))
        for number in range(100):
            assert json.loads(line_of(process)) == {"id": number + 1, "topic": "later.2", "body": str(number)}
        # Deleted and made again, it is another topic.
        shell.ok("delete", "later.2")
        shell.ok("pub", "later.2", "again", "--confirm")
        assert json.loads(line_of(process)) == {"id": 1, "topic": "later.2", "body": "again"}
        shell.ok("pub", "later.1", "after", "--confirm")
        assert json.loads(line_of(process)) == {"id": 2, "topic": "later.1", "body": "after"}
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


def test_a_name_that_ends_with_a_star(shell: Shell) -> None:
    for topic in ("star", "star*", "star2"):
        shell.ok("pub", topic, topic, "--confirm")
    assert shell.ok("sub", "star*", "--exact", "--from", "beginning", "--count", "1") == b"star*\n"
    shell.ok("delete", "star*")
    done = shell.omq("sub", "star*", "--from", "beginning", "--count", "3", "--timeout", "2")
    assert (done.returncode, sorted(done.stdout.split())) == (1, [b"star", b"star2"])


def test_a_refused_topic_of_a_pattern_is_reported_and_the_others_continue(shell: Shell) -> None:
    shell.ok("declare", "some.transient", "--persistence", "transient")
    shell.ok("pub", "some.short", "1", "--confirm")
    shell.ok("pub", "some.long", "-", "--confirm", input=b"1\n2\n3\n")
    done = shell.omq("sub", "some.*", "--from", "3", "--count", "1")
    assert (done.returncode, done.stdout) == (0, b"3\n")
    assert sorted(done.stderr.splitlines()) == [
        b"omq: Subscribe some.short: there is no message 3 yet, the next one is 2",
        b"omq: some.transient cannot be replayed: it is printed from the next message on",
    ]


def test_sub_ends_when_all_its_topics_are_deleted(shell: Shell) -> None:
    with subscribed(shell, "gone1", "gone2") as process:
        shell.wait_for_subscriber("gone1")
        shell.wait_for_subscriber("gone2")
        shell.ok("delete", "gone1")
        shell.ok("pub", "gone2", "still here")
        assert line_of(process) == b"still here\n"
        shell.ok("delete", "gone2")
        assert process.wait(SECONDS) == 0


# -- from where, until when, over which connections ------------------------------------------------------


def test_from_a_time(shell: Shell) -> None:
    times = []
    for number in range(5):
        times.append(datetime.datetime.now(datetime.UTC))
        shell.ok("pub", "timed", str(number), "--confirm")
    for number, moment in enumerate(times):
        shown = moment.isoformat().replace("+00:00", "Z")
        expected = b"".join(b"%d\n" % n for n in range(number, 5))
        for extra in ((), ("--dmp",)):
            count = str(5 - number)
            assert shell.ok("sub", "timed", "--from", shown, "--count", count, *extra) == expected
    # One without a zone is of this machine's.
    local = times[0].astimezone().replace(tzinfo=None).isoformat()
    assert shell.ok("sub", "timed", "--from", local, "--count", "1") == b"0\n"
    with subscribed(shell, "timed", "--from", "2100-01-01") as process:
        shell.wait_for_subscriber("timed")
        shell.ok("pub", "timed", "now")
        assert line_of(process) == b"now\n"


def test_a_time_before_the_first_message(shell: Shell) -> None:
    with subscribed(shell, "unborn", "--from", "2024-05-01T12:00") as process:
        shell.wait_for_subscriber("unborn")
        shell.ok("pub", "unborn", "first")
        assert line_of(process) == b"first\n"


def test_each_message_is_found_by_its_time(shell: Shell) -> None:
    async def compare() -> None:
        async with connect(shell.url) as client:
            for _ in range(40):
                await client.publish_confirmed("found", b"x")
            with trio.fail_after(SECONDS):
                # Some are merged then, so that there are messages in the middle of a block.
                while (await client.blocks("found", 1, 1))[0].count < 5:
                    await client.publish_confirmed("found", b"x")
            (info,) = [info for info in await client.topics() if info.topic == b"found"]
            times: dict[int, int] = {}
            async with client.fetch("found") as blocks:
                async for block in blocks:
                    times |= {id: block.message_time(id) for id in range(block.first, block.next)}
            moments = {time + delta for time in times.values() for delta in (-1, 0, 1)}
            for moment in moments:
                expected = min((id for id, time in times.items() if time >= moment), default=info.last + 1)
                assert await replay_since(client, b"found", info, moment) == FromMessage(expected)

    trio.run(compare)


def test_a_transient_topic_has_no_times(shell: Shell) -> None:
    shell.ok("declare", "fleeting", "--persistence", "transient")
    done = shell.omq("sub", "fleeting", "--from", "2024-05-01")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"omq: Blocks fleeting: a transient topic cannot be replayed\n"


@pytest.mark.parametrize("extra", [(), ("--dmp",)])
def test_a_timeout_ends_sub_when_no_message_arrives(shell: Shell, extra: tuple[str, ...]) -> None:
    topic = f"drained{len(extra)}"
    shell.ok("pub", topic, "-", "--confirm", input=b"1\n2\n")
    arguments = (topic, "--from", "beginning", "--timeout", "2", *extra)
    assert shell.ok("sub", *arguments) == b"1\n2\n"
    done = shell.omq("sub", *arguments, "--count", "3")
    assert (done.returncode, done.stdout) == (1, b"1\n2\n")
    assert done.stderr == b"omq: no message came for 2 s, and 2 of 3 are printed\n"
    assert shell.ok("sub", *arguments, "--count", "2") == b"1\n2\n"


async def test_each_message_restarts_the_timeout(
    shell: Shell, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = command_line.parser(ACTIONS).parse_args(["sub", "alive", "--timeout", "4"])
    reading, writing = os.pipe()
    lines: list[bytes] = []

    async def run() -> None:
        await sub(client, options)
        nursery.cancel_scope.cancel()

    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        async with (
            trio.lowlevel.FdStream(reading) as printed,
            connect(shell.url) as client,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(run)
            await trio.to_thread.run_sync(shell.wait_for_subscriber, "alive")
            for number in range(8):
                mock_clock.jump(3)
                await client.publish("alive", b"%d" % number)
                lines.append(await printed.receive_some())
            while True:
                mock_clock.jump(4)
                await wait_all_tasks_blocked(0.01)
    assert lines == [b"%d\n" % number for number in range(8)]


@pytest.mark.parametrize(
    ("command", "topic"), [(b"Topics\n", "late1-*"), (b"(Subscribe ", "late2-*"), (b"(Subscribe ", "late3-1")]
)
async def test_the_timeout_begins_when_messages_can_come(
    shell: Shell, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, command: bytes, topic: str
) -> None:
    await trio.to_thread.run_sync(shell.ok, "pub", topic.replace("*", "1"), "told", "--confirm")
    arguments = ["sub", topic, "--from", "beginning", "--timeout", "4"]
    options = command_line.parser(ACTIONS).parse_args(arguments)
    reading, writing = os.pipe()
    ended = trio.Event()

    async def run() -> None:
        await sub(client, options)
        ended.set()

    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        async with (
            trio.lowlevel.FdStream(reading) as printed,
            relayed(int(shell.url.rpartition(":")[2])) as relay,
        ):
            held = relay.hold(command)
            async with connect(relay.url) as client, trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await held.arrived.wait()
                for _ in range(3):  # as many seconds as a list of thousands of topics may take
                    mock_clock.jump(4)
                    await wait_all_tasks_blocked(0.01)
                assert not ended.is_set()
                held.released.set()
                assert await printed.receive_some() == b"told\n"
                while not ended.is_set():
                    mock_clock.jump(4)
                    await wait_all_tasks_blocked(0.01)


def test_a_clock_that_ctrl_c_leaves_stopped_fails_nowhere() -> None:
    left: list[StoppedClock] = []

    async def interrupted() -> None:
        printer = Printer("lines", None, 5.0, trio.CancelScope())
        left.append(printer.stop_clock())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trio.run(interrupted)
    left.clear()  # Python would print a failure here, and pytest makes it one of the test
    gc.collect()


def test_with_reconnect_sub_continues_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        with running_server(tmp_path, port=port) as shell:
            shell.ok("pub", "t.1", "1", "--confirm")
            arguments = ("t.1", "t.*", "--from", "beginning", "--reconnect")
            process = stack.enter_context(subscribed(shell, *arguments))
            assert line_of(process) == b"1\n"
        with running_server(tmp_path, port=port) as shell:
            shell.ok("pub", "t.1", "2", "--confirm")
            assert line_of(process) == b"2\n"
            shell.ok("pub", "t.2", "3", "--confirm")
            assert line_of(process) == b"3\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        for line in process.stderr.read().splitlines():
            assert line.startswith(b"omq: ")


def test_missing_messages_are_told_with_the_name_of_the_topic(shell: Shell) -> None:
    shell.ok("pub", "purged über", "old", "--confirm")
    shell.ok("purge", "purged über")
    shell.ok("pub", "purged über", "new", "--confirm")
    done = shell.omq("sub", "purged über", "--from", "1", "--count", "1")
    assert (done.returncode, done.stdout) == (0, b"new\n")
    assert done.stderr.startswith("omq: 'purged über': message 1 is missing: ".encode())
    shell.ok("purge", "purged über")
    shell.ok("pub", "purged über", "newer", "--confirm")
    done = shell.omq("sub", "purged über", "--from", "1", "--count", "1")
    assert (done.returncode, done.stdout) == (0, b"newer\n")
    assert done.stderr.startswith("omq: 'purged über': messages 1 to 2 are missing: ".encode())


@pytest.mark.parametrize("topics", [["t"], ["t", "u"]], ids=["one", "several"])
def test_without_reconnect_sub_ends_with_the_server(tmp_path: Path, topics: list[str]) -> None:
    with ExitStack() as stack:
        with running_server(tmp_path) as shell:
            process = stack.enter_context(subscribed(shell, *topics))
            for topic in topics:
                shell.wait_for_subscriber(topic)
        assert process.wait(SECONDS) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b"omq: the server closed the connection\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["t", "--dmp", "--reconnect"], b"--reconnect does not go with --dmp"),
        (["t", "--timeout", "0"], b"'0' is no number of seconds above 0"),
        (["t", "--count", "-1"], b"'-1' is below 0"),
        (["t", "--credit", "9" * 5000], b"9' is no number from 1 to 9223372036854775807"),
        (["t", "--credit", "0"], b"'0' is no number from 1 to 9223372036854775807"),
        (["t", "--count", "some"], b"'some' is no number"),
        (["t", "--count", "-"], b"'-' is no number"),
        (["t", "--timeout", "nan"], b"'nan' is no number of seconds above 0"),
        (
            ["t", "--from", "2024-13-01"],
            b"'2024-13-01' is neither beginning nor current nor a message id nor",
        ),
        (["x" * 255 + "*", "--exact"], b"the topic's name has 256 octets, more than 255"),
        (["x" * 256 + "*"], b"the topic's name has 256 octets, more than 255"),
        ([], b"TOPIC"),
    ],
)
def test_bad_usage(shell: Shell, arguments: list[str], said: bytes) -> None:
    done = shell.omq("sub", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr


# -- where the server is ---------------------------------------------------------------------------------


def test_the_server_option_may_precede_or_follow_the_command(shell: Shell, tmp_path: Path) -> None:
    nowhere = "omq://127.0.0.1:1"
    id_file = tmp_path / "id"
    id_file.write_text("me:secret\n")
    id_file.chmod(0o600)
    for arguments in (
        ("--server", shell.url, "ping"),
        ("ping", "--server", shell.url),
        ("--server", nowhere, "ping", "--server", shell.url),
        ("ping", "--server", shell.url, "--id-file", str(id_file)),
    ):
        done = shell.omq(*arguments, OMQ_SERVER=nowhere)
        assert (done.returncode, done.stderr) == (0, b""), arguments
    for command in (("pub", "t", "x"), ("sub", "t"), ("declare", "t"), ("topics",), ("delete", "t")):
        done = shell.omq(*command, "--server", nowhere)
        assert done.stderr.startswith(b"omq: cannot connect to 127.0.0.1:1: Connection refused; ")
        assert b"--server" in shell.ok(command[0], "--help")


# -- what a terminal is given ----------------------------------------------------------------------------


HOSTILE = b'\x1b]0;title\x07\x1b[2J\rB\x08\xc2\x9b1mC\x9bD\x7f\t"\xc3\xa9"\n'


def test_a_terminal_gets_no_control_characters(shell: Shell) -> None:
    async def publish() -> None:
        async with connect(shell.url) as client:
            await client.publish_confirmed("hostile", HOSTILE)

    trio.run(publish)
    read = ("sub", "hostile", "--from", "beginning", "--count", "1")
    clean = '\\x1b]0;title\\x07\\x1b[2J\\x0dB\\x08\\x9b1mC\\x9bD\\x7f\t"é"\n'.encode()
    for extra in ((), ("--dmp",)):
        assert on_a_terminal(shell, *read, "--format", "raw", *extra) == clean
        assert on_a_terminal(shell, *read, *extra) == clean + b"\n"
        # An output that is no terminal gets the octets that were published.
        assert shell.ok(*read, "--format", "raw", *extra) == HOSTILE
        assert shell.ok(*read, *extra) == HOSTILE + b"\n"


def test_json_on_a_terminal_is_the_same_as_in_a_pipe(shell: Shell) -> None:
    text = "\x1b[2J\x9b1m\x7f\n\té"
    shell.ok("pub", "hostile-json", text.replace("\n", ""), "--confirm")
    written = on_a_terminal(
        shell, "sub", "hostile-json", "--from", "beginning", "--count", "1", "--format", "json"
    )
    assert json.loads(written)["body"] == text.replace("\n", "")
    assert not set(written.decode()) & set("\x1b\x9b\x7f")
    shell.ok("declare", "name\x1b\x9b\x7f")
    for form in ("json", "table"):
        written = on_a_terminal(shell, "topics", "--format", form)
        assert b"name" in written
        assert not set(written.decode()) & set("\x1b\x9b\x7f")


def test_error_sentences_have_no_control_characters(shell: Shell) -> None:
    done = shell.omq("pub", "t", "--lines", "no\x1b[2Jfile")
    assert done.stderr == b"omq: no\\x1b[2Jfile: No such file or directory\n"


def test_a_replay_prints_no_control_characters(shell: Shell) -> None:
    shell.ok("pub", "copied\x1b[2J", "x", "--confirm")
    done = shell.omq(
        "replay", "copied\x1b[2J", "--to", f"{shell.url}/copy", "--server", shell.url, "--dry-run"
    )
    assert done.returncode == 0
    assert b"copied\\x1b[2J" in done.stdout
    assert b"\x1b" not in done.stdout + done.stderr
    done = shell.omq("replay", "copied\x1b[2J", "--to", f"{shell.url}/copy")
    assert done.returncode == 0
    assert b"copied\\x1b[2J" in done.stdout
    assert b"\x1b" not in done.stdout + done.stderr
