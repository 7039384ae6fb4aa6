"""`omq pub --dmp` and `omq sub --dmp`, as processes against a server process."""

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest
from cli_helpers import OMQ, SECONDS, Shell, running_server
from measuring import TOLD_BY
from small_disk import DISK_OCTETS


def test_publish_and_subscribe(shell: Shell) -> None:
    assert shell.ok("pub", "--dmp", "one", "hello world") == b""
    assert shell.ok("pub", "--dmp", "--confirm", "one", "again") == b""
    read = ("sub", "--dmp", "one", "--from", "beginning", "--count", "2")
    assert shell.ok(*read) == b"hello world\nagain\n"
    assert shell.ok("sub", "one", "--from", "2", "--count", "1") == b"again\n"


def test_lines_of_a_file_and_of_standard_input(shell: Shell, tmp_path: Path) -> None:
    lines = [b"line %d \xff" % n for n in range(20_000)] + [b"", b"no line feed behind this one"]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines))
    assert shell.ok("pub", "--dmp", "file", "--lines", str(file)) == b""
    assert shell.ok("pub", "--dmp", "file", "-", input=b"\n".join(lines) + b"\n") == b""
    assert shell.ok("pub", "--dmp", "file", "-", input=b"") == b""
    count = str(2 * len(lines))
    assert shell.ok("sub", "file", "--dmp", "--from", "beginning", "--count", count).split(b"\n") == [
        *lines,
        *lines,
        b"",
    ]


def test_a_file_as_one_message(shell: Shell, tmp_path: Path) -> None:
    body = b"".join(b"%07d\n" % n for n in range(300_000))
    file = tmp_path / "file"
    file.write_bytes(body)
    assert shell.ok("pub", "whole", "--file", str(file)) == b""
    read = ("sub", "whole", "--from", "beginning", "--count", "1", "--format", "raw")
    assert shell.ok(*read) == body
    for wrong, why in (("/dev/zero", b"must be a regular file or a pipe"), ("/nowhere", b"No such file")):
        refused = shell.omq("pub", "whole", "--file", wrong)
        assert refused.returncode != 0
        assert why in refused.stderr


READ_ONE = ("--from", "beginning", "--count", "1", "--format", "raw")


def test_standard_input_as_one_message(shell: Shell) -> None:
    body = b"".join(b"%07d\n" % n for n in range(300_000))
    assert shell.ok("pub", "piped", "--file", "-", input=body) == b""
    assert shell.ok("sub", "piped", *READ_ONE) == body
    assert shell.ok("pub", "nothing", "--file", "-", "--confirm", input=b"") == b""
    assert shell.ok("sub", "nothing", *READ_ONE) == b""


def in_a_shell(shell: Shell, script: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a script in which `"$@"` is an omq command. Its limits would not let coverage write its file."""
    command = ["sh", "-c", script, "sh", *OMQ, *arguments]
    environment = {name: value for name, value in shell.environment.items() if name not in TOLD_BY}
    return subprocess.run(command, capture_output=True, env=environment, timeout=SECONDS)


@pytest.mark.parametrize("option", ["--file", "--lines"])
def test_a_second_file_is_refused_and_not_published_alone(shell: Shell, tmp_path: Path, option: str) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_text(f"{name}\n")
    given = (option, str(tmp_path / "first"), option, str(tmp_path / "second"))
    done = shell.omq("pub", "twice", *given, "--confirm")
    assert done.returncode == 2
    assert done.stderr.endswith(f"argument {option}: it is there twice, and takes one file\n".encode())
    assert b"twice" not in shell.ok("topics")


def test_standard_input_is_the_rest_of_a_file(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"head\n" + b"body\n" * 100_000)
    no_folder_for_a_copy = 'ulimit -f 0; (read -r line; "$@") < '
    done = in_a_shell(shell, f"{no_folder_for_a_copy}{tmp_path / 'file'}", "pub", "rest", "--file", "-")
    assert (done.returncode, done.stderr) == (0, b"")
    assert shell.ok("sub", "rest", *READ_ONE) == b"body\n" * 100_000


def test_a_named_pipe_as_one_message(shell: Shell, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    script = f'"$@" & echo body > {tmp_path / "pipe"}; wait'
    publish = in_a_shell(shell, script, "pub", "named-pipe", "--file", str(tmp_path / "pipe"))
    assert (publish.returncode, publish.stderr) == (0, b"")
    assert shell.ok("sub", "named-pipe", *READ_ONE) == b"body\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('"$@" <&-', b"standard input is closed"),
        ('ulimit -f 10; yes | "$@"', b"standard input: it cannot be written to a temporary file in "),
    ],
)
def test_standard_input_that_cannot_be_one_message(shell: Shell, script: str, said: bytes) -> None:
    done = in_a_shell(shell, script, "pub", "unusable", "--file", "-")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
    assert done.stderr.startswith(b"omq: " + said)


def test_messages_as_files(shell: Shell, tmp_path: Path) -> None:
    body = b"".join(b"%07d\n" % n for n in range(300_000))
    (tmp_path / "large").write_bytes(body)
    shell.ok("pub", "a/b", "--file", str(tmp_path / "large"))
    shell.ok("pub", "--confirm", "a/b", "small")
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "a%2Fb-000001").write_bytes(b"was there")
    read = ("sub", "a/b", "--from", "beginning", "--count", "2", "--output-dir", str(saved))
    names = shell.ok(*read).decode().splitlines()
    assert names == [str(saved / "a%2Fb-000002"), str(saved / "a%2Fb-000003")]
    assert [Path(name).read_bytes() for name in names] == [body, b"small"]
    assert sorted(file.name for file in saved.iterdir()) == [f"a%2Fb-00000{n}" for n in (1, 2, 3)]
    new = tmp_path / "new" / "folder"
    assert shell.ok(*read[:-1], str(new)).decode().splitlines()[0] == str(new / "a%2Fb-000001")
    refused = shell.omq(*read[:-1], str(saved / "a%2Fb-000001"))
    assert (refused.returncode, b"File exists" in refused.stderr) == (1, True)
    for wrong in (("a", "b"), ("a*",), ("a", "--credit", "1"), ("a", "--reconnect")):
        assert shell.omq("sub", *wrong, "--output-dir", str(saved)).returncode == 2


def test_a_message_for_which_the_disk_has_no_room(shell: Shell, tmp_path: Path, disk: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(2 * DISK_OCTETS))
    shell.ok("pub", "too-large", "--file", str(tmp_path / "large"))
    done = shell.omq("sub", "too-large", "--from", "beginning", "--count", "1", "--output-dir", str(disk))
    said = f"omq: {disk / 'too-large-000001'}: No space left on device\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (1, b"", said)
    assert list(disk.iterdir()) == []


def test_formats(shell: Shell) -> None:
    shell.ok("pub", "--dmp", "formats", "-", input="é\n".encode() + b"\xff\n")
    read = ("sub", "formats", "--dmp", "--from", "beginning", "--count", "2", "--format")
    assert shell.ok(*read, "raw") == "é".encode() + b"\xff"
    assert [json.loads(line) for line in shell.ok(*read, "json").splitlines()] == [
        {"topic": "formats", "body": "é", "routing_key": "formats"},
        {"topic": "formats", "body_base64": base64.b64encode(b"\xff").decode(), "routing_key": "formats"},
    ]


def test_live_messages_until_the_topic_is_deleted(shell: Shell) -> None:
    shell.ok("declare", "live")
    subscriber = shell.start("sub", "live", "--dmp")
    shell.wait_for_subscriber("live")
    assert subscriber.stdout is not None
    shell.ok("pub", "--dmp", "live", "now")
    assert subscriber.stdout.readline() == b"now\n"
    shell.ok("delete", "live")
    assert subscriber.communicate(timeout=SECONDS)[0] == b""
    assert subscriber.returncode == 0


def test_a_refusal(shell: Shell) -> None:
    shell.ok("declare", "jobs", "--delivery", "round-robin")
    done = shell.omq("sub", "jobs", "--dmp", "--from", "beginning")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"omq: Get jobs: ")


@pytest.mark.parametrize(
    ("size", "reason"),
    [(3000, "its body of 3000 octets is above the limit of 1000"), (200_000, "its size is 200008")],
)
def test_the_reason_of_a_refused_sink_is_said_once(tmp_path: Path, size: int, reason: str) -> None:
    config = tmp_path / "omq.toml"
    config.write_text("max_message_bytes = 1000\n")
    with running_server(tmp_path, "--config", str(config)) as shell:
        done = shell.omq("pub", "--dmp", "long", "--lines", "-", input=b"first\n" + size * b"x")
    assert (done.returncode, done.stdout) == (1, b"")
    # On the connection that asked for the sink, or, if that ends earlier, in the answer to the sink.
    assert done.stderr.count(reason.encode()) == 1
    assert done.stderr.splitlines()[-1].startswith(b"omq: messages stored: 1 of 2")


def test_credit_with_dmp_is_refused(shell: Shell) -> None:
    done = shell.omq("sub", "jobs", "--dmp", "--credit", "1")
    assert done.returncode == 2
    assert b"--credit does not go with --dmp" in done.stderr


@pytest.mark.parametrize("command", ["pub", "sub"])
def test_help_explains_dmp(shell: Shell, command: str) -> None:
    assert b"--dmp" in shell.ok(command, "--help")


@pytest.mark.parametrize("source", ["body", "lines", "file"])
def test_messages_have_the_given_routing_key_and_properties(
    shell: Shell, tmp_path: Path, source: str
) -> None:
    (tmp_path / "body").write_bytes(b"{}")
    given = ("{}",) if source == "body" else (f"--{source}", str(tmp_path / "body"))
    head = (
        "--routing-key",
        "orders.new",
        "--property",
        "content-type=application/json",
        "--property",
        "priority=7",
        "--header",
        "source=web",
        "--header",
        "empty=",
    )
    topic = f"properties of {source}"
    assert shell.ok("pub", topic, *given, *head) == b""
    read = ("sub", topic, "--dmp", "--from", "beginning", "--count", "1", "--format", "json")
    assert json.loads(shell.ok(*read)) == {
        "topic": topic,
        "body": "{}",
        "routing_key": "orders.new",
        "content_type": "application/json",
        "headers": {"source": "web", "empty": ""},
        "priority": 7,
    }


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--property", "colour=red", b"'colour=red' is no NAME=VALUE with the name of a property"),
        ("--property", "app_id", b"'app_id' is no NAME=VALUE with the name of a property"),
        ("--property", f"priority={'9' * 5000}", b"9' is no number from 0 to 255"),
        ("--property", "priority=256", b"priority: '256' is no number from 0 to 255"),
        ("--property", "expiration=5s", b"expiration: '5s' is no number of milliseconds"),
        ("--property", "expiration=-1", b"expiration: '-1' is no number of milliseconds"),
        ("--property", "app_id=" + "x" * 256, b"it has 256 octets, more than 255"),
        ("--header", "source", b"'source' is no NAME=VALUE"),
        ("--header", "=web", b"'=web' is no NAME=VALUE"),
        ("--header", "x" * 256 + "=web", b"it has 256 octets, more than 255"),
        ("--routing-key", "x" * 256, b"it has 256 octets, more than 255"),
    ],
)
def test_a_wrong_head_is_a_wrong_command_line(shell: Shell, option: str, value: str, said: bytes) -> None:
    done = shell.omq("pub", "heads", "x", option, value)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr
