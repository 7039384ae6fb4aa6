"""Two servers: one with the topics that are replayed, and one that gets them."""

from collections.abc import Iterator

import pytest
from made_stores import make_store
from replayed_topics import TOPICS
from serving_stores import Serving, serving


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    store = make_store(tmp_path_factory.mktemp("source") / "store", **TOPICS)
    with serving(store) as server:
        yield server


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("target") / "store") as server:
        yield server
