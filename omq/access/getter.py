"""Messages of a queue on demand, one at a time, as Basic.Get takes them."""

import sys

from omq.drivers.queue import QueueDriver
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import Channel, CreditKind


class Getter:
    """Gets messages of one queue on demand, and keeps those that are not settled."""

    def __init__(self, driver: QueueDriver, channel: RoundRobinChannel) -> None:
        self._driver = driver
        self.channel: Channel = channel
        self._own = channel
        self.topic = driver.topic

    def grant(self) -> None:
        """Keep messages until they are settled."""
        self.channel.grant(sys.maxsize, CreditKind.WINDOW)

    async def deal_one(self) -> bool:
        """Let the channel have the oldest message that is ready; return False if there is none.

        Raises omq_storage.errors.StoreError.
        """
        return await self._driver.deal_one(self._own)

    @property
    def ready(self) -> int:
        """The number of messages that are ready."""
        return self._driver.ready

    def retire(self) -> None:
        """See `omq.drivers.seam.Channel.retire`."""
        self.channel.retire()

    def close(self) -> None:
        """End it: messages that are not settled return to the queue."""
        self.channel.close()
