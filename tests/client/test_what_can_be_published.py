"""Messages that the client refuses before it sends anything, so that other tasks are not affected."""

from collections.abc import Awaitable, Callable

import pytest
from anyio.abc import TaskGroup
from client_helpers import OpenServer, connect_to

from omq.client import Client, FromBeginning, MessageTooLong, OmqError

LINE = 1 << 20
AROUND = len('(Publish t "")')

Publish = Callable[[Client, bytes], Awaitable[object]]

WAYS: dict[str, Publish] = {
    "publish": lambda client, body: client.publish("t", body),
    "publish_confirmed": lambda client, body: client.publish_confirmed("t", body),
    "publish_many": lambda client, body: client.publish_many("t", [b"before", body]),
    "publish_lines": lambda client, body: client.publish_lines("t", body + b"\nafter\n"),
}


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
def way(request: pytest.FixtureRequest) -> Publish:
    found: Publish = request.param
    return found


@pytest.mark.parametrize("octet", [b"x", b'"', b"\\", b"\xff"])
async def test_a_line_that_is_too_long_is_refused_and_the_longest_one_is_not(
    client: Client, way: Publish, octet: bytes
) -> None:
    longest = (LINE - AROUND) // (2 if octet in b'"\\' else 1)
    await way(client, octet * longest)
    with pytest.raises(MessageTooLong, match="publish it through a sink"):
        await way(client, octet * (longest + 1))
    await client.confirm()
    async with client.subscribe("t", FromBeginning(), capacity=16 << 20) as subscription:
        # The messages before it, in the same call, were sent; and nothing else.
        await client.publish_confirmed("t", b"last")
        lengths = []
        async for message in subscription:
            if message.body == b"last":
                break
            lengths.append(len(message.body))
    assert [length for length in lengths if length > 6] == [longest]
    assert lengths.count(len(b"before")) in (0, 2)


async def test_other_tasks_of_the_connection_are_not_affected(client: Client, nursery: TaskGroup) -> None:
    async with client.subscribe("t") as subscription:
        with pytest.raises(ValueError, match="makes a line of 2000014 octets, and the server takes 1048576"):
            await client.publish("t", b"x" * 2_000_000)
        await client.publish("t", b"small")
        assert (await anext(subscription)).body == b"small"


async def test_the_longest_line_is_what_the_server_is_configured_for(open_omq: OpenServer) -> None:
    longer = 2 << 20
    async with open_omq(max_line_bytes=longer) as server, connect_to(server, max_line_bytes=longer) as client:
        await client.publish_confirmed("t", b"x" * 1_500_000)
    async with open_omq(max_line_bytes=2048) as server, connect_to(server, max_line_bytes=2048) as client:
        with pytest.raises(OmqError, match="the server takes 2048"):
            await client.publish("t", b"x" * 3000)
        await client.confirm()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("text", "the body of a message must be bytes, not str: encode it"),
        ({"a": 1}, "the body of a message must be bytes, not dict"),
        (5, "the body of a message must be bytes, not int"),
        (None, "the body of a message must be bytes, not NoneType"),
    ],
)
async def test_an_invalid_body_is_refused(client: Client, body: bytes, said: str) -> None:
    async with client.sink("t") as sink:
        calls = [
            client.publish("t", body),
            client.publish_confirmed("t", body),
            client.publish_many("t", [b"1", body]),
            client.publish_lines("t", body),
            sink.publish(body),
            sink.publish_many([b"2", body]),
        ]
        for call in calls:
            with pytest.raises(TypeError) as caught:
                await call
            assert str(caught.value) == said
    assert sink.stored == 0
    await client.publish_confirmed("t", b"fine")
    (info,) = await client.topics()
    assert info.messages == 1


async def test_other_types_of_octets_are_published_unchanged(client: Client) -> None:
    body = b'a\n"\\b'
    await client.publish("t", bytearray(body))
    await client.publish("t", memoryview(body))
    await client.publish_many("t", [memoryview(body), bytearray(body)])
    await client.publish_lines("t", memoryview(b"1\n2"))
    async with client.subscribe("t", FromBeginning()) as subscription:
        bodies = [(await anext(subscription)).body for _ in range(6)]
    assert bodies == [body] * 4 + [b"1", b"2"]


@pytest.mark.parametrize("topic", [5, None, ["t"], {"t": 1}])
async def test_an_invalid_topic_is_refused(client: Client, topic: str) -> None:
    for call in (
        client.publish(topic, b"x"),
        client.publish_many(topic, [b"x"]),
        client.declare(topic),
        client.subscribe(topic).__aenter__(),
    ):
        with pytest.raises(TypeError, match="must be bytes or str, not"):
            await call
