"""The callers that publish and ask for confirmations: tasks of Trio or of asyncio."""

import sys
from collections.abc import Callable


def current_task_here() -> Callable[[], object]:
    """Return the function that returns the current task, of the library whose task calls this. anyio's own
    function makes an object for each call, and a client calls this one for each message.
    """
    trio = sys.modules.get("trio")  # not imported by programs on asyncio
    if trio is not None and trio.lowlevel.in_trio_task():
        current: Callable[[], object] = trio.lowlevel.current_task
        return current
    from asyncio import current_task  # which programs on Trio do without

    return current_task
