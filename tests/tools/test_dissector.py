"""The Wireshark dissector `tools/omq.lua`: tshark shows of a real conversation what was said in it."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from capture_file import Cut, Said, Side, every, packets, ragged, whole, write
from dissector_conversation import HEADERS, SHOWN_HEADERS, Conversation, hold, shown
from shark import Unit, columns, errors, needs_tshark, run, units, values

pytestmark = needs_tshark


@pytest.fixture(scope="module")
def conversation(tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    """Held once, and shown in many ways."""
    return trio.run(hold, tmp_path_factory.mktemp("conversation") / "store")


def as_shown(found: list[Unit]) -> dict[tuple[int, Side], list[Unit]]:
    by_side = defaultdict(list)
    for unit in found:
        by_side[unit.connection, unit.side].append(unit)
    return by_side


def compare(found: list[Unit], expected: dict[tuple[int, Side], list[dict[str, str]]]) -> None:
    by_side = as_shown(found)
    assert by_side.keys() == expected.keys()
    for key, wanted in expected.items():
        got = [
            {unit.name: unit.value} | {name: unit.get(name) for name in fields if name in unit.fields}
            for unit, fields in zip(by_side[key], wanted, strict=False)
        ]
        assert got == wanted, key
        assert len(by_side[key]) == len(wanted)


CUTS = {"whole": whole, "one octet each": every(1), "ragged": ragged(1), "one frame's end": every(23)}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_everything_that_was_said_is_shown(conversation: Conversation, cut: Cut, tmp_path: Path) -> None:
    path = write(tmp_path / "capture.pcap", packets(conversation.said, cut))
    compare(units(path), conversation.expected)
    assert errors(path) == []
