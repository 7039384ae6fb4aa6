"""The part of one commit for one topic: the messages of its posts as blocks with the next ids of the topic,
without the messages that are repeated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import Struct

from omq.drivers.posts import Post, StoredDriver
from omq.drivers.sequences import without_repeated
from omq.threads import in_thread
from omq_storage.batches import Batch, blocks_of
from omq_storage.blocks import Block
from omq_storage.environment import Environment
from omq_storage.fragments import Fragmented, Uploaded


class TopicCommit(Struct, frozen=True):
    """The part of a commit for one topic: blocks, and the last sequence number of each producer in them."""

    blocks: Sequence[Block | Fragmented]
    sequences: Mapping[bytes, int]


async def topic_commit(driver: StoredDriver, posts: Sequence[Post], environment: Environment) -> TopicCommit:
    """Return blocks of the messages that are not repeated. Raises StoreError."""
    sequences: Mapping[bytes, int] = {}
    if any(post.origins for post in posts):
        posts, sequences = await _without_repeated(driver, posts, environment)
    return TopicCommit(_blocks(driver, posts), sequences)


async def _without_repeated(
    driver: StoredDriver, posts: Sequence[Post], environment: Environment
) -> tuple[list[Post], dict[bytes, int]]:
    """Return the posts without repeated messages, and the last sequence number of each producer with new
    ones.

    Look the numbers up in the store each time: they are right then whatever earlier commits did. All of
    it runs in a thread, because it is work for each message.
    """
    producers = frozenset[bytes]().union(*(post.producers.names for post in posts))

    def look() -> tuple[list[Post], dict[bytes, int]]:
        kept = environment.sequences(driver.topic.id, producers)
        last = dict(kept)
        new = []
        for post in posts:
            batch, heads = without_repeated(post.batch, post.heads, post.origins, last)
            if batch.count:
                new.append(replace(post, batch=batch, heads=heads))
        return new, {
            producer: sequence for producer, sequence in last.items() if kept.get(producer) != sequence
        }

    return await in_thread(look)


def _blocks(driver: StoredDriver, posts: Sequence[Post]) -> list[Block | Fragmented]:
    """Return the messages of these posts as blocks with the next ids of the topic."""
    topic, next_id, now = driver.topic.id, driver.next_id, driver.now()
    found: list[Block | Fragmented] = []
    batches: list[tuple[Batch, Sequence[bytes], int]] = []
    for post in posts:
        if isinstance(post.batch, Uploaded):
            if batches:
                found += blocks_of(topic, next_id, now, batches)
                next_id = found[-1].next
                batches = []
            found.append(post.batch.message(topic, next_id, now, post.heads[0] if post.heads else b""))
            next_id += 1
        else:
            batches.append((post.batch, post.heads, post.octets))
    if batches:
        found += blocks_of(topic, next_id, now, batches)
    return found
