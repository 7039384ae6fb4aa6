"""The `omq` command, as a process against a server process."""

import base64
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from cli_helpers import OMQ, SECONDS, Shell, right_aligned, running_server
from forked import Forked


def test_publish_and_subscribe(shell: Shell) -> None:
    assert shell.ok("pub", "one", "hello world", "--confirm") == b""
    assert shell.ok("sub", "one", "--from", "beginning", "--count", "1") == b"hello world\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--confirm", "TOPIC", "BODY"),
        ("TOPIC", "--confirm", "BODY"),
        ("TOPIC", "BODY", "--confirm"),
        ("--header", "a=1", "TOPIC", "--header=b=2", "BODY", "--head", "c=3"),
        ("TOPIC", "--dmp", "--", "BODY"),
        ("--dmp", "TOPIC", "--", "BODY"),
        ("TOPIC", "--confirm", "--server", "SERVER", "BODY"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("body", ["sunny", "-5", "- a list item"])
def test_options_may_stand_anywhere(shell: Shell, words: tuple[str, ...], body: str) -> None:
    values = {"TOPIC": "anywhere", "BODY": body, "SERVER": shell.url}
    assert shell.ok("pub", *(values.get(word, word) for word in words)) == b""
    read = shell.ok("sub", "none", "--from", "beginning", "anywhere", "--count", "1", "--timeout", "60")
    assert read == f"{body}\n".encode()
    shell.ok("delete", "anywhere")


def test_verbs_take_options_between_their_arguments(shell: Shell) -> None:
    shell.ok("queues", "declare", "tasks", "--persistence", "strong", "max_length=5")
    shell.ok("exchanges", "declare", "letters", "--server", shell.url, "direct")
    shell.ok("bindings", "bind", "letters", "--server", shell.url, "tasks", "urgent")
    assert b"urgent" in shell.ok("bindings", "list")
    (queue,) = map(json.loads, shell.ok("queues", "list", "--format", "json").splitlines())
    assert (queue["name"], queue["options"]) == ("tasks", {"max_length": "5"})


def test_help_comes_before_all_errors(shell: Shell) -> None:
    assert b"usage: omq queues change" in shell.ok("queues", "change", "--help", "q", "--max-length", "5")


def test_an_unknown_option_is_named_as_it_was_written(shell: Shell) -> None:
    done = shell.omq("retain", "other", "--unknown", "5")
    assert done.returncode == 2
    assert b"unrecognized arguments: --unknown 5" in done.stderr


def test_an_option_without_its_value_takes_no_argument_for_it(shell: Shell) -> None:
    done = shell.omq("sub", "a", "b", "--count")
    assert done.returncode == 2
    assert b"argument --count: expected one argument" in done.stderr


def test_lines_of_a_file_and_of_standard_input(shell: Shell, tmp_path: Path) -> None:
    lines = [b"line %d \xff" % n for n in range(20_000)] + [b"", b"no line feed behind this one"]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines))
    assert shell.ok("pub", "file", "--lines", str(file), "--confirm") == b""
    assert shell.ok("pub", "file", "-", "--confirm", input=b"\n".join(lines) + b"\n") == b""
    count = str(2 * len(lines))
    assert shell.ok("sub", "file", "--from", "beginning", "--count", count).split(b"\n") == [
        *lines,
        *lines,
        b"",
    ]
    assert shell.ok("sub", "file", "--from", "20002", "--count", "2") == lines[-1] + b"\n" + lines[0] + b"\n"


def test_formats(shell: Shell) -> None:
    shell.ok("pub", "formats", "-", "--confirm", input="é\n".encode() + b"\xff\n")
    read = ("sub", "formats", "--from", "beginning", "--count", "2", "--format")
    assert shell.ok(*read, "raw") == "é".encode() + b"\xff"
    assert [json.loads(line) for line in shell.ok(*read, "json").splitlines()] == [
        {"id": 1, "topic": "formats", "body": "é"},
        {"id": 2, "topic": "formats", "body_base64": base64.b64encode(b"\xff").decode()},
    ]


def test_declare_topics_delete(shell: Shell) -> None:
    shell.ok("declare", "jobs", "--delivery", "round-robin", "--persistence", "strong")
    shell.ok("pub", "jobs", "four", "--confirm")
    table = shell.ok("topics").decode().splitlines()
    assert table[0].split() == [
        "NAME", "ID", "DELIVERY", "PERSISTENCE", "MESSAGES", "OCTETS", "FIRST", "LAST", "SUBSCRIBERS"
    ]  # fmt: skip
    (row,) = [line.split() for line in table if line.startswith("jobs ")]
    assert row[2:5] == ["round-robin", "strong", "1"]
    assert row[6:] == ["1", "1", "0"]
    records = [json.loads(line) for line in shell.ok("topics", "--format", "json").splitlines()]
    (record,) = [record for record in records if record["topic"] == "jobs"]
    assert (record["delivery"], record["persistence"], record["messages"]) == ("round-robin", "strong", 1)
    assert record["octets"] == int(row[5])
    shell.ok("purge", "jobs")
    (row,) = [line.split() for line in shell.ok("topics").decode().splitlines() if line.startswith("jobs ")]
    assert row[4:] == ["0", "0", "-", "-", "0"]
    shell.ok("delete", "jobs")
    assert b"jobs" not in shell.ok("topics")


def test_spaces_around_the_name_of_a_topic_are_visible(shell: Shell) -> None:
    for topic in (" ", " a b  "):
        shell.ok("declare", topic)
    rows = shell.ok("topics").decode().splitlines()
    assert {row.split("  ")[0] for row in rows} >= {"\\x20", "\\x20a b\\x20\\x20"}
    for topic in (" ", " a b  "):
        shell.ok("delete", topic)


def test_numbers_of_topics_are_aligned_to_the_right(shell: Shell) -> None:
    shell.ok("pub", "aligned", "four", "--confirm")
    head, *rows = shell.ok("topics").decode().splitlines()
    (row,) = [row for row in rows if row.startswith("aligned ")]
    found = right_aligned(head, row)
    assert {"ID", "MESSAGES", "OCTETS", "FIRST", "LAST", "SUBSCRIBERS"} <= found
    assert "PERSISTENCE" not in found


def test_ping(shell: Shell) -> None:
    assert re.fullmatch(rb"[0-9]+\.[0-9]{3} ms\n", shell.ok("ping"))


def test_version(shell: Shell) -> None:
    assert shell.ok("--version").startswith(b"omq ")


@pytest.mark.parametrize("command", [[], ["pub"], ["sub"], ["declare"], ["topics"], ["delete"], ["ping"]])
def test_help(shell: Shell, command: list[str]) -> None:
    text = shell.ok(*command, "--help")
    assert text.startswith(b"usage: omq")
    assert len(text.splitlines()) > 5


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["publish", "t", "x"],
        ["pub", "t"],
        ["pub", "t", "x", "--lines", "f"],
        ["pub", "", "x"],
        ["pub", "t" * 256, "x"],
        ["sub", "t", "--from", "yesterday"],
        ["sub", "t", "--count", "-1"],
        ["sub", "t", "--credit", "0"],
        ["declare", "t", "--delivery", "twice"],
        ["--server", "localhost", "ping"],
        ["--server", "omq://" + "a" * 70 + ":1", "ping"],
        ["--server", "omq://ü..x:1", "ping"],
        ["--server", b"omq://\xff:1", "ping"],
        ["pub", "t", "--lines", ""],
    ],
)
def test_bad_usage(shell: Shell, arguments: list[str | bytes]) -> None:
    done = shell.omq(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"usage: omq" in done.stderr
    assert b"Traceback" not in done.stderr


def test_an_error_names_the_variable_with_the_bad_address(shell: Shell) -> None:
    done = shell.omq("ping", OMQ_SERVER="localhost")
    assert done.returncode == 2
    assert b"argument --server: $OMQ_SERVER: 'localhost' is no address of the form " in done.stderr
    done = shell.omq("ping", "--server", "localhost")
    assert b"argument --server: 'localhost' is no address of the form " in done.stderr
    done = shell.omq("ping", OMQ_SERVER="omq://a..b")
    assert b"argument --server: $OMQ_SERVER: 'omq://a..b': no host can have this name\n" in done.stderr


def test_a_replay_from_no_server_says_so_as_other_commands_do(shell: Shell, tmp_path: Path) -> None:
    done = shell.omq("replay", "t", "--to", f"jsonl:{tmp_path / 'out'}", "--server", "omq://127.0.0.1:1")
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert len(said) > 1
    assert all(line.startswith(b"omq: The server 127.0.0.1:1 cannot be reached: ") for line in said)


def test_the_id_of_a_connection_is_a_number(shell: Shell) -> None:
    done = shell.omq("disconnect", "omq sub")
    assert done.returncode == 2
    assert b"argument ID: 'omq sub' is no number\n" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["delete", "no-such-topic"], b"omq: Delete no-such-topic: "),
        (
            ["--server", "omq://127.0.0.1:1", "ping"],
            b"omq: cannot connect to 127.0.0.1:1: Connection refused; start omq-server there, "
            b"or name another server with --server or $OMQ_SERVER\n",
        ),
        (["pub", "t", "--lines", "no-such-file"], b"omq: no-such-file: No such file or directory\n"),
        (["sub", "one", "--from", "999999999"], b"omq: Subscribe one: "),
        (["pub", "t", "--lines", "/proc/self/mem"], b"omq: /proc/self/mem: Input/output error\n"),
        (["pub", "t", "--lines", "/dev/zero"], b"omq: /dev/zero: a line has more than 1048562 octets"),
    ],
)
def test_failures_are_one_line(shell: Shell, arguments: list[str], said: bytes) -> None:
    done = shell.omq(*arguments)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(said)
    assert done.stderr.count(b"\n") == 1


def test_a_refused_publish_is_a_failure_without_confirm_too(tmp_path: Path) -> None:
    (tmp_path / "omq.toml").write_text("allow_undeclared = false\n")
    with running_server(tmp_path, "--config", str(tmp_path / "omq.toml")) as shell:
        for extra in ([], ["--confirm"]):
            done = shell.omq("pub", "unknown", "x", *extra)
            assert done.returncode == 1
            assert b"Publish unknown: " in done.stderr
            assert b"Traceback" not in done.stderr


def test_refusals_that_say_the_same_are_counted(tmp_path: Path) -> None:
    (tmp_path / "omq.toml").write_text("max_message_bytes = 70000\n")
    with running_server(tmp_path, "--config", str(tmp_path / "omq.toml")) as shell:
        for extra in ([], ["--confirm"]):
            lines = b"x" * 70_001 + b"\n" + b"fits\n" + b"x" * 70_001 + b"\n" + b"x" * 70_002 + b"\n"
            done = shell.omq("pub", "known", "-", *extra, input=lines)
            assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
            assert done.stderr.startswith(b"omq: Publish known: 2 messages: ")
            assert done.stderr.count(b"Publish known: ") == 2


def test_messages_are_printed_unchanged(shell: Shell) -> None:
    with shell.start("sub", "flow") as sub, shell.start("pub", "flow", "-") as pub:
        assert sub.stdout is not None
        assert pub.stdin is not None
        shell.wait_for_subscriber("flow")
        for line in (b"first\n", b"second\n"):
            pub.stdin.write(line)
            pub.stdin.flush()
            assert sub.stdout.readline() == line
        pub.stdin.close()
        assert pub.wait(SECONDS) == 0
        sub.send_signal(signal.SIGINT)
        assert sub.wait(SECONDS) == 0
        assert sub.stderr is not None
        assert sub.stderr.read() == b""


def test_interrupting_before_the_count_is_a_failure_without_a_traceback(shell: Shell) -> None:
    with shell.start("sub", "interrupted", "--count", "5") as sub:
        shell.wait_for_subscriber("interrupted")
        sub.send_signal(signal.SIGINT)
        _, said = sub.communicate(timeout=SECONDS)
        assert (sub.returncode, said) == (1, b"")


def test_a_closed_pipe_ends_a_subscription_that_has_nothing_to_print(shell: Shell) -> None:
    with shell.start("sub", "closed") as sub:
        assert sub.stdout is not None
        shell.wait_for_subscriber("closed")
        sub.stdout.close()
        assert sub.wait(SECONDS) == 0
        assert sub.stderr is not None
        assert sub.stderr.read() == b""


def test_a_pipe_that_head_closes_ends_the_command(shell: Shell) -> None:
    shell.ok("pub", "many", "-", "--confirm", input=b"".join(b"%d\n" % n for n in range(100_000)))
    with shell.start("sub", "many", "--from", "beginning") as sub:
        head = subprocess.run(["head", "-1"], stdin=sub.stdout, capture_output=True, timeout=SECONDS)
        assert sub.stdout is not None
        sub.stdout.close()
        assert head.stdout == b"0\n"
        assert sub.wait(SECONDS) == 0
        assert sub.stderr is not None
        assert sub.stderr.read() == b""


def test_workers_share_jobs_and_confirm_them(shell: Shell) -> None:
    shell.ok("declare", "shared", "--delivery", "round-robin")
    shell.ok("pub", "shared", "-", "--confirm", input=b"a\nb\nc\n")
    assert shell.ok("sub", "shared", "--credit", "1", "--count", "2") == b"a\nb\n"
    assert shell.ok("sub", "shared", "--credit", "5", "--count", "1") == b"c\n"


def test_an_error_shows_the_usage_of_the_command_and_a_near_option(shell: Shell) -> None:
    done = shell.omq("sub", "t", "--cuont", "3")
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: omq sub ")
    assert b"perhaps you mean --count" in done.stderr
    done = shell.omq("queues", "peek", "q", "--frist", "3")
    assert done.stderr.startswith(b"usage: omq queues peek ")
    assert b"perhaps you mean --first" in done.stderr
    done = shell.omq("store", "backup", "--to", "copy")
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: omq store backup ")
    assert b"unrecognized arguments: --to" in done.stderr


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("publish t x", "pub"),
        ("subscribe t", "sub"),
        ("topic", "topics"),
        ("queue list", "queues"),
        ("queues lst", "list"),
        ("bindings bnd", "bind"),
    ],
)
def test_an_error_suggests_a_near_command(shell: Shell, line: str, meant: str) -> None:
    done = shell.omq(*line.split())
    assert done.returncode == 2
    assert done.stderr.endswith(f"; perhaps you mean {meant}\n".encode())


@pytest.mark.parametrize("word", ["xyzzy", "produce"])
def test_an_unknown_command_without_a_near_one_lists_all(shell: Shell, word: str) -> None:
    done = shell.omq(word)
    assert done.returncode == 2
    assert b"choose from" in done.stderr
    assert b"perhaps" not in done.stderr


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("queues change q --max-length 5", "max_length=5"),
        ("queues change q --max_length=5", "max_length=5"),
        ("queues declare q --ttl-sm 5", "ttl_ms=5"),
        ("queues declare q --overflow=reject-publish", "overflow=reject-publish"),
        ("queues declare q --delivery-limit", "delivery_limit=VALUE"),
        ("queues declare q --delivery-limit --persistence weak", "delivery_limit=VALUE"),
        ("pub t x --content-type text/plain", "--property content_type=text/plain"),
    ],
)
def test_an_error_suggests_what_is_no_option_but_an_assignment(shell: Shell, line: str, meant: str) -> None:
    done = shell.omq(*line.split())
    assert done.returncode == 2
    assert f"; perhaps you mean {meant}; to give ".encode() in done.stderr


@pytest.mark.parametrize(
    "arguments", [["pub", "a", "-x"], ["pub", "a", "b", "--unheard-of"], ["delete", "-x"]]
)
def test_arguments_after_two_dashes_are_no_options(shell: Shell, arguments: list[str]) -> None:
    done = shell.omq(*arguments)
    assert done.returncode == 2
    assert f"to give {arguments[-1]!r} as it is, write -- before it".encode() in done.stderr
    done = shell.omq("pub", "a", "--conf")
    assert done.returncode == 2
    assert b"write --" not in done.stderr
    shell.ok("pub", "--confirm", "a", "--", "-x")


@pytest.mark.parametrize(
    ("arguments", "closed", "said"),
    [
        ("pub t - --confirm", "<&-", b"omq: standard input is closed\n"),
        ("sub t", ">&-", b"omq: standard output is closed\n"),
        ("topics", ">&-", b"omq: standard output is closed\n"),
        ("ping", ">&-", b"omq: standard output is closed\n"),
        ("--version", ">&-", b"omq: standard output is closed\n"),
        ("--help", ">&-", b"omq: standard output is closed\n"),
        ("man", ">&-", b"omq: standard output is closed\n"),
        ("delete no-such-topic", "2>&-", b""),
        ("pub t --lines /dev/zero", "2>&-", b""),
    ],
)
def test_closed_standard_streams_are_one_line(shell: Shell, arguments: str, closed: str, said: bytes) -> None:
    command = [*OMQ, *arguments.split()]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command],
        capture_output=True,
        env=shell.environment,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", said)


@pytest.mark.parametrize("arguments", ["topics", "--version", "--help", "pub --help", "store check --help"])
def test_an_output_without_room_is_one_line(shell: Shell, arguments: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = shell.omq(*arguments.split(), stdout=full)
    assert (done.returncode, done.stderr) == (1, b"omq: standard output: No space left on device\n")


def test_an_output_that_does_not_block_gets_everything(shell: Shell) -> None:
    """Other programs that have the same pipe may set it so."""
    body = b"x" * 300_000  # more than a pipe holds
    shell.ok("pub", "large", "-", "--confirm", input=body + b"\n")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = ["omq", "sub", "large", "--from", "beginning", "--count", "1"]
    with (
        Forked[bytes](command, stdout=writer, stderr=subprocess.PIPE, env=shell.environment) as sub,
        os.fdopen(reader, "rb") as output,
    ):
        os.close(writer)
        assert output.read() == body + b"\n"
        assert sub.stderr is not None
        assert (sub.wait(SECONDS), sub.stderr.read()) == (0, b"")


def test_publishing_needs_no_standard_streams(shell: Shell) -> None:
    command = [*OMQ, "pub", "detached", "x", "--confirm"]
    done = subprocess.run(
        ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], env=shell.environment, timeout=SECONDS
    )
    assert done.returncode == 0
    assert shell.ok("sub", "detached", "--from", "beginning", "--count", "1") == b"x\n"


def test_an_endless_line_is_refused_and_takes_no_memory(shell: Shell) -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -v 1000000; "$@" < /dev/zero', "sh", *OMQ, "pub", "endless", "-"],
        capture_output=True,
        env=shell.environment,
        timeout=SECONDS,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"omq: standard input: a line has more than ")
    assert done.stderr.count(b"\n") == 1


def test_the_longest_line_is_published(shell: Shell, tmp_path: Path) -> None:
    longest = (1 << 20) - len('(Publish longest "")')
    file = tmp_path / "lines"
    file.write_bytes(b"short\n" + b"x" * longest + b"\nshort\n")
    shell.ok("pub", "longest", "--lines", str(file), "--confirm")
    read = ("sub", "longest", "--from", "beginning", "--count", "3")
    assert shell.ok(*read) == file.read_bytes()
    file.write_bytes(b"x" * (longest + 1) + b"\n")
    done = shell.omq("pub", "longest", "--lines", str(file), "--confirm")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert f"a line has more than {longest} octets".encode() in done.stderr


def test_interrupting_while_modules_are_loaded_prints_no_traceback(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "crc32c.py").write_text(
        "import os\nos.write(1, b'loading\\n')\nwhile os.read(0, 100):\n    pass\n"
    )
    environment = {**shell.environment, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    pipe = subprocess.PIPE
    with subprocess.Popen([*OMQ, "ping"], stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode in (1, -signal.SIGINT)
    assert said == b""
