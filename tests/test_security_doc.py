"""docs/SECURITY.md: its configuration is valid, its commands exist, and its statements on files are true."""

import re
import tomllib
from pathlib import Path

import msgspec

from omq.access.hashes import read_hash
from omq.cli.client import ACTIONS
from omq.cli.command_line import parser
from omq.config import Config, check

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "SECURITY.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    return [re.sub(r"^ {3}", "", text, flags=re.MULTILINE) for text in found]


def test_the_configuration_can_be_used() -> None:
    (text,) = blocks("toml")
    table = tomllib.loads(text)
    config = msgspec.convert(table | {"listen": []}, Config)
    check(config)
    assert read_hash(config.clients[0].secret).fits(b"sesame")


def test_the_command_exists() -> None:
    line = blocks("sh")[1].split()
    assert line[0] == "omq"
    known = {option for option in line if option.startswith("--")}
    assert known <= set(re.findall(r"--[a-z][a-z-]*", parser(ACTIONS).format_help()))


def test_the_keys_it_names_exist() -> None:
    from omq.config import ClientConfig

    keys = {field.name for kind in (Config, ClientConfig) for field in msgspec.structs.fields(kind)}
    named = set(re.findall(r"`((?:max|tls|listen|handshake|memory)_\w+)`", DOCUMENT))
    assert named
    assert named <= keys
