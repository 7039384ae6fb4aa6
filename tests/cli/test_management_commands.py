"""omq queues, omq exchanges and omq bindings, as processes against a server process."""

import json
from pathlib import Path

import pytest
from cli_helpers import Shell, on_a_terminal


def records(shell: Shell, *command: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in shell.ok(*command, "--format", "json").splitlines()]


def queue(shell: Shell, name: str) -> dict[str, object]:
    (found,) = [record for record in records(shell, "queues", "list") if record["name"] == name]
    return found


def test_a_queue_from_its_declaration_to_its_end(shell: Shell) -> None:
    shell.ok("queues", "declare", "cli-jobs", "max_length=100", "dead_letter_exchange=cli-dead")
    shell.ok("queues", "declare", "cli-jobs", "--persistence", "strong")
    shell.ok("pub", "cli-jobs", "-", "--confirm", input=b"one\ntwo\n\xff\n")
    found = queue(shell, "cli-jobs")
    assert (found["ready"], found["unacknowledged"], found["consumers"]) == (3, 0, 0)
    assert found["oldest_ms"] is None
    assert found["options"] == {"max_length": "100", "dead_letter_exchange": "cli-dead"}
    shell.ok("queues", "change", "cli-jobs", "max_length=", "ttl-ms=60000")
    assert queue(shell, "cli-jobs")["options"] == {"ttl_ms": "60000", "dead_letter_exchange": "cli-dead"}
    shown = records(shell, "queues", "peek", "cli-jobs", "--first", "2")
    assert [(message["id"], message["body"]) for message in shown] == [(2, "two"), (3, {"base64": "/w=="})]
    assert shell.ok("queues", "peek", "cli-jobs", "--count", "1").decode().splitlines() == [
        "ID  SIZE  EXCHANGE  KEY       BODY",
        " 1     3            cli-jobs  one",
    ]
    shell.ok("queues", "declare", "cli-other", "--persistence", "transient")
    assert shell.ok("queues", "move", "cli-jobs", "--to", "cli-other", "--count", "2") == b"2\n"
    assert shell.ok("queues", "move", "cli-jobs") == b"0\n"
    assert queue(shell, "cli-other")["ready"] == 2
    assert shell.ok("queues", "purge", "cli-jobs") == b"1\n"
    line = next(
        line
        for line in shell.ok("queues", "list").decode().splitlines()
        if line.startswith(("NAME", "cli-jobs"))
    )
    assert line.split() == ["NAME", "READY", "UNACKNOWLEDGED", "OLDEST_MS", "CONSUMERS", "DURABLE", "OPTIONS"]
    for name in ("cli-jobs", "cli-other"):
        shell.ok("queues", "delete", name)
    assert b"cli-" not in shell.ok("queues", "list")


def test_long_messages_are_not_moved(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * (6 << 20))
    for name in ("cli-from", "cli-to"):
        shell.ok("queues", "declare", name, "--persistence", "transient")
    shell.ok("pub", "cli-from", "first", "--confirm")
    shell.ok("pub", "cli-from", "--file", str(tmp_path / "long"), "--confirm")
    shell.ok("pub", "cli-from", "last", "--confirm")
    done = shell.omq("queues", "move", "cli-from", "--to", "cli-to")
    assert (done.returncode, done.stdout) == (1, b"2\n")
    assert b"message 2 is too large to be moved" in done.stderr
    done = shell.omq("queues", "move", "cli-from", "--to", "cli-to")
    assert (done.returncode, done.stdout) == (1, b"")
    assert (queue(shell, "cli-from")["ready"], queue(shell, "cli-to")["ready"]) == (1, 2)
    for name in ("cli-from", "cli-to"):
        shell.ok("queues", "delete", name)


def test_declare_changes_nothing_of_a_queue_that_exists(shell: Shell) -> None:
    shell.ok("queues", "declare", "cli-kept", "max_length=5", "dead_letter_exchange=amq.default")
    shell.ok("pub", "cli-kept", "-", "--confirm", input=b"one\ntwo\nthree\n")
    done = shell.omq("queues", "declare", "cli-kept", "max_length=2")
    assert done.returncode == 1
    assert b"the queue exists with max_length=5; change it with `omq queues change`" in done.stderr
    found = queue(shell, "cli-kept")
    assert found["ready"] == 3
    assert found["options"] == {"max_length": "5", "dead_letter_exchange": "amq.default"}
    for wrong in ("max_lenght=5", "max_length=many", "overflow=drop"):
        assert shell.omq("queues", "declare", "cli-never", wrong).returncode == 2
    assert b"cli-never" not in shell.ok("queues", "list")
    shell.ok("queues", "delete", "cli-kept")


def test_a_broadcast_topic_is_no_queue_to_delete(shell: Shell) -> None:
    shell.ok("declare", "cli-news", "--delivery", "broadcast")
    done = shell.omq("queues", "delete", "cli-news")
    assert (done.returncode, b"is a broadcast topic, and no queue" in done.stderr) == (1, True)
    assert b"cli-news" in shell.ok("topics")
    shell.ok("delete", "cli-news")


def test_exchanges_and_bindings(shell: Shell) -> None:
    shell.ok("queues", "declare", "cli-q")
    shell.ok("exchanges", "declare", "cli-orders", "topic", "--alternate", "cli-rest")
    shell.ok("exchanges", "declare", "cli-rest", "headers", "--transient", "--auto-delete", "--internal")
    shell.ok("bindings", "bind", "cli-orders", "cli-q", "eu.#")
    arguments = ["a=1", "b=true", "c=x", "d", "x-match=any", "e=-5", "f=false", "g=", "h=1x", "i=y"]
    given = [word for argument in arguments for word in ("--argument", argument)]
    shell.ok("bindings", "bind", "cli-rest", "cli-q", *given)
    shell.ok("bindings", "bind", "cli-orders", "cli-rest", "#", "--exchange")
    own = [each for each in records(shell, "exchanges", "list") if str(each["name"]).startswith("cli-")]
    assert own == [
        {
            "name": "cli-orders", "type": "topic", "durable": True, "auto_delete": False,
            "internal": False, "alternate": "cli-rest",
        },
        {
            "name": "cli-rest", "type": "headers", "durable": False, "auto_delete": True,
            "internal": True, "alternate": None,
        },
    ]  # fmt: skip
    bound = records(shell, "bindings", "list")
    assert bound == [
        {"source": "cli-orders", "to": "queue", "destination": "cli-q", "key": "eu.#", "arguments": {}},
        {"source": "cli-orders", "to": "exchange", "destination": "cli-rest", "key": "#", "arguments": {}},
        {
            "source": "cli-rest", "to": "queue", "destination": "cli-q", "key": "",
            "arguments": {
                "a": 1, "b": True, "c": "x", "d": None, "e": -5, "f": False, "g": "", "h": "1x", "i": "y",
                "x-match": "any",
            },
        },
    ]  # fmt: skip
    assert b"a=1 b=yes c=x d=- e=-5 f=no g= h=1x i=y x-match=any" in shell.ok("bindings", "list")
    shell.ok("bindings", "unbind", "cli-orders", "cli-q", "eu.#")
    shell.ok("bindings", "unbind", "cli-orders", "cli-rest", "#", "--exchange")
    shell.ok("exchanges", "delete", "cli-orders")
    shell.ok("exchanges", "delete", "cli-rest")
    assert records(shell, "bindings", "list") == []
    shell.ok("queues", "delete", "cli-q")


@pytest.mark.parametrize(
    ("command", "status", "sentence"),
    [
        (("queues", "purge", "none"), 1, b"there is no queue 'none'"),
        (("exchanges", "delete", "none"), 1, b"there is no exchange 'none'"),
        (("exchanges", "delete", "amq.topic"), 1, b"reserved prefix"),
        (("exchanges", "declare", "amq.topic", "direct"), 1, b"received 'direct' but current is 'topic'"),
        (("bindings", "bind", "none", "none"), 1, b"there is no exchange 'none'"),
        (("queues", "change", "q"), 2, b"the following arguments are required"),
        (("queues", "change", "q", "ttl_ms"), 2, b"must be OPTION=VALUE"),
        (("queues", "peek", "q", "--first", "9" * 5000), 2, b"is no number from 0"),
        (("queues", "peek", "q", "--first", "-1"), 2, b"is no number from 0"),
        (("exchanges", "declare", "e", "delayed"), 2, b"invalid choice"),
        (("queues",), 2, b"VERB"),
        (("bindings", "bind", "e", "q", *["--argument=a"] * 11), 1, b"at most 10 arguments"),
    ],
)
def test_refusals(shell: Shell, command: tuple[str, ...], status: int, sentence: bytes) -> None:
    done = shell.omq(*command)
    assert done.returncode == status
    assert sentence in done.stderr
    assert done.stdout == b""


def test_connection_options_may_follow_the_verb(shell: Shell) -> None:
    done = shell.omq("queues", "list", "--server", shell.url, OMQ_SERVER="omq://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_gets_shortened_names_and_nothing_else_does(shell: Shell) -> None:
    name = "begin" + "x" * 246 + "-end"
    shell.ok("queues", "declare", name, f"dead_letter_key={name}", "max_length=5")
    shell.ok("queues", "declare", "short")
    for command in (("topics",), ("topics", "--lag"), ("queues", "list")):
        (row,) = [row for row in on_a_terminal(shell, *command).decode().splitlines() if "begin" in row]
        beginning, end = row.split()[0].split("…")
        assert name.startswith(beginning)
        assert name.endswith(end)
        assert len(row) < 160
        assert name.encode() in shell.ok(*command)
        assert name.encode() in on_a_terminal(shell, *command, "--format", "json")
    assert "…" in row.split("dead_letter_key=")[1]
    assert " max_length=5 " in row
    body = "b" * 90
    shell.ok("pub", "short", body, "--confirm")
    assert body.encode() in on_a_terminal(shell, "queues", "peek", "short")
