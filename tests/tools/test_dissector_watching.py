"""Manage and the commands that watch and control a server, as the Wireshark dissector shows them."""

from pathlib import Path

from capture_file import Endpoint, SentOctets, packets, write
from shark import failures, needs_tshark, units

from omq import management, watching
from omq.protocol.handshake import hello
from omq.protocol.omq import types
from omq.protocol.omq.commands import sexp_of_command
from omq.protocol.omq.frames import encode

pytestmark = needs_tshark

COMMANDS: tuple[types.Command, ...] = (
    types.Manage(management.Purge(b"jobs")),
    types.Watch(1000),
    types.Connections(0),
    types.Subscribers(b"prices"),
    types.Disconnect(7),
    types.Purge(b"prices"),
    types.Retain(b"prices", watching.Limits(1000, None)),
)
FRAMES: tuple[types.Frame, ...] = (
    types.Managed(management.Done(1)),
    types.Watched(watching.Began(1000)),
    types.ConnectionList(()),
    types.SubscriberList(()),
    types.Done(1),
)


def test_every_command_and_frame_is_named(tmp_path: Path) -> None:
    lines = b"".join(sexp_of_command(command) + b"\n" for command in (types.Connect(1, b"x"), *COMMANDS))
    said = [
        SentOctets(0, Endpoint.CLIENT, hello() + lines),
        SentOctets(0, Endpoint.SERVER, hello() + b"".join(map(encode, FRAMES))),
    ]
    capture = write(tmp_path / "omq.pcap", packets(said))
    found = units(capture)
    assert [unit.value for unit in found if unit.name == "omq.command"] == [
        "Connect", *(type(command).__name__ for command in COMMANDS)
    ]  # fmt: skip
    assert [unit.value for unit in found if unit.name == "omq.frame"] == [
        "Managed", "Statistics", "Connections", "Subscribers", "Done"
    ]  # fmt: skip
    assert failures(capture) == []
