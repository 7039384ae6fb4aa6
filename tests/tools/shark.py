"""Runs tshark with the dissector, and gives what it shows as units: lines, frames, envelopes and the like."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from capture_file import SERVER_PORT, Endpoint

DISSECTOR = Path(__file__).parents[2] / "tools" / "omq.lua"

needs_tshark = pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is not installed (Debian package tshark)"
)

AS_ROOT = 'Running as user "root" and group "root". This could be dangerous.\n'
"""The warning that tshark prints when root runs it."""

_PROTOCOLS = ("omq", "omq.dmp")

Pairs = list[tuple[str, Any]]
"""An object of JSON whose keys may come repeatedly."""


@dataclass
class Unit:
    """One item directly below a protocol, with its own field and all those within it, in their order."""

    packet: int
    """Its number in the capture, from 1 on."""

    connection: int
    side: Endpoint
    name: str
    value: str
    fields: dict[str, list[str]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> str:
        """Return the one value of a field."""
        (value,) = self.fields[name]
        return value

    def get(self, name: str) -> str | None:
        return self[name] if name in self.fields else None

    def collect(self, name: str, value: Any) -> None:
        if isinstance(value, list):
            for inner_name, inner in value:
                self.collect(inner_name, inner)
        else:
            self.fields.setdefault(name, []).append(value)


def run(path: Path, *options: str, lua: Path = DISSECTOR) -> str:
    """Return tshark's output for a capture; it must report no error."""
    done = subprocess.run(
        ["tshark", "-X", f"lua_script:{lua}", "-r", str(path), *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr.replace(AS_ROOT, "")) == (0, ""), done.stderr
    return done.stdout


def listed(path: Path, *options: str) -> list[str]:
    """Return the protocol and the words of each packet in the list of packets, but for TCP's own."""
    printed = run(path, "-o", 'gui.column.format:"Protocol","%p","Info","%i"', *options)
    return [line for line in printed.splitlines() if not line.startswith("TCP ")]


def values(path: Path, name: str, *options: str) -> list[str]:
    """Return every value of a field, in the order of the capture."""
    printed = run(path, "-T", "fields", "-e", name, "-E", "aggregator=/s", *options)
    return printed.split()


def units(path: Path, *options: str, port: int = SERVER_PORT) -> list[Unit]:
    """Return everything that the dissector shows."""
    shown = run(
        path, "-T", "json", "-J", "frame tcp " + " ".join(_PROTOCOLS), "-Y", " or ".join(_PROTOCOLS),
        "-o", "protocols.display_hidden_proto_items:TRUE", *options,
    )  # fmt: skip
    packets: list[Pairs] = json.loads(shown, object_pairs_hook=list)
    return [unit for packet in packets for unit in _units_of(packet, port)]


def _units_of(packet: Pairs, port: int) -> Iterator[Unit]:
    layers: Pairs = dict(dict(packet)["_source"])["layers"]
    frame, tcp = (dict(next(value for name, value in layers if name == layer)) for layer in ("frame", "tcp"))
    side = Endpoint.SERVER if int(tcp["tcp.srcport"]) == port else Endpoint.CLIENT
    for protocol, shown in layers:
        if protocol not in _PROTOCOLS or not isinstance(shown, list):
            continue
        unit: Unit | None = None
        for name, value in shown:
            if unit is not None and name == f"{unit.name}_tree":
                unit.collect(name, value)
            else:
                number, connection = int(frame["frame.number"]), int(tcp["tcp.stream"])
                unit = Unit(number, connection, side, name, "" if isinstance(value, list) else value)
                unit.collect(name, unit.value)
                if isinstance(value, list):
                    unit.collect(name, value)
                yield unit


_FAILURES = "_ws.lua.error or " + " or ".join(
    f"_ws.malformed.{kind}" for kind in ("dissector_bug", "expert", "reassembly")
)


def failures(path: Path, *options: str) -> list[str]:
    """Return the packets in which something went wrong in Lua, or in Wireshark on behalf of it."""
    return run(path, "-Y", _FAILURES, "-T", "fields", "-e", "frame.number", *options).split()
