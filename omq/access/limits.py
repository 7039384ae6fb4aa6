"""How much at a time: quotas, which count, and octets a second."""

import trio

BURST_SECONDS = 1.0
"""So much of the octets of a second may come together."""

MOMENT_SECONDS = 0.5
"""How long somebody waits for a quota: another may have gone, and the server has not yet seen it go."""

PIECE_OCTETS = 16 << 10
"""At most so many octets are read at once where their number a second is limited."""


class Quota:
    """How many of something there may be at a time; any number without a limit."""

    def __init__(self, most: int | None) -> None:
        """`most` is the limit; None for none."""
        self.most = most
        self.used = 0
        self._given = trio.lowlevel.ParkingLot()

    @property
    def is_spent(self) -> bool:
        """Whether there are as many as there may be."""
        return self.most is not None and self.used >= self.most

    def take(self) -> bool:
        """Count one more, unless the quota is spent."""
        if self.is_spent:
            return False
        self.used += 1
        return True

    async def take_soon(self) -> bool:
        """The same, but when it is spent, wait up to MOMENT_SECONDS for somebody to give one back."""
        with trio.move_on_after(MOMENT_SECONDS):
            while not self.take():
                await self._given.park()
            return True
        return False

    def give(self) -> None:
        """One is over."""
        self.used -= 1
        self._given.unpark()


class Pace:
    """So many octets a second. What was more has its time afterwards, in which nothing goes on."""

    def __init__(self, octets_per_second: int) -> None:
        self._rate = octets_per_second
        self.octets_per_second = octets_per_second
        self._spent = 0.0  # until when what has passed lasts at the allowed pace
        self.piece = max(1, min(PIECE_OCTETS, octets_per_second))
        """How much is best read at once."""

    def spend(self, octets: int) -> None:
        """So many have passed."""
        self._spent = max(self._spent, trio.current_time()) + octets / self._rate

    @property
    def until(self) -> float:
        """From when on more may pass, in Trio's time."""
        return self._spent - BURST_SECONDS

    def is_open(self) -> bool:
        """Whether more may pass now."""
        return trio.current_time() >= self.until
