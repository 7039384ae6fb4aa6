"""The tasks of the Celery worker that tests start. It is imported by the worker and by the tests."""

import os
import time
from typing import Any

from celery import Celery

app = Celery("celery_tasks", broker=os.environ["OMQ_TEST_BROKER"], backend="rpc://")
app.conf.update(
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    worker_send_task_events=True,
    task_send_sent_event=True,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def flaky(self: Any, failures: int) -> int:
    """Fail N (`failures`) times, then return the number of retries."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task
def broken() -> None:
    raise ValueError("it is broken")


@app.task
def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
