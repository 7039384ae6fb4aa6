"""Refusals of the client before it sends anything: the error names the argument, and the client goes on."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from omq import management
from omq.client import Client, Delivery, FromBeginning, FromMessage

WRONG: Any = "wrong"
NONE: Any = None
JOBS: Any = "jobs"
NO_FORM = " has no form on the wire: text is bytes, and a record has a class"

CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "delivery must be a Delivery, not 'wrong'": lambda client: client.declare("new", WRONG),
    "persistence must be Persistent or Transient, not 'wrong'": lambda client: client.declare(
        "new", Delivery.BROADCAST, WRONG
    ),
    "replay must be FromBeginning, FromMessage or FromCurrent, not 'wrong'": lambda client: client.subscribe(
        "new", WRONG
    ).__aenter__(),
    "capacity must be at least 1, not 0": lambda client: client.subscribe("new", capacity=0).__aenter__(),
    "credit must be at least 1, not -1": lambda client: client.subscribe("new", credit=-1).__aenter__(),
    "credit must be an integer, not 'wrong'": lambda client: client.subscribe(
        "new", credit=WRONG
    ).__aenter__(),
    "period must be 0.1 to 3600 seconds, not 0": lambda client: client.watch(0).__aenter__(),
    "period must be 0.1 to 3600 seconds, not nan": lambda client: client.watch(float("nan")).__aenter__(),
    f"None{NO_FORM}": lambda client: client.retain("new", NONE),
    f"'jobs'{NO_FORM}": lambda client: client.manage(management.DeclareQueue(JOBS, b"weak", ())),
}


@pytest.mark.parametrize("said", CALLS)
async def test_a_wrong_argument_is_named(client: Client, said: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        await CALLS[said](client)
    assert str(caught.value) == said
    assert await client.topics() == ()


async def test_a_feed_refuses_what_is_no_start(client: Client) -> None:
    with pytest.raises(TypeError, match=r"^replay must be FromBeginning, "):
        client.feed("new", WRONG)


async def test_a_command_that_cannot_be_encoded_affects_no_other(client: Client) -> None:
    with pytest.raises(TypeError):
        async with client.subscribe("t", FromMessage(WRONG)):
            pass
    await client.publish_confirmed("t", b"one")
    async with client.subscribe("t", FromBeginning()) as subscription:
        assert (await anext(subscription)).body == b"one"
