"""Ctrl-C during a replay: what was begun is ended in an orderly way."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

CANCEL_SECONDS = 0.2
"""How often what goes on is cancelled, until it ends: what has not begun yet cannot be."""


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, for work that ends at a message which can be named. After that Ctrl-C is
    what it was before.
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
    """Ctrl-C waits for the end of the block, and is then what it was before it.

    For starting Spark: when that is broken off, its Java may stay for ever.
    """
    before = signal.getsignal(signal.SIGINT)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)  # Spark sets one of its own
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def cancel_on_interrupt(cancel: Callable[[], object]) -> Iterator[threading.Event]:
    """Ctrl-C sets the event and cancels what is done in the block, from another thread: what talks to another
    process is never broken off in the middle of a word. When it fails then, that is a KeyboardInterrupt; when
    it is done all the same, it is done. The second Ctrl-C ends it at once.
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
        except Exception as error:  # whatever it fails with when it is cancelled; else it goes on as it is
            if stop.is_set():
                raise KeyboardInterrupt from error
            raise
        finally:
            over.set()
            stop.set()
            watching.join()
