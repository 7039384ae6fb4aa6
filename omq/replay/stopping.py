"""Handle Ctrl-C during a replay, so that it ends cleanly."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

CANCEL_SECONDS = 0.2
"""The interval at which to repeat the cancellation, since a job that has not started yet cannot be cancelled.
"""


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets, for work that stops at a message boundary. A second Ctrl-C raises
    KeyboardInterrupt; the end of the block restores the handler.
    """
    stop = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, and restore its handler there.

    This is for the start of Spark: an interrupted start may leave a Java process behind.
    """
    before = signal.getsignal(signal.SIGINT)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)  # Spark installs its own handler
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def cancel_on_interrupt(cancel: Callable[[], object]) -> Iterator[threading.Event]:
    """Set the event on Ctrl-C, and cancel the work of the block from another thread, so that a dialogue with
    another process is never interrupted in the middle of a message. If the work then fails, raise
    KeyboardInterrupt; if it completes anyway, it counts as completed. The second Ctrl-C interrupts it at
    once.
    """
    over = threading.Event()

    def watch() -> None:
        stop.wait()
        while not over.is_set():
            cancel()
            over.wait(CANCEL_SECONDS)

    with stop_on_interrupt() as stop:
        watching = threading.Thread(target=watch, name="cancel", daemon=True)
        watching.start()
        try:
            yield stop
        except Exception as error:  # any error of cancelled work; without Ctrl-C it propagates unchanged
            if stop.is_set():
                raise KeyboardInterrupt from error
            raise
        finally:
            over.set()
            stop.set()
            watching.join()
