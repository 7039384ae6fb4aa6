"""The synchronous client asks a server for several topics at once."""

from collections.abc import AsyncIterator

import pytest
import trio
from capture_file import Endpoint
from client_helpers import OpenServer, connect_to
from relay import relaying
from relays import relayed

from omq.bulk.access import Gap, Span
from omq.bulk.remote import RemoteServer, RetryPolicy, parse_servers
from omq.client import Delivery, Persistent, Sync
from omq.server import Server
from omq_storage.blocks import FRAME_HEADER, Block

TOPICS = 40
MESSAGES = 3


@pytest.fixture
async def server(open_omq: OpenServer) -> AsyncIterator[Server]:
    async with open_omq() as running, connect_to(running) as client:
        for number in range(TOPICS):
            topic = f"t{number:02}"
            await client.declare(topic, Delivery.BROADCAST, Persistent(Sync.WEAK))
            await client.publish_many(topic, [b"%d of %d" % (each, number) for each in range(MESSAGES)])
        await client.confirm()
        yield running


def read_all(remote: RemoteServer, spans: list[Span]) -> list[list[bytes] | Gap]:
    def bodies(block: Block, messages: range) -> list[bytes]:
        return [bytes(block.frame(message)[FRAME_HEADER:]) for message in messages]

    found: list[list[bytes] | Gap] = []
    for number, (topic, start, end) in enumerate(spans, 1):
        found += remote.fetch(topic, start, end, bodies, spans[number:])
    return found


def spans_of(remote: RemoteServer) -> list[Span]:
    topics = remote.topics()
    return [(topic, topic.first, topic.next) for _, topic in sorted(topics.items())]


def stored() -> list[list[bytes] | Gap]:
    return [[b"%d of %d" % (each, number) for each in range(MESSAGES)] for number in range(TOPICS)]


async def test_commands_for_following_topics_leave_before_the_first_answer(server: Server) -> None:
    async with relaying(server.port) as relay:

        def read() -> list[list[bytes] | Gap]:
            with RemoteServer(parse_servers(f"127.0.0.1:{relay.port}"), RetryPolicy(retries=0)) as remote:
                spans = spans_of(remote)
                topic, _, end = spans[7]
                spans[7] = (topic, end, end)  # nothing of it is left to read
                topic, start, end = spans[20]
                spans[20] = (topic, start, end + 2)
                return read_all(remote, spans)

        found = await trio.to_thread.run_sync(read)
        said = list(relay.said)
    last = MESSAGES + 1
    wanted = stored()
    wanted[20:21] = [wanted[20], Gap(last, last + 1, "the server has no such messages")]
    assert found == wanted[:7] + wanted[8:]
    fetches = [each.octets.count(b"(Fetch ") for each in said if each.side is Endpoint.CLIENT]
    assert sum(fetches) == TOPICS - 1
    assert max(fetches) == 16
    assert sum(map(bool, fetches)) < 7, "several commands leave together"


async def test_a_lost_connection_repeats_what_was_asked_for_ahead(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with relayed(server.port) as relay:

        def read() -> list[list[bytes] | Gap]:
            # Real time passes here, until the silence is a lost connection.
            policy = RetryPolicy(retries=1, seconds=0, silence=2.0)
            with RemoteServer(parse_servers(relay.url), policy) as remote:
                spans = spans_of(remote)
                relay.swallow(after=900)  # in the middle of the first sixteen answers
                return read_all(remote, spans)

        found = await trio.to_thread.run_sync(read)
        assert relay.connections == 2
    assert found == stored()
    assert "continuing to read 't" in caplog.text


async def test_only_what_was_asked_for_ahead_can_be_fetched_next(server: Server) -> None:
    def read() -> None:
        with RemoteServer(parse_servers(f"127.0.0.1:{server.port}"), RetryPolicy(retries=0)) as remote:
            first, second, third = spans_of(remote)[:3]
            assert len(list(remote.fetch(*first, lambda block, _: block.count, [second]))) == 1
            with pytest.raises(RuntimeError, match="must be fetched next"):
                list(remote.fetch(*third, lambda block, _: block.count))

    await trio.to_thread.run_sync(read)
