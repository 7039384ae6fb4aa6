"""Celery with its results over AMQP, as it is used with RabbitMQ: a worker of two processes, and a client."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .serving import serving_guest

pytestmark = pytest.mark.filterwarnings("default")  # those of Celery are not ours

SECONDS = 60


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Yield the tasks, with a worker that executes them."""
    folder = tmp_path_factory.mktemp("celery")
    with serving_guest(folder) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMQ_TEST_BROKER", f"amqp://guest:guest@127.0.0.1:{server.port}//")
        patch.syspath_prepend(str(Path(__file__).parent))
        import celery_tasks  # it reads the address of the broker

        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-c", "2", "-l", "info"]
        with (folder / "worker.log").open("w") as log:
            worker = subprocess.Popen(
                command, cwd=Path(__file__).parent, env=dict(os.environ), stdout=log, stderr=log
            )
        try:
            celery_tasks.add.delay(1, 1).get(timeout=SECONDS)
            yield celery_tasks
        finally:
            worker.terminate()
            worker.wait(timeout=SECONDS)
            celery_tasks.app.close()


def result(of: Any) -> Any:
    return of.get(timeout=SECONDS)


def test_a_result_comes_back(tasks: ModuleType) -> None:
    assert result(tasks.add.delay(1, 2)) == 3


def test_a_group(tasks: ModuleType) -> None:
    from celery import group

    assert result(group(tasks.add.s(i, i) for i in range(20))()) == [2 * i for i in range(20)]


def test_a_chain(tasks: ModuleType) -> None:
    from celery import chain

    assert result(chain(tasks.add.s(1, 2), tasks.add.s(3), tasks.add.s(4))()) == 10


def test_a_retry(tasks: ModuleType) -> None:
    assert result(tasks.flaky.delay(2)) == 2


def test_an_error_comes_back(tasks: ModuleType) -> None:
    with pytest.raises(ValueError, match="it is broken"):
        result(tasks.broken.delay())


def test_more_countdowns_than_the_prefetch(tasks: ModuleType) -> None:
    """The worker raises its prefetch while it consumes; otherwise the later tasks would starve."""
    waiting = [tasks.add.apply_async((i, 1), countdown=1) for i in range(30)]
    assert sum(map(result, waiting)) == sum(i + 1 for i in range(30))


def test_a_task_is_revoked(tasks: ModuleType) -> None:
    from celery.exceptions import TaskRevokedError

    waiting = tasks.slow.apply_async((0.1,), countdown=2)
    tasks.app.control.revoke(waiting.id)
    with pytest.raises(TaskRevokedError):
        result(waiting)


def test_workers_are_inspected(tasks: ModuleType) -> None:
    inspect = tasks.app.control.inspect(timeout=SECONDS, limit=1)
    assert [answer["ok"] for answer in inspect.ping().values()] == ["pong"]
    assert [queue["name"] for queues in inspect.active_queues().values() for queue in queues] == ["celery"]


def test_events_are_seen(tasks: ModuleType) -> None:
    seen: list[str] = []

    def note(event: dict[str, Any]) -> None:
        if not seen:  # a heartbeat of the worker: from now on nothing is missed
            tasks.add.delay(1, 2)
        seen.append(event["type"])
        receiver.should_stop = event["type"] == "task-succeeded"

    with tasks.app.connection() as connection:
        receiver = tasks.app.events.Receiver(connection, handlers={"*": note})
        receiver.capture(limit=None, timeout=SECONDS, wakeup=False)
    assert {"task-received", "task-started", "task-succeeded"} <= set(seen)


def test_a_queue_is_purged(tasks: ModuleType) -> None:
    assert tasks.app.control.purge() == 0
