"""Work that nobody waits for has its steps in one task, in turn."""

from collections.abc import Iterator

import pytest
import trio
from quietness import quiet

from omq.drivers.errands import Errands


async def test_pieces_of_work_have_their_steps_in_turn_and_a_defect_ends_only_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    errands = Errands()

    def work(name: str, count: int) -> Iterator[None]:
        for number in range(count):
            done.append(f"{name}{number}")
            yield

    def defect() -> Iterator[None]:
        yield
        raise ValueError("it is wrong")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(errands.run)
        await quiet()
        errands.begin(work("a", 3))
        errands.begin(defect())
        errands.begin(work("b", 2))
        assert not done
        await quiet()
        assert done == ["a0", "b0", "a1", "b1", "a2"]
        assert "ValueError: it is wrong" in caplog.text
        errands.begin(work("c", 1))
        await quiet()
        assert done[-1] == "c0"
        nursery.cancel_scope.cancel()
