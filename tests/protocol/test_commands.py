"""Commands: every decision and every value that OCaml's derived converters reached on the same lines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omq.model import (
    Delivery,
    FromBeginning,
    FromCurrent,
    FromMessage,
    Persistence,
    Persistent,
    Replay,
    Sync,
    Transient,
)
from omq.protocol.omq.commands import (
    MAX_TOKENS,
    CommandError,
    command_of_sexp,
    parse,
    publish_sexp,
    sexp_of_command,
)
from omq.protocol.omq.sexp import read, write
from omq.protocol.omq.types import (
    Ack,
    Blocks,
    Command,
    Confirm,
    Connect,
    Declare,
    Delete,
    Fetch,
    Get,
    Publish,
    Put,
    Received,
    Request,
    Subscribe,
    Topics,
    Unsubscribe,
)

DATA = Path(__file__).parent.parent / "data" / "sexp"
OF_THE_TEXT = {"Connect", "Subscribe", "Unsubscribe", "Ack"}

Row = dict[str, Any]


def rows(name: str) -> list[Row]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


GENERATED = rows("gen.jsonl")
BY_HAND = rows("hand.jsonl")
OF_ONE_LINE = [row for row in BY_HAND if row["cat"] != "multiline"]
OF_SEVERAL_LINES = [row for row in BY_HAND if row["cat"] == "multiline"]


def replay_of(recorded: Row) -> Replay:
    match recorded:
        case {"replay": "From_beginning"}:
            return FromBeginning()
        case {"replay": "From_current"}:
            return FromCurrent()
        case {"replay": "From_message", "id": id}:
            return FromMessage(id)
        case _:
            raise AssertionError(recorded)


def persistence_of(recorded: Row) -> Persistence:
    match recorded:
        case {"persistence": "Transient"}:
            return Transient()
        case {"persistence": "Persistent", "sync": sync}:
            return Persistent(Sync(sync))
        case _:
            raise AssertionError(recorded)


def command_of(recorded: Row) -> Command:
    """Return the command that OCaml decoded, from what was recorded about it."""
    octets = {key: bytes.fromhex(recorded[key]) for key in ("topic", "id", "body") if key in recorded}
    name = recorded["cmd"]
    topic = octets.get("topic", b"")
    match name:
        case "Connect":
            return Connect(recorded["version"], octets["id"])
        case "Subscribe":
            return Subscribe(topic, replay_of(recorded["from"]))
        case "Get":
            return Get(topic, replay_of(recorded["from"]))
        case "Unsubscribe":
            return Unsubscribe(topic)
        case "Delete":
            return Delete(topic)
        case "Put":
            return Put(topic)
        case "Ack":
            return Ack(recorded["us"])
        case "Publish":
            return Publish(topic, octets["body"])
        case "Declare":
            return Declare(topic, Delivery(recorded["delivery"]), persistence_of(recorded["persist"]))
        case "Confirm":
            return Confirm(recorded["n"])
        case "Request":
            return Request(topic, recorded["n"])
        case "Received":
            return Received(topic, recorded["message"])
        case "Fetch":
            return Fetch(topic, recorded["first"], recorded["count"])
        case "Blocks":
            return Blocks(topic, recorded["first"], recorded["count"])
        case "Topics":
            return Topics()
        case _:
            raise AssertionError(recorded)


def parsed(line: bytes) -> Command | str | None:
    """Return the command, None for no command, or the word `refused`."""
    try:
        return parse(line)
    except CommandError:
        return "refused"


def recorded_of(row: Row) -> Command | str | None:
    """Return the expected result of `parsed`. A server skips blank lines, where sexplib must return a sexp or
    fail.
    """
    if row["ok"]:
        return command_of(row["decoded"])
    return None if row.get("cat") == "empty" and bytes.fromhex(row["line"]) != b"#;" else "refused"


# -- what OCaml decided -------------------------------------------------------------------------------------


def test_the_recorded_lines_are_all_there() -> None:
    assert (len(GENERATED), len(BY_HAND), len(OF_SEVERAL_LINES)) == (2000, 437, 11)
    assert {row["style"] for row in GENERATED} == {"mach", "hum", "mach2013", "wild"}
    assert not any(b"\n" in bytes.fromhex(row["line"]) for row in GENERATED + OF_ONE_LINE)
    assert len({row["decoded"]["cmd"] for row in GENERATED}) == 15


def test_every_random_command_is_read_as_by_ocaml() -> None:
    for row in GENERATED:
        assert parsed(bytes.fromhex(row["line"])) == command_of(row["decoded"]), row


@pytest.mark.parametrize("category", sorted({row["cat"] for row in OF_ONE_LINE}))
def test_every_line_by_hand_is_read_or_refused_as_by_ocaml(category: str) -> None:
    for row in OF_ONE_LINE:
        if row["cat"] == category:
            assert parsed(bytes.fromhex(row["line"])) == recorded_of(row), (
                row["line"][:200],
                row.get("error"),
            )


@pytest.mark.parametrize(
    "row", OF_SEVERAL_LINES, ids=[bytes.fromhex(r["line"]).hex() for r in OF_SEVERAL_LINES]
)
def test_a_sexp_of_several_lines_is_read_as_by_ocaml(row: Row) -> None:
    assert parsed(bytes.fromhex(row["line"])) == recorded_of(row)


def test_commands_of_the_original_text_are_understood() -> None:
    of_the_text = [row for row in GENERATED if row["seed"]] + [row for row in BY_HAND if row.get("seed_ok")]
    assert len(of_the_text) > 700
    for row in of_the_text:
        command = parse(bytes.fromhex(row["line"]))
        assert type(command).__name__ in OF_THE_TEXT, row
        assert command == command_of(row["decoded"])
    others = [row for row in GENERATED if not row["seed"]]
    others += [row for row in BY_HAND if row["ok"] and not row["seed_ok"]]
    assert not OF_THE_TEXT & {row["decoded"]["cmd"] for row in others}


def test_commands_are_printed_as_sexplib_prints_them() -> None:
    printed = [row for row in GENERATED if row["style"] == "mach"]
    assert len(printed) > 500
    for row in printed:
        line = bytes.fromhex(row["line"])
        sexp = read(line)
        assert sexp is not None
        assert write(sexp) == line
        command = command_of(row["decoded"])
        if not isinstance(command, Ack):  # its time has several printed forms
            assert sexp_of_command(command) == line, row


# -- what we print is what we read --------------------------------------------------------------------------

names = st.one_of(
    st.sampled_from([b"prices", b"a b", b"", b"#|", b"\\", b"nil", b"1.50", b"From_current"]),
    st.binary(max_size=30),
)
longs = st.integers(-(2**63), 2**63 - 1)
replays: st.SearchStrategy[Replay] = st.one_of(
    st.sampled_from([FromBeginning(), FromCurrent()]), st.builds(FromMessage, longs)
)
persistences: st.SearchStrategy[Persistence] = st.sampled_from([Transient(), *map(Persistent, Sync)])
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(Connect, longs, names),
    st.builds(Subscribe, names, replays),
    st.builds(Unsubscribe, names),
    # As far from 1970 as microseconds are exact.
    st.builds(Ack, st.integers(-(2**32) * 1_000_000, 2**32 * 1_000_000)),
    st.builds(Publish, names, names),
    st.builds(Declare, names, st.sampled_from(Delivery), persistences),
    st.builds(Confirm, longs),
    st.builds(Delete, names),
    st.just(Topics()),
    st.builds(Request, names, longs),
    st.builds(Received, names, longs),
    st.builds(Put, names),
    st.builds(Get, names, replays),
    st.builds(Fetch, names, longs, longs),
    st.builds(Blocks, names, longs, longs),
)


@settings(max_examples=400)
@given(commands)
def test_every_command_is_read_back(command: Command) -> None:
    line = sexp_of_command(command)
    assert parse(line) == command
    assert all(0x20 <= octet < 0x7F for octet in line)


@given(names, names)
def test_a_publish_line_equals_the_output_of_the_writer_of_sexps(topic: bytes, body: bytes) -> None:
    assert publish_sexp(topic, body) == write([b"Publish", topic, body])
    assert publish_sexp(topic, body) == sexp_of_command(Publish(topic, body))


@given(commands, st.integers(0, 5), st.sampled_from([b"x", b"", b"(", [], [b"x", b"y"]]))
def test_an_argument_more_or_less_is_refused_by_name(command: Command, position: int, extra: Any) -> None:
    name = type(command).__name__
    sexp = read(sexp_of_command(command))
    if not isinstance(sexp, list):
        sexp = [sexp]
    with_more: list[Any] = [*sexp[: 1 + position], extra, *sexp[1 + position :]]
    for changed in (sexp[:-1], with_more):
        if not changed:
            continue
        with pytest.raises(CommandError) as caught:
            command_of_sexp(changed)
        assert caught.value.constructor == name
        assert caught.value.sentence.startswith(name.encode())


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "constructor", "sentence"),
    [
        (
            b"(Subscribe prices From_Current)",
            "Subscribe",
            b"Subscribe prices: replay must be From_beginning, ",
        ),
        (b"(subscribe prices)", "Subscribe", b"Subscribe prices: takes exactly 2 arguments: topic, replay"),
        (b"(Subscribe)", "Subscribe", b"Subscribe: takes exactly 2 arguments: topic, replay"),
        (b"Subscribe", "Subscribe", b"Subscribe: takes exactly 2 arguments: topic, replay"),
        (b"(Subscribe (a) From_current)", "Subscribe", b"Subscribe: topic must be an atom, not a list"),
        (b"(Confirm x)", "Confirm", b"Confirm x: n must be an integer of 64 bits"),
        (b'(Request "a b" "")', "Request", b'Request "a b": n must be an integer of 64 bits'),
        (b"(Fetch a x 1)", "Fetch", b"Fetch a: first must be an integer of 64 bits"),
        (b"(Blocks a 1 x)", "Blocks", b"Blocks a: count must be an integer of 64 bits"),
        (b"(Publish a)", "Publish", b"Publish a: takes exactly 2 arguments: topic, body"),
        (b"(publish a b c)", "Publish", b"Publish a: takes exactly 2 arguments: topic, body"),
        (b"(Ack 7)", "Ack", b"Ack 7: time must be a time"),
        (b"(Topics)", "Topics", b"Topics: takes no arguments and no parentheses"),
        (b"TOPICS", None, b"Unknown command TOPICS"),
        (b'("a b" c)', None, b'Unknown command "a b"'),
        (b"((Topics))", None, b"Bad command: a list must begin with the name of a command"),
        (b"()", None, b"Bad command: a list must begin with the name of a command"),
        (b"(Publish a", None, b"Bad sexp: "),
        (b"Topics Topics", None, b"Bad sexp: there is more than one sexp"),
    ],
)
def test_a_refusal_names_the_command_it_answers(
    line: bytes, constructor: str | None, sentence: bytes
) -> None:
    with pytest.raises(CommandError) as caught:
        parse(line)
    assert caught.value.constructor == constructor
    assert caught.value.sentence.startswith(sentence)
    assert str(caught.value).encode() == caught.value.sentence


def any_line(draw_from: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(draw_from), max_size=12).map(b"".join)


WORDS = [
    b"(", b")", b" ", b"Publish", b"subscribe", b"Declare ", b"Connect", b"From_message", b"Broadcast",
    b"Ack",
    b"persistent", b"Weak", b"7", b"-", b'"', b"\\", b"#;", b"#|", b"|#", b"\r", b"\0", b"\xff", b"a",
]  # fmt: skip


@settings(max_examples=400)
@given(
    st.one_of(any_line(WORDS), st.binary(max_size=200), any_line(WORDS).map(lambda line: b"(" + line + b")"))
)
def test_any_line_is_a_command_or_refused_in_one_printable_line(line: bytes) -> None:
    try:
        command = parse(line)
    except CommandError as error:
        sentence = error.sentence
    else:
        if command is not None and not isinstance(command, Ack):
            assert parse(sexp_of_command(command)) == command
        return
    assert 0 < len(sentence) < 1000
    assert all(0x20 <= octet < 0x7F for octet in sentence)


@pytest.mark.parametrize(
    "line",
    [
        lambda n: b"(Unsubscribe" + b" a" * n + b")",
        lambda n: b"(Unsubscribe " + b"()" * n + b")",
        lambda n: b"(Unsubscribe " + b"(" * n + b")" * n + b")",
    ],
    ids=["atoms", "lists", "depth"],
)
def test_a_line_of_very_many_parts_is_refused_as_no_sexp_of_a_command(line: Callable[[int], bytes]) -> None:
    with pytest.raises(CommandError, match=f"more than {MAX_TOKENS} atoms and parentheses"):
        parse(line(MAX_TOKENS))
    with pytest.raises(CommandError, match=r"^Unsubscribe"):
        parse(line(10))


@pytest.mark.parametrize(
    ("line", "text"),
    [(b"(Delete)", "takes exactly 1 argument: "), (b"(Publish t)", "takes exactly 2 arguments: ")],
)
def test_one_argument_is_one_and_two_are_several(line: bytes, text: str) -> None:
    with pytest.raises(CommandError, match=text):
        parse(line)
