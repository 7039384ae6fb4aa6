"""Bounds what all connections together send between two looks at the sockets.

In one round of its scheduler Trio runs every task that is ready once, and only then looks which sockets have
input. If two hundred subscribers are ready at once, and the turn of each sends 256 KiB, a round takes as long
as copying 50 MiB, and everybody's input waits for it.

So a round has a number of octets. When they are sent, the turns of other connections wait, in the order in
which they came, and a few of them continue in each of the following rounds. Answers and pings do not wait,
nor do the turns of a connection that sent little in its last turn.
"""

import trio

from omq.drivers.signal import Signal

ROUND_OCTETS = 1 << 20
"""After this number of octets no turn begins in a round. To copy them takes up to a millisecond."""

ROUND_TURNS = 4
"""How many waiting turns a round continues with: each sends 256 KiB at most. With 16 turns the round trip of
another client beside 200 subscribers took two to four times as long.
"""


class Pace:
    """The pace of all connections of a server. `run` is its task."""

    def __init__(self) -> None:
        self._left = ROUND_OCTETS
        self._waiting = trio.lowlevel.ParkingLot()
        self._is_spent = Signal()

    @property
    def is_spent(self) -> bool:
        """Whether a turn must `wait` before it begins."""
        return self._left <= 0

    @property
    def waiting(self) -> int:
        """The number of waiting turns."""
        return len(self._waiting)

    def spend(self, octets: int) -> None:
        """Count what a turn has sent."""
        self._left -= octets
        if self._left <= 0:
            self._is_spent.set()

    async def wait(self) -> None:
        """Wait for a round that continues with this turn."""
        await self._waiting.park()

    async def run(self) -> None:
        """Begin the rounds, until cancelled."""
        while True:
            await self._is_spent.wait()
            while self._left <= 0 or self._waiting:
                await trio.lowlevel.checkpoint()
                # Those that continue come before any new one: nobody begins while others wait.
                self._left = 0 if len(self._waiting) > ROUND_TURNS else ROUND_OCTETS
                self._waiting.unpark(count=ROUND_TURNS)
