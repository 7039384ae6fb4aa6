"""Posts become blocks: small ones together, with their heads, and nothing lost at any boundary."""

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from omq.drivers.confirmation import Confirmation
from omq.drivers.posts import Post
from omq.drivers.writer import BLOCK_MESSAGES, blocks_from
from omq.model import Topic
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER, Block


@dataclass(eq=False)
class Recipient:
    """What the writer sees of a driver."""

    topic: Topic = field(default_factory=lambda: Topic(3, b"t"))
    next_id: int = 7
    deleted: bool = False
    failures: int = 0

    async def reserve(self, count: int) -> None:
        raise AssertionError

    def now(self) -> int:
        return 1_700_000_000_000_000

    def stored(self, block: Block) -> None:
        raise AssertionError


def posted(recipient: Recipient, count: int, size: int, headed: bool) -> Post:
    """A post of as many messages, the heads of which tell them apart."""
    bodies = [b"%d" % index * size for index in range(count)]
    heads = [b"head %d of %d" % (index, count) if index % 3 else b"" for index in range(count)]
    octets = sum(map(len, bodies)) + FRAME_HEADER * count + (sum(map(len, heads)) if headed else 0)
    return Post(recipient, Bodies(bodies), octets, Confirmation(), heads if headed else ())


counts = st.one_of(st.integers(1, 5), st.integers(BLOCK_MESSAGES - 3, 2 * BLOCK_MESSAGES + 3))


@given(st.lists(st.tuples(counts, st.sampled_from([1, 1, 40]), st.booleans()), min_size=1, max_size=6))
@example([(4095, 1, False), (2, 1, True), (1, 1, False)])
@example([(2, 1, False), (2, 1, True), (2, 1, False), (3, 1, True)])
@example([(5000, 1, False), (5000, 1, True)])
def test_every_message_keeps_its_own_head(shapes: list[tuple[int, int, bool]]) -> None:
    recipient = Recipient()
    posts = [posted(recipient, *shape) for shape in shapes]
    blocks = blocks_from(recipient, posts)
    assert [block.first for block in blocks] == [7, *(block.next for block in blocks[:-1])]
    assert all(block.count <= BLOCK_MESSAGES for block in blocks)
    bodies = [bytes(frame[FRAME_HEADER:]) for block in blocks for frame in block.slices(block.first)]
    heads = [head for block in blocks for head in block.heads_from(block.first)]
    assert bodies == [body for post in posts for body in post.batch.bodies()]
    assert heads == [head for post in posts for head in (post.heads or [b""] * post.batch.count)]


def test_small_posts_share_a_block_with_and_without_heads() -> None:
    recipient = Recipient()
    plain, headed = posted(recipient, 2, 1, False), posted(recipient, 2, 1, True)
    (block,) = blocks_from(recipient, [plain, headed, plain])
    assert block.heads_from(7) == [b"", b"", b"", b"head 1 of 2", b"", b""]
    (block,) = blocks_from(recipient, [plain, plain])
    assert block.heads is None


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=30), min_size=1, max_size=4),
    st.booleans(),
    st.integers(1, 200),
)
def test_no_block_reaches_the_limit_but_for_one_message(
    sizes: list[list[int]], headed: bool, limit: int
) -> None:
    recipient = Recipient()
    posts = []
    for post_sizes in sizes:
        batch = Bodies([b"x" * size for size in post_sizes])
        heads = [b"head %d" % size for size in post_sizes] if headed else ()
        posts.append(Post(recipient, batch, batch.octets, Confirmation(), heads))
    blocks = blocks_from(recipient, posts, limit)
    assert all(block.size < limit or block.count == 1 for block in blocks)
    assert [block.first for block in blocks] == [7, *(block.next for block in blocks[:-1])]
    frames = [bytes(frame[FRAME_HEADER:]) for block in blocks for frame in block.slices(block.first)]
    heads_of_all = [head for block in blocks for head in block.heads_from(block.first)]
    assert list(map(len, frames)) == [size for post_sizes in sizes for size in post_sizes]
    assert heads_of_all == [b"head %d" % len(frame) if headed else b"" for frame in frames]
