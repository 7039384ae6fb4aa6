"""When nothing more happens by itself."""

import trio
import trio.testing


async def quiet() -> None:
    """Wait until every task waits and no thread works: nothing more happens by itself, but for time."""
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if not trio.testing.active_thread_count():
            return
        await trio.testing.wait_all_threads_completed()
