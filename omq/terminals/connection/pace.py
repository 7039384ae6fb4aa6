"""Bounds the octets that all connections together send between two polls of the sockets.

In one round of its scheduler Trio runs every task that is ready once, and only then polls the sockets for
input. If two hundred subscribers are ready at once, and the turn of each sends 256 KiB, a round takes as long
as copying 50 MiB, and the input of all clients waits for it. Even if each of them sends a single small
message, the system calls take 10 ms.

So a round has a number of octets, and a turn counts some octets for its system call besides those that it
sends. When they are used up, the turns of other connections wait, and a few of them begin in each of the
following rounds, in the order in which they came: fewer if the rounds become long. Turns
of connections that sent little in their last turn do not wait for those that sent much. Answers, pings, and
messages that are pushed do not wait at all.

The task of a connection need not run to wait: it is woken when its turn may begin.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import trio

from omq.drivers.signal import Signal

ROUND_OCTETS = 1 << 20
"""The octets of a round after which no turn begins in it. To copy them takes up to a millisecond."""

TURN_OCTETS = 64 << 10
"""The octets that a turn counts besides those that it sends: it takes some 0.1 ms to send a little."""


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """The limits of the rounds while turns wait."""

    turns: int
    """The most waiting turns that begin in a round, of connections that sent little in their last turn. Of
    others half as many begin: each sends 256 KiB of messages, or 1 MiB of stored blocks, at most. As many go
    on.
    """
    seconds: float
    """The processor time of a round above which fewer turns begin in the next one."""


OF_FEW = RoundLimits(8, 0.002)
"""The limits while few turns wait."""
OF_MANY = RoundLimits(4, 0.0004)
"""The limits while many turns wait: these keep the rounds full for long. Each short round costs a little."""

FEW_WAITING = 16
"""The greatest number of waiting turns that are few."""


class Pace:
    """The pace of all connections of a server. `run` is its task: before it runs, no turn waits."""

    def __init__(self) -> None:
        self.left = inf
        """The octets of this round. A turn that does not use them up may subtract its own."""
        self._light: deque[Callable[[], None]] = deque()
        self._heavy: deque[Callable[[], None]] = deque()
        self._going_on = 0
        """The number of turns that may go on in this round although it is spent."""
        self._is_spent = Signal()

    @property
    def waiting(self) -> int:
        """The number of waiting turns."""
        return len(self._light) + len(self._heavy)

    def begin(self, admitted: Callable[[], None], *, is_heavy: bool) -> bool:
        """Return whether a turn may begin in this round. If not, `admitted` is called when it may."""
        if self.left > 0:
            self.spend(TURN_OCTETS)
            return True
        (self._heavy if is_heavy else self._light).append(admitted)
        return False

    def spend(self, octets: int) -> None:
        """Count the octets that a turn has sent."""
        self.left -= octets
        if self.left <= 0:
            self._is_spent.set()

    async def turn(self) -> None:
        """Wait until a turn may go on after its connection has accepted a part of the octets."""
        if self.left <= 0 and self._going_on:
            self._going_on -= 1  # to wait takes another step of the task
            return
        signal = Signal()
        if not self.begin(signal.set, is_heavy=True):
            await signal.wait()

    async def run(self) -> None:
        """Begin the rounds, until cancelled."""
        self.left = ROUND_OCTETS
        turns = OF_FEW.turns
        while True:
            await self._is_spent.wait()
            while self.left <= 0 or self.waiting:
                begun = time.thread_time()
                await trio.lowlevel.checkpoint()
                rounds = OF_FEW if self.waiting <= FEW_WAITING else OF_MANY
                is_long = time.thread_time() - begun > rounds.seconds
                turns = max(1, turns // 2) if is_long else min(turns + 1, rounds.turns)
                self._going_on = turns
                self._admit(self._light, turns)
                self._admit(self._heavy, (turns + 1) // 2)
                # Waiting turns come before any new one: no turn begins while others wait.
                self.left = 0 if self.waiting else ROUND_OCTETS

    def _admit(self, turns: deque[Callable[[], None]], most: int) -> None:
        for _ in range(min(most, len(turns))):
            turns.popleft()()
