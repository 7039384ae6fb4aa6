"""The dissector reads lines as OCaml does: the recorded lines of tests/data/sexp, and topics in frames."""

import json
from pathlib import Path
from random import Random

import pytest
from capture_file import Endpoint, SentOctets, packets, write
from dissector_conversation import of_command, shown
from shark import needs_tshark, units
from test_commands import GENERATED, OF_ONE_LINE, recorded_of

from omq.protocol.handshake import hello
from omq.protocol.omq.commands import CommandError, parse

pytestmark = needs_tshark

DATA = Path(__file__).parents[1] / "data" / "sexp"


def capture(path: Path, from_client: bytes, from_server: bytes = b"") -> Path:
    said = [
        SentOctets(0, Endpoint.CLIENT, hello()),
        SentOctets(0, Endpoint.SERVER, hello() + from_server),
        SentOctets(0, Endpoint.CLIENT, from_client),
    ]
    return write(path, packets(said))


@pytest.mark.parametrize("rows", [GENERATED, OF_ONE_LINE], ids=["generated", "by hand"])
def test_lines_are_commands_where_ocaml_says_so(rows: list[dict[str, object]], tmp_path: Path) -> None:
    lines = [bytes.fromhex(str(row["line"])) for row in rows]
    path = capture(tmp_path / "omq.pcap", b"".join(line + b"\n" for line in lines))
    found = [unit for unit in units(path) if unit.side is Endpoint.CLIENT][1:]
    accepted = 0
    for row, line in zip(rows, lines, strict=True):
        if not line.strip(b" \t\f\r"):
            continue
        unit, command = found.pop(0), recorded_of(row)
        assert unit.fields["omq.line"] == [shown(line)]
        if isinstance(command, str):
            # A time is shown as it is written, without asking whether there is such a day.
            assert "omq.bad_line" in unit.fields or unit.value == "Ack"
        elif command is None:
            assert unit.fields == {"omq.line": [shown(line)]}
        else:
            expected = of_command(command, line)
            assert {name: unit.get(name) for name in expected} == expected
            accepted += 1
    assert found == []
    assert accepted > 100


def test_topics_in_frames_are_read(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (DATA / "topics.jsonl").read_text().splitlines()]
    payloads = [bytes.fromhex(row["mach"]) for row in rows]
    frames = b"".join((len(payload) + 1).to_bytes(4, "big") + b"\x03" + payload for payload in payloads)
    path = capture(tmp_path / "omq.pcap", b"", frames)
    found = [unit for unit in units(path) if unit.side is Endpoint.SERVER][1:]
    assert [(unit["omq.topic.id"], unit["omq.topic"]) for unit in found] == [
        (str(row["id"]), shown(bytes.fromhex(row["topic"]))) for row in rows
    ]


def changed(lines: list[bytes], count: int) -> list[bytes]:
    """Return recorded lines, each with octets taken out and put in that mean something in a sexp."""
    random = Random(7)
    pieces = [
        b'"',
        b"\\",
        b"(",
        b")",
        b";",
        b"#;",
        b"#|",
        b"|#",
        b" ",
        b"\r",
        b"\\255",
        b"\\x4",
        b"\xff",
        b"0",
        b"_",
    ]
    made = list[bytes]()
    while len(made) < count:
        line = bytearray(random.choice(lines))
        at = random.randint(0, len(line))
        line[at : at + random.choice((0, 0, 1, 2))] = random.choice(pieces)
        made.append(bytes(line))
    return made


def test_changed_lines_are_read_as_the_server_reads_them(tmp_path: Path) -> None:
    lines = changed([bytes.fromhex(str(row["line"])) for row in GENERATED], 3000)
    path = capture(tmp_path / "omq.pcap", b"".join(line + b"\n" for line in lines))
    found = [unit for unit in units(path) if unit.side is Endpoint.CLIENT][1:]
    refused = 0
    for line in lines:
        if not line.strip(b" \t\f\r"):
            continue
        unit = found.pop(0)
        try:
            command = parse(line)
        except CommandError:
            refused += 1
            assert "omq.bad_line" in unit.fields or unit.value == "Ack", line
        else:
            expected = {"omq.line": shown(line)} if command is None else of_command(command, line)
            assert {name: unit.get(name) for name in expected} == expected
    assert found == []
    assert 300 < refused < len(lines) - 300
