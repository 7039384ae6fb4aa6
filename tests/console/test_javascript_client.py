"""The ES module client in Node, against the real server. Its tests are in the folder `client`."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from certificates import Authority
from server_command import RunningServer, running_server

from omq import blocking, management
from omq.access.hashes import hash_of
from omq.protocol.omq.commands import parse
from omq.protocol.omq.types import Ack, Connect
from omq_storage.backup import backup

HERE = Path(__file__).parent / "client"
RECORDED = Path(__file__).parent.parent / "data" / "sexp" / "gen.jsonl"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")


def node(*arguments: str | Path, address: str = "", given: str | None = None) -> str:
    """Run Node and return its output."""
    result = subprocess.run(
        ["node", *arguments],
        input=given,
        env=os.environ | {"OMQ_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_javascript_codec_works_without_a_server() -> None:
    assert "# fail 0" in node("--test", "--test-reporter=tap", HERE / "codec.test.mjs")


def test_the_console_finds_pages_between_gaps() -> None:
    assert "# fail 0" in node("--test", "--test-reporter=tap", HERE / "pages.test.mjs")


def test_against_the_server(server: RunningServer) -> None:
    options = management.Change(b"max_length", b"0"), management.Change(b"overflow", b"reject-publish")
    with blocking.connect(f"omq://{server.address}") as client:
        client.manage(management.DeclareQueue(b"full", b"weak", options))
    output = node(
        "--test", "--test-reporter=tap", HERE / "server.test.mjs", address=f"omq://{server.address}"
    )
    assert "# fail 0" in output
    assert "# pass 0" not in output


def test_a_restored_topic_is_read_past_the_ids_that_it_skips(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "backup"
    with running_server("--listen", "127.0.0.1:0", "--store", path) as first:
        publish(first, b"old", b"older")
    backup(path, copy, "a start of the machine", lambda _: None)
    with running_server("--listen", "127.0.0.1:0", "--store", copy) as second:
        publish(second, b"new")
        assert node(HERE / "restored.mjs", address=f"omq://{second.address}") == "done\n"


def publish(server: RunningServer, *bodies: bytes) -> None:
    with blocking.connect(f"omq://{server.address}") as client:
        client.publish_many("restored", bodies)
        client.confirm()


def test_by_websocket(server: RunningServer) -> None:
    has_one = node("-p", "typeof WebSocket").strip() == "function"
    options = [] if has_one else ["--experimental-websocket"]
    output = node(
        *options,
        "--test",
        "--test-reporter=tap",
        HERE / "server.test.mjs",
        address=f"ws://{server.address}/ws",
    )
    assert "# fail 0" in output
    assert "# pass 0" not in output


def test_tls_and_clients(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    shown = authority.issue("127.0.0.1", "server")
    configuration = tmp_path / "omq.toml"
    configuration.write_text(
        f'[[clients]]\nname = "alice"\nsecret = "{hash_of(b"sesame")}"\n'
        'declare = ["*"]\npublish = ["*"]\nsubscribe = ["prices"]\n'
    )
    options = ("--store", tmp_path / "store", "--config", configuration, "--listen-tls", "127.0.0.1:0")
    files = ("--tls-cert", shown.cert, "--tls-key", shown.key)
    with running_server(*options, *files) as running:
        program = HERE / "secured.mjs"
        found = json.loads(node(program, authority.file, address=f"omqs://{running.address}"))
    assert found == {
        "wrong": "ConnectRefused: Connect: no client has this name and secret",
        "foreign": "ConnectionLost: unable to verify the first certificate",
        "mine": ["1"],
        "theirs": "Refused: Subscribe payments: this client may not subscribe to it",
        "watched": "Refused: Watch 1000: this client may not watch anything",
    }


def test_the_server_reads_its_commands_as_ocaml_does() -> None:
    """Every command of the recording, written by the client, is the command that OCaml decoded."""
    rows = [json.loads(row) for row in RECORDED.read_text().splitlines()]
    rows = [row for row in rows if row["ok"] and row["decoded"]["cmd"] not in ("Connect", "Ack")]
    assert len(rows) > 1000
    # JSON has no exact integers in JavaScript.
    exact = [json.dumps(_as_strings(row["decoded"])) for row in rows]
    lines = node(HERE / "lines.mjs", given="\n".join(exact)).split()
    assert len(lines) == len(rows)
    for row, line in zip(rows, lines, strict=True):
        command = parse(bytes.fromhex(line).removesuffix(b"\n"))
        assert command == parse(bytes.fromhex(row["line"])), row
        assert not isinstance(command, Ack | Connect)


def _as_strings(value: object) -> object:
    match value:
        case dict():
            return {key: _as_strings(each) for key, each in value.items()}
        case int():
            return str(value)
        case _:
            return value


def test_the_package_has_the_files_npm_needs() -> None:
    folder = Path(__file__).parents[2] / "omq" / "console" / "client"
    package = json.loads((folder / "package.json").read_text())
    assert package["type"] == "module"
    exported = [each for each in package["exports"].values() if isinstance(each, dict)]
    assert len(exported) == 3
    assert all((folder / path).is_file() for each in exported for path in (each["types"], each["default"]))
    assert package["types"] == package["exports"]["."]["types"]
    assert all((folder / path).exists() for path in package["files"])
    modules = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()}
    assert modules == {path.removesuffix("/") for path in package["files"]} | {"package.json"}
