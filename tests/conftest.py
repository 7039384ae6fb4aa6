"""Configuration of all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test of ours is about how fast hypothesis gets on, and on a busy machine it gets on slowly.
settings.register_profile("omq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("omq")

# Java spends most of its first seconds on optimizing what a short test runs once. Without that, a Spark job
# takes half the processor time, which on a busy machine decides whether it ends before the test gives up.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

SPARK = Path(__file__).parent / "spark"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests run in several processes (`-n N --dist loadgroup`, as with `tools/test`), keep those of one
    file in one process, because they may share a server, and those of Spark, because they share a session.
    """
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        group = "spark" if item.path.is_relative_to(SPARK) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
