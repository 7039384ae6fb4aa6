"""A thread with an event loop, in which a synchronous client calls the asynchronous one.

Why a thread, and no client on blocking sockets: a client must read its connection also while the program
computes or waits for a person. It must answer the server's pings, receive messages and confirmations, and
reconnect. `omq.client` does all that, and has one behaviour to learn and to test.

Why no portal of another library: here Ctrl-C in a thread that waits for a call also cancels the call, and a
program that ends without closing its clients does not wait for them.
"""

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack

import trio

from omq.blocking.calls import LoopCalls, LoopEnded
from omq.client import ConnectionFailed, ConnectionLost
from omq.client.reasons import reason

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

CALLING_THREAD: ContextVar[object] = ContextVar("calling_thread")
"""The thread for which a task of a portal works."""

BATCH_OCTETS = 256 << 10
BATCH_MESSAGES = 8192
"""The octets and the number of messages that one call of a `publish_many` hands to the client's thread."""

ABANDON_SECONDS = 1.0
"""The number of seconds that a program that ends waits for a client that it has not closed. The client itself
gives up sending its queue earlier.
"""

SIGNAL_SECONDS = 0.5
"""The number of seconds between two looks of the main thread for signals while it waits for a call."""


class TaskResult(Generic[T]):
    """The result of a task of the loop, or its exception, for which other threads wait."""

    # Not a Future, whose lock is taken and released by Python code: Ctrl-C between the two would leave it
    # locked, and then the loop's thread would wait for it for ever. A SimpleQueue does all that in C.

    def __init__(self) -> None:
        self._known: SimpleQueue[None] = SimpleQueue()
        self._results: list[T] = []
        self._error: BaseException | None = None

    @property
    def is_known(self) -> bool:
        return bool(self._results) or self._error is not None

    def set_result(self, result: T) -> None:
        """Set the result in the loop's thread, where `set_exception` is called, too; one of them, once."""
        self._results.append(result)
        self._known.put(None)

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._known.put(None)

    def wait(self) -> None:
        """Wait until the outcome is known."""
        # Python runs the handler of a signal in the main thread. It does not see a signal that arrives just
        # before that thread blocks.
        seconds = SIGNAL_SECONDS if threading.current_thread() is threading.main_thread() else None
        try:
            while not self.is_known:
                try:
                    self._known.get(timeout=seconds)
                except Empty:
                    pass
        finally:
            if self.is_known:
                self._known.put(None)  # for the next thread that waits

    def get(self) -> T:
        """Wait for the outcome; return the result, or raise the exception."""
        self.wait()
        try:
            if self._error is not None:
                raise self._error
            return self._results[0]
        finally:
            del self  # else the exception and this frame would refer to each other


class Portal:
    """Owns the thread, and ends it with `close`, with itself or with the program, whichever comes first."""

    def __init__(self) -> None:
        self._loop = _Loop()
        # The loop must not refer to the portal, which would then live as long as the thread.
        self._abandoned = weakref.finalize(self, self._loop.abandon)

    def call(self, function: Callable[[Unpack[Arguments]], Awaitable[T]], *arguments: *Arguments) -> T:
        """Call an asynchronous function in the portal's thread, and wait for its result.

        Any number of threads may call; the calls run concurrently. An exception in the waiting thread, such
        as KeyboardInterrupt, cancels the call. Raises ConnectionLost when the portal is closed.
        """
        call = _Call(partial(function, *arguments))
        return self._loop.run(call, call.result)

    def call_within(
        self,
        timeout: float | None,
        function: Callable[[Unpack[Arguments]], Awaitable[T]],
        *arguments: *Arguments,
    ) -> T:
        """Call a function as `call` does, but cancel the call after `timeout` seconds and raise
        TimeoutError. None waits without limit.
        """
        seconds = checked(timeout)
        if seconds is None:
            return self.call(function, *arguments)
        return self.call(_within, seconds, partial(function, *arguments))

    def enter(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> "Entered[T]":
        """Make and enter an asynchronous context manager, in a task that lasts until `leave`."""
        entered = Entered(make)
        self._loop.run(entered, entered.value)
        return entered

    def send_all(
        self,
        make: Callable[[], AbstractAsyncContextManager[Callable[[T], Awaitable[None]]]],
        items: Iterable[T],
    ) -> None:
        """Enter an asynchronous context manager whose value is a function, call that for each item, and leave
        it. `items` is iterated over in the calling thread. An exception in that thread, such as one of
        `items` or KeyboardInterrupt, cancels the block of the context manager.
        """
        entered = Entered(make)
        try:
            send = self._loop.run(entered, entered.value)
            for item in items:
                self.call(send, item)
            self.leave(entered, whole=True)
        except BaseException:  # of this thread, as by Ctrl-C or from `items`
            self._loop.interrupt(entered)
            raise

    def leave(self, entered: "Entered[T]", *, whole: bool) -> None:
        """Leave a context manager, and wait until that is done. Raises what it raises. If not `whole`, the
        context manager sees an exception, as from a block that failed. A second call has the same outcome.
        Does nothing in a forked process, which has no thread of the client.
        """
        if self._loop.is_of_another_process:
            return
        try:
            self._loop.soon(entered.ask_to_leave, whole)
        except ConnectionLost:
            pass  # the loop has ended, and the context manager with it: its outcome is there
        self._loop.result_of(entered, entered.result)

    @property
    def is_closed(self) -> bool:
        return not self._abandoned.alive

    def close(self) -> None:
        """Cancel the running calls, and wait for the end of the thread. A second call does nothing, nor does
        a call in a forked process.
        """
        if self._abandoned.detach() is not None and not self._loop.is_of_another_process:
            self._loop.stop()


class _Task(ABC, Generic[T]):
    """A task in the loop, and its outcome."""

    def __init__(self) -> None:
        self.result: TaskResult[T] = TaskResult()
        self.scope = trio.CancelScope()
        self.is_started = False
        self._thread = threading.current_thread()

    async def run(self) -> None:
        CALLING_THREAD.set(self._thread)
        with self.scope:
            try:
                self.result.set_result(await self.work())
            except Exception as error:  # noqa: BLE001 - it is raised in the thread that called
                self.fail(error)
            except BaseException:  # trio.Cancelled, or a group of them
                self.fail(_closed())
                raise

    @abstractmethod
    async def work(self) -> T:
        """Return the result of the task."""

    def fail(self, error: BaseException) -> None:
        self.result.set_exception(error)


class _Call(_Task[T]):
    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        super().__init__()
        self._function = function

    async def work(self) -> T:
        return await self._function()


class Entered(_Task[None], Generic[T]):
    """A context manager that `Portal.enter` entered, and its value."""

    # Without a reference to the portal, for the same reason as the loop.

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        super().__init__()
        self.value: TaskResult[T] = TaskResult()
        self._make = make
        self._leaving = trio.Event()
        self._whole = True

    def ask_to_leave(self, whole: bool) -> None:
        if not self._leaving.is_set():
            self._whole = whole
            self._leaving.set()

    async def work(self) -> None:
        try:
            async with self._make() as value:
                self.value.set_result(value)
                await self._leaving.wait()
                if not self._whole:
                    raise _NotWhole
        except _NotWhole:
            pass

    def fail(self, error: BaseException) -> None:
        if not self.value.is_known:
            self.value.set_exception(error)
        super().fail(error)


class _NotWhole(Exception):
    """Stands for the exception of the calling thread's block, which stays in its thread."""


class _Loop:
    """The event loop in its thread. The methods are for other threads, except where they say otherwise."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._ended = False
        try:
            self._calls = LoopCalls()
        except OSError as error:  # without descriptors
            raise _cannot_start(error) from error
        ready: TaskResult[None] = TaskResult()
        # A daemon: at its end Python waits for other threads before it runs the finalizer that ends this one.
        self._thread = threading.Thread(target=self._work, args=(ready,), name="omq", daemon=True)
        self._thread.start()
        ready.get()

    def _work(self, ready: TaskResult[None]) -> None:
        try:
            trio.run(self._run, ready)
        except OSError as error:
            if ready.is_known:
                raise
            ready.set_exception(_cannot_start(error))
        finally:
            self._ended = True
            self._calls.end()

    async def _run(self, ready: TaskResult[None]) -> None:
        self._stopping = trio.Event()
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._calls.run)
            ready.set_result(None)
            await self._stopping.wait()
            self._ended = True
            self._nursery.cancel_scope.cancel()

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process was forked from the one that has the thread."""
        return self._process != os.getpid()

    def run(self, task: _Task[Any], outcome: TaskResult[T]) -> T:
        """Start a task, and wait for an outcome of it, as `result_of` does. An interrupt may come at any
        point of this. Raises ConnectionLost when the loop has ended.
        """
        if self.is_of_another_process:
            raise RuntimeError("this client belongs to the process that connected it: connect after a fork")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of a client cannot call the client: it would wait for itself")
        try:
            self.soon(self._start, task)
            outcome.wait()
        except ConnectionLost:  # of `soon`
            raise
        except BaseException:  # of this thread, as by Ctrl-C
            self.interrupt(task)
            raise
        return self._get(outcome)

    def _start(self, task: _Task[Any]) -> None:
        # In the loop's thread.
        if self._ended:
            task.fail(_closed())
        else:
            task.is_started = True
            self._nursery.start_soon(task.run)

    def interrupt(self, task: _Task[Any]) -> None:
        """Cancel a task because the thread that waits for it is interrupted, as by Ctrl-C; wait for its end.

        Otherwise it could take a message for which another call waits. Does nothing in a forked process.
        """
        if self.is_of_another_process:
            return
        try:
            self.soon(self._cancel, task)
        except ConnectionLost:
            return  # the loop has ended, and the task with it
        task.result.wait()

    def _cancel(self, task: _Task[Any]) -> None:
        # In the loop's thread. A thread may be interrupted before it has started its task.
        if task.result.is_known:
            return
        if task.is_started:
            task.scope.cancel()
        else:
            task.fail(_closed())

    def soon(self, function: Callable[[Unpack[Arguments]], object], *arguments: *Arguments) -> None:
        """Call a function in the loop's thread, without waiting. Raises ConnectionLost when it has ended."""
        try:
            self._calls.put(partial(function, *arguments))
        except LoopEnded:
            _end_with_program()
            raise _closed() from None

    def result_of(self, task: _Task[Any], outcome: TaskResult[T]) -> T:
        """Wait for an outcome. If this is interrupted, cancel the task, and wait for its end."""
        try:
            outcome.wait()
        except BaseException:  # of this thread, as by Ctrl-C
            self.interrupt(task)
            raise
        return self._get(outcome)

    def _get(self, outcome: TaskResult[T]) -> T:
        try:
            return outcome.get()
        except ConnectionLost:
            _end_with_program()
            raise

    def stop(self) -> None:
        """Cancel all tasks, and wait for the end of the thread."""
        self.soon(self._stopping.set)
        self._thread.join()

    def abandon(self) -> None:
        """Stop as `stop` does, but do not wait for long: for clients that are not closed. Any thread may call
        this.
        """
        if self.is_of_another_process:
            return  # the thread is one of the process from which this one was forked
        try:
            self._calls.put(self._stopping.set)
        except LoopEnded:
            return
        if threading.current_thread() is not self._thread:
            self._thread.join(ABANDON_SECONDS)


def checked(timeout: float | None) -> float | None:
    """Return the timeout of a call. Raises ValueError for one that cannot be."""
    if timeout is not None and not timeout >= 0:  # NaN is refused, too
        raise ValueError(f"timeout must not be negative: {timeout!r}")
    return timeout


async def _within(seconds: float, function: Callable[[], Awaitable[T]]) -> T:
    with trio.CancelScope() as scope:
        if seconds:
            scope.deadline = trio.current_time() + seconds
        else:  # not before the function waits: what has arrived is received
            trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)
        return await function()
    raise TimeoutError(f"not done within {seconds:g} s")


def _end_with_program() -> None:
    """Block a daemon thread for ever if the program ends. Does nothing otherwise.

    Python ends the clients before it ends the daemon threads. A thread that reported in between that its
    client was closed would print a traceback, or not, as time has it.
    """
    # Python has waited then for all threads but these, and says that its main thread has ended.
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        SimpleQueue[None]().get()


def _cannot_start(error: OSError) -> ConnectionFailed:
    return ConnectionFailed(f"the client's event loop cannot start: {reason(error)}")


def _closed() -> ConnectionLost:
    return ConnectionLost("the client was closed")
