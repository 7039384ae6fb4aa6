"""The command line of a replay: wrong values, what it loads, and both programs."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
from replay_helpers import WrongCommandLine, parsed, replay, stored
from serving_stores import Serving

TO = ("--to", "omq://127.0.0.1:7731")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (TO, "Say what to replay"),
        (("a", "--pattern", "b", *TO), "Give topics or --pattern, not both."),
        (("a", "--to", "ftp://x"), "--to is omq://HOST:PORT"),
        (("a", "--to", "parquet:"), "--to is omq://HOST:PORT"),
        (("a", "--to", "omq://x:y"), "omq.servers"),
        (("a", "--to", "parquet:/"), "/ is there already."),
        (("a", "--to", "parquet:new", "--speed", "2"), "--speed is for"),
        (("a", "--to", "jsonl:new", "--producer", "p"), "--producer is for"),
        (("a", "--first", "3", "--last", "2", *TO), "--first 3 is after --last 2."),
        (("a", "--since", "2024-01-02", "--until", "2024-01-01", *TO), "--since is after --until."),
        (("a", "--decode", "csv:a INT", *TO), "--decode is for --where here"),
        (("a", "--decode", "xml:a", *TO), "--decode is csv:COLUMNS or json:COLUMNS"),
        (("a", "--where", "true", "--producer", "p", *TO), "--producer goes with --where only at a --speed"),
        (("--pattern", "(", *TO), "is no regular expression"),
        (("a", "--path", "p", "--server", "omq://h", *TO), "Give --server or --path, not both."),
        (("a", "--path", "p", "--id-file", "f", *TO), "--id-file is for --server, not for --path."),
        (("a", "--path", "p", "--ca", "f", *TO), "--ca is for --server, not for --path."),
        (("a", "--to", "omq://127.0.0.1:7730"), "--to is where the messages come from"),
        (("a", "b", "--to", "omq://127.0.0.1/b"), "--to is where the messages come from"),
    ],
)
def test_wrong_command_lines(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(WrongCommandLine) as caught:
        replay(*words)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--first", "9" * 5000), f"argument --first: '{'9' * 5000}' is no message id"),
        (("--first", "0"), "argument --first: '0' is no message id"),
        (("--last", str(1 << 63)), f"argument --last: '{1 << 63}' is no message id"),
        (("--first", "²"), "argument --first: '²' is no message id"),
        (("--speed", "0"), "argument --speed: '0' is not a number above 0"),
        (("--speed", "inf"), "argument --speed: 'inf' is not a number above 0"),
        (("--speed", "fast"), "argument --speed: 'fast' is not a number above 0"),
        (("--since", "noon"), "argument --since: 'noon' is no time like 2024-05-01T12:00"),
        (("--until", "0001-01-01T00:00+23:59"), "argument --until: '0001-01-01T00:00+23:59' is no time like"),
        (("--producer", ""), "argument --producer: a producer's name has 1 to 200 octets"),
        (("--producer", "é" * 101), "argument --producer: a producer's name has 1 to 200 octets"),
    ],
)
def test_wrong_values(words: tuple[str, str], sentence: str) -> None:
    with pytest.raises(argparse.ArgumentError) as caught:
        parsed("a", *TO, *words)
    assert str(caught.value).startswith(sentence)


def test_values_at_their_bounds() -> None:
    taken = parsed("a", *TO, "--first", "1", "--last", str((1 << 63) - 1), "--producer", "é" * 100)
    assert (taken.first, taken.last, taken.producer) == (1, (1 << 63) - 1, "é" * 100)
    assert parsed("a", *TO, "--since", "1970-01-01T00:00:01Z").since == 1_000_000


def test_the_other_commands_load_nothing_of_it() -> None:
    program = (
        "import sys, omq.cli.client; "
        "sys.exit(any(name.partition('.')[0] in ('pyspark', 'pyarrow', 'lmdb') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_copying_loads_no_spark() -> None:
    program = (
        "import sys, omq.replay.command, omq.replay.copying, omq.replay.pacing; "
        "sys.exit(any(name.partition('.')[0] in ('pyspark', 'pyarrow', 'trio') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_java_it_says_so_in_one_sentence(source: Serving, tmp_path: Path) -> None:
    server = ("--server", f"omq://{source.address}")
    words = ("replay", "plain", "--where", "true", "--to", f"jsonl:{tmp_path}/files")
    program = "from omq.cli.start import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", program, *server, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment | {"PATH": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("omq: Spark needs Java 17 or later: install ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["omq", "tools"])
def test_both_programs_replay(source: Serving, target: Serving, program: str) -> None:
    tool = Path(__file__).parents[2] / "tools" / "replay.py"
    server = ("--server", f"omq://{source.address}")
    command = (
        [sys.executable, "-c", "from omq.cli.start import main; main()", *server, "replay"]
        if program == "omq"
        else [sys.executable, str(tool), *server]
    )
    words = ["headed", "--to", f"omq://{target.address}/{program}"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "15 messages, 21 B, in " in done.stdout
    assert stored(target.address, program) == stored(source.address, "headed")
