"""The command Purge: deletes the messages of a topic, except for those that consumers of a queue have."""

from omq.drivers.driver import Driver
from omq.drivers.housekeeping import delete_oldest, save_positions
from omq.drivers.problems import for_clients
from omq.drivers.queue import QueueDriver
from omq.drivers.reasons import Refused
from omq_storage.errors import StoreError
from omq_storage.records import TooOld


async def purge(driver: Driver) -> int:
    """Delete the stored messages of a broadcast topic, or those of a queue that no consumer has. Return their
    number when the store has the deletion: a server that is killed then does not deliver them again.

    A transient broadcast topic keeps only what its subscribers are still sent: nothing of it is deleted.

    Raises Refused. Then the messages of a queue are deleted, and may come back if the server is killed soon.
    """
    if isinstance(driver, QueueDriver):
        count = driver.purge()
        if driver.writer is not None:
            try:
                await save_positions(driver.writer)
            except StoreError as problem:
                raise Refused.of(for_clients(problem)) from problem
        return count
    if driver.writer is None:
        return 0
    before, end = driver.extent, driver.next_id
    try:
        await delete_oldest(driver, driver.writer, None, TooOld(0, 0, end), None)
    except StoreError as problem:
        raise Refused.of(for_clients(problem)) from problem
    # Small blocks may be merged meanwhile with later messages, and stay with these.
    after = driver.extent
    left = max(0, end - after.first) if after.messages else 0
    return max(0, before.messages - left)
