"""docs/CONFIGURATION.md against omq/config.py: every key with its true default, and an example that loads."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from omq.config import ClientConfig, Config, TopicConfig, load

DOCUMENT = (Path(__file__).parents[1] / "docs" / "CONFIGURATION.md").read_text()

TOPICS_HEADING = "## Topics that exist from the start\n"

CLIENTS_HEADING = "## Clients\n"

EXAMPLE_HEADING = "## A complete example\n"


def documented(text: str) -> dict[str, object]:
    """Return the keys of the tables, and their defaults."""
    keys: dict[str, object] = {}
    for key, default, unit, meaning in re.findall(
        r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+) \|$", text, re.MULTILINE
    ):
        assert key not in keys, f"{key} stands there twice"
        assert unit.strip()
        assert meaning.endswith(".")
        match default:
            case "not set":
                keys[key] = None
            case "required":
                keys[key] = msgspec.NODEFAULT
            case _:
                keys[key] = tomllib.loads(f"value = {default.strip('`')}")["value"]
    return keys


def defaults(kind: Any) -> dict[str, object]:
    return {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(kind)
    }


def example() -> str:
    (text,) = re.findall(
        r"^```toml\n(.*?)^```$", DOCUMENT.partition(EXAMPLE_HEADING)[2], re.MULTILINE | re.DOTALL
    )
    assert isinstance(text, str)
    return text


def test_every_key_is_documented_with_its_default() -> None:
    assert documented(DOCUMENT.partition(TOPICS_HEADING)[0]) == defaults(Config)


def test_every_key_of_a_topic_is_documented_with_its_default() -> None:
    section = DOCUMENT.partition(TOPICS_HEADING)[2].partition(CLIENTS_HEADING)[0]
    assert documented(section) == defaults(TopicConfig)


def test_every_key_of_a_client_is_documented_with_its_default() -> None:
    section = DOCUMENT.partition(CLIENTS_HEADING)[2].partition(EXAMPLE_HEADING)[0]
    assert documented(section) == defaults(ClientConfig)


def test_the_example_loads_and_shows_every_key(tmp_path: Path) -> None:
    (tmp_path / "omq.toml").write_text(example())
    config = load(tmp_path / "omq.toml")
    assert len(config.topics) == 3
    tables = tomllib.loads(example())
    assert set(tables) == set(defaults(Config))
    assert set().union(*tables["topics"]) == set(defaults(TopicConfig))
    assert set().union(*tables["clients"]) == set(defaults(ClientConfig))
