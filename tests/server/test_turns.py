"""Long work of one connection lets the others have their turn."""

import trio

from omq.protocol.steps import Steps
from omq.terminals.connection.turns import in_turns


async def test_others_have_a_turn_at_each_pause() -> None:
    order: list[str] = []

    def work() -> Steps[str]:
        for _ in range(5):
            order.append("work")
            yield
        return "made"

    async def other() -> None:
        while True:
            order.append("other")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert await in_turns(work()) == "made"
        nursery.cancel_scope.cancel()
    between = "".join(each[0] for each in order[order.index("work") :])
    assert between.count("w") == 5
    # Trio gives each task one turn in a round, in either order.
    assert between.count("o") >= 4
    assert "www" not in between
