"""Replays without Spark: blocks from a store or a server to a server (`omq/replay/`)."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_stores import NOON, Topic, damage, make_store
from made_stores import body as made_body
from replay_helpers import bodies, replay, stored
from replayed_topics import KEYED, KEYED_AND_NUMBERED, NUMBERED, TABLED, way
from server_command import running_server
from serving_stores import Serving, serving

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.fields import LongString, Table
from omq.protocol.amqp.head import PLAIN_HEAD
from omq.protocol.dmp.reader import EnvelopeReader
from omq.replay.envelopes import ReplayProducer, envelopes
from omq_storage.blocks import encode, merge

# -- what is copied -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["servers", "path"])
def test_topics_are_copied_as_they_are(
    source: Serving, target: Serving, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = replay(*way(source, how), "headed", "--to", f"omq://{target.address}/headed-{how}")
    said = capsys.readouterr()
    assert (done, said.err) == (
        0,
        "omq: the messages go over as they are: stored blocks are copied, without Spark\n",
    )
    assert said.out.splitlines()[1].split() == ["headed", "15", "21", "B"]
    assert stored(target.address, f"headed-{how}") == stored(source.address, "headed")


def test_the_log_of_a_server_names_the_program(source: Serving, tmp_path: Path) -> None:
    with running_server("--store", tmp_path / "store", "--listen", "127.0.0.1:0") as fresh:
        assert replay(*way(source, "path"), "plain", "--to", f"omq://{fresh.address}") == 0
        _, _, log = fresh.stop()
    assert "'omq.replay' (omq) disconnected" in log
    assert "omq.spark" not in log
    # And each level of a new store says that it is new.
    assert log.count(": It is new.") == 3
    assert "nothing needed to be done" not in log


def test_a_pattern_and_the_names_of_the_source(source: Serving, tmp_path: Path) -> None:
    with serving(tmp_path / "store") as fresh:
        assert replay(*way(source, "servers"), "--pattern", "[a-z]+", "--to", f"omq://{fresh.address}") == 0
        for topic in ("plain", "headed", "trimmed"):
            assert stored(fresh.address, topic) == stored(source.address, topic), topic


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        (["--first", "2490"], range(2490, 2501)),
        (["--last", "3"], range(1, 4)),
        (["--first", "1000", "--last", "1003"], range(1000, 1004)),
        (["--since", "2023-11-14T22:54:50Z"], range(2490, 2501)),
        (["--until", "2023-11-14T22:13:22Z"], range(1, 2)),
        (["--first", "3", "--until", "2023-11-14T22:13:22+00:00"], range(0)),
        (["--last", "9000", "--first", "2499", "--skip-lost"], range(2499, 2501)),
    ],
)
def test_bounds(source: Serving, target: Serving, bounds: list[str], wanted: range) -> None:
    topic = "bounds" + "".join(bounds).replace("-", "").replace(":", "").replace("+", "")
    assert replay(*way(source, "servers"), "plain", *bounds, "--to", f"omq://{target.address}/{topic}") == 0
    assert bodies(target.address, topic) == [made_body(message) for message in wanted]


def test_a_dry_run_shows_the_plan_and_does_nothing(
    source: Serving, target: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--pattern", "plain|empty", "--first", "11", "--skip-lost", "--dry-run")
    assert replay(*way(source, "servers"), *words, "--to", f"omq://{target.address}/dry", "--speed", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        f"from   omq://{source.address}",
        f"to     omq://{target.address}, topic 'dry'",
        "how    stored blocks are copied, without Spark, at 2 times the pace they were published at",
    ]
    assert lines[5].split()[:4] == ["empty", "-", "-", "0"]
    assert lines[6].split()[:4] == ["plain", "11", "2500", "2,490"]
    assert stored(target.address, "dry") == []


# -- producers ----------------------------------------------------------------------------------------------


def test_messages_of_one_producer_in_two_topics_all_arrive(target: Serving, tmp_path: Path) -> None:
    """Were its name kept, the second topic would look like a repetition of the first."""
    store = make_store(
        tmp_path / "store",
        one=Topic((5,), heads={3: NUMBERED, 4: KEYED_AND_NUMBERED}),
        two=Topic((5,), heads={3: NUMBERED, 4: KEYED_AND_NUMBERED}),
    )
    for _ in range(2):
        assert replay("--path", str(store), "one", "two", "--to", f"omq://{target.address}/both") == 0
    found = stored(target.address, "both")
    assert [body for body, _ in found] == [made_body(message) for message in range(1, 6)] * 4
    copied = stored_head.decode(found[3][1])
    assert (copied.routing_key, copied.properties.message_id) == (b"k", b"4")
    assert copied.properties.app_id != b"meter"
    assert found[0][1] == b""


def test_a_replay_with_a_producer_can_be_repeated(source: Serving, target: Serving) -> None:
    words = (*way(source, "servers"), "headed", "--producer", "night")
    assert replay(*words, "--last", "7", "--to", f"omq://{target.address}/once") == 0
    for _ in range(2):
        assert replay(*words, "--to", f"omq://{target.address}/once") == 0
    found = stored(target.address, "once")
    assert [body for body, _ in found] == bodies(source.address, "headed")
    heads = [stored_head.decode(head) for _, head in found]
    assert [head.properties.message_id for head in heads] == [b"%d" % message for message in range(1, 16)]
    assert heads[1].routing_key == b"a key"
    assert heads[2].properties.headers == Table(((b"n", LongString(b"7")),))


HEADS = st.sampled_from([b"", KEYED, TABLED, NUMBERED, KEYED_AND_NUMBERED])


@given(
    st.lists(st.tuples(st.binary(max_size=30), HEADS), min_size=1, max_size=20),
    st.data(),
    st.sampled_from([None, b"p"]),
)
def test_envelopes_equal_the_messages_of_the_block(
    messages: list[tuple[bytes, bytes]], data: st.DataObject, producer: bytes | None
) -> None:
    parts = [
        encode(7, 100 + number, [body], NOON, [head] if head else ())
        for number, (body, head) in enumerate(messages)
    ]
    block = merge(parts)
    begin = data.draw(st.integers(block.first, block.last))
    end = data.draw(st.integers(begin + 1, block.next))
    made = envelopes(block, range(begin, end), ReplayProducer(producer or b"replay", producer is not None))
    batch = EnvelopeReader(1 << 20).feed_batch(made)
    found = batch.heads or [PLAIN_HEAD] * len(batch)
    assert batch.batch.bodies() == [body for body, _ in messages[begin - 100 : end - 100]]
    for message, head in zip(range(begin, end), found, strict=True):
        was = stored_head.decode(messages[message - 100][1] or PLAIN_HEAD)
        now = stored_head.decode(head)
        if producer is not None or was.properties.app_id is not None:
            assert now.properties.message_id == b"%d" % message
            assert now.properties.app_id == (producer or b"replay")
        else:
            assert now == was
        assert (now.exchange, now.routing_key) == (was.exchange, was.routing_key)


# -- at a pace ----------------------------------------------------------------------------------------------


def test_at_a_pace_topics_come_in_the_order_of_time(
    target: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # When a tick of 20 ms has passed while messages were sent, the next ones leave together with those that
    # wait. No time passes by this clock: so the replay is never late, however slow the machine is.
    monkeypatch.setattr("omq.replay.pacing.time", SimpleNamespace(monotonic=lambda: 100.0))
    store = make_store(tmp_path / "store", early=Topic((20,)), late=Topic((10, 5), heads={2: KEYED}))
    words = ("--path", str(store), "early", "late", "--speed", "500")
    assert replay(*words, "--to", f"omq://{target.address}/paced") == 0
    found = bodies(target.address, "paced")
    # Both topics have a message each second, from the same one on; a tick here is ten of them.
    assert sorted(found, key=int) == sorted(
        [made_body(n) for n in range(1, 21)] + [made_body(n) for n in range(1, 16)], key=int
    )
    assert {int(body) for body in found[:20]} == set(range(1, 11))
    assert KEYED in [head for _, head in stored(target.address, "paced")]


# -- what is missing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_a_damaged_block(
    target: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str], pace: list[str]
) -> None:
    store = make_store(tmp_path / "store", hurt=Topic((5, 4, 6)))
    damage(store, 0, 6)
    copied = f"hurt{len(pace)}"
    words = ("--path", str(store), "hurt", *pace, "--to", f"omq://{target.address}/{copied}")
    assert replay(*words) == 1
    said = capsys.readouterr().err
    assert "Topic 'hurt': messages 6 to 9 are gone: the store is damaged there" in said
    assert "omq: hurt: messages up to 5 are published\n" in said
    assert (
        "With --skip-lost they are left out; a replay of 'hurt' with --first 10 begins after them.\n" in said
    )
    assert bodies(target.address, copied) == [made_body(n) for n in range(1, 6)]
    assert replay(*words, "--first", "10") == 0
    assert bodies(target.address, copied) == [made_body(n) for n in (*range(1, 6), *range(10, 16))]
    capsys.readouterr()
    topic = f"whole{len(pace)}"
    assert replay(*words[:-1], f"omq://{target.address}/{topic}", "--skip-lost") == 0
    assert bodies(target.address, topic) == [made_body(n) for n in (*range(1, 6), *range(10, 16))]
    assert "\nmessages that could not be had any more and were left out: 4\n" in capsys.readouterr().out


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_a_damaged_block_among_several_topics(
    target: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str], pace: list[str]
) -> None:
    """The replay says how far each topic is, with damage in the last block of a topic and in the first."""

    def said(name: str, first: int, *words: str) -> str:
        topics = {"a": Topic((2,)), "hurt": Topic((5, 4)), "late": Topic((3,), first=7), "z": Topic(())}
        store = make_store(tmp_path / name, **topics)
        damage(store, 1, first)
        to = f"omq://{target.address}/{name}{len(pace)}"
        assert replay("--path", str(store), "--pattern", ".*", *pace, *words, "--to", to) == 1
        return capsys.readouterr().err

    last = said("last", 6)
    assert "omq: a: messages up to 2 are published\n" in last
    assert "omq: hurt: messages up to 5 are published\n" in last
    assert "omq: late: nothing is published\n" in last
    assert "z:" not in last
    assert "With --skip-lost they are left out; none of this topic follow.\n" in last
    first = said("first", 1, "--until", "2023-11-14T22:13:27Z")
    assert "omq: hurt: nothing is published\n" in first
    assert "late" not in first, "it has no messages within the bounds"
    assert "a replay of 'hurt' with --first 6 begins after them.\n" in first


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "omq: There is no topic 'nothing'.\n"),
        (["--pattern", "x.*"], "omq: No topic that can be read matches the pattern.\n"),
        (["trimmed", "--first", "7"], "--first is 7, but the oldest message kept is 101."),
        (["plain", "--last", "2501"], "--last is 2501, but its last message is 2500."),
    ],
)
def test_a_missing_topic_or_range_is_refused(
    source: Serving, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert replay(*way(source, "servers"), *words, "--to", "omq://127.0.0.1:1") == 1
    assert sentence in capsys.readouterr().err
