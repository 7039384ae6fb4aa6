"""A replay declares topics that its target lacks with the types of their sources
(`omq/replay/declaring.py`).
"""

from pathlib import Path

import pytest
from made_stores import Topic, make_store
from replay_helpers import bodies, replay, types
from serving_stores import HASH, serving

from omq.model import Delivery

ROUND_ROBIN = 'default_delivery = "round-robin"\ndefault_persistence = "transient"\n'
"""Defaults that no source has."""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return make_store(
        tmp_path / "sources",
        strong=Topic((3,), persistence="Strong"),
        weak=Topic((3,), persistence="Weak"),
        free=Topic((3,), persistence="Async"),
        empty=Topic((), persistence="Strong"),
    )


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
@pytest.mark.parametrize("how", ["server", "path"])
def test_a_missing_topic_gets_the_types_of_its_source(
    sources: Path, tmp_path: Path, how: str, pace: list[str]
) -> None:
    with serving(sources) as source, serving(tmp_path / "target", ROUND_ROBIN) as target:
        come = ("--path", str(sources)) if how == "path" else ("--server", source.url)
        assert replay(*come, "--pattern", ".*", *pace, "--to", target.url) == 0
        # Without messages there is no copy.
        assert types(target.address) == {
            "strong": (Delivery.BROADCAST, "strong"),
            "weak": (Delivery.BROADCAST, "weak"),
            "free": (Delivery.BROADCAST, "async"),
        }
        assert len(bodies(target.address, "strong")) == 3


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_a_topic_that_exists_keeps_its_types(sources: Path, tmp_path: Path, pace: list[str]) -> None:
    store = make_store(tmp_path / "target", strong=Topic((), persistence="Async"))
    with serving(store) as target:
        # A topic that nobody declared and that has no message would take the types of a Declare.
        target.subscribe("weak")
        assert types(target.address)["weak"] == (Delivery.BROADCAST, "weak")
        to = ("--to", f"{target.url}/weak")
        assert replay("--path", str(sources), "strong", *pace, "--to", target.url) == 0
        assert replay("--path", str(sources), "free", *pace, *to) == 0
        assert types(target.address) == {
            "strong": (Delivery.BROADCAST, "async"),
            "weak": (Delivery.BROADCAST, "weak"),
        }


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_a_topic_of_several_sources_gets_the_safest_level(
    sources: Path, tmp_path: Path, pace: list[str]
) -> None:
    with serving(tmp_path / "target") as target:
        to = ("--to", f"{target.url}/all")
        assert replay("--path", str(sources), "free", "weak", "strong", *pace, *to) == 0
        assert types(target.address) == {"all": (Delivery.BROADCAST, "strong")}


PUBLISHER = f'[[clients]]\nname = "copier"\nsecret = "{HASH}"\npublish = ["*"]\n'


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_a_refused_declaration_is_reported_as_a_refused_copy(
    sources: Path,
    tmp_path: Path,
    pace: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    id = tmp_path / "id"
    id.write_text("copier:sesame\n")
    id.chmod(0o600)
    with serving(make_store(tmp_path / "target", weak=Topic(())), PUBLISHER) as target:
        words = ("--path", str(sources), *pace, "--to-id-file", str(id), "--to", target.url)
        assert replay(*words, "strong") == 1
        assert "Put strong: there is no such topic, and this client may not declare it" in (
            capsys.readouterr().err
        )
        assert replay(*words, "weak") == 0


def test_a_target_that_wants_topics_declared_gets_them(sources: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "target", "allow_undeclared = false") as target:
        assert replay("--path", str(sources), "strong", "--to", target.url) == 0
        assert types(target.address) == {"strong": (Delivery.BROADCAST, "strong")}
