"""A message in pieces is one message, however much the socket takes of each of them."""

from hypothesis import given
from hypothesis import strategies as st

from omq.protocol.amqp_0_9.delivery import ConsumerFraming
from omq.terminals.amqp_0_9.forms import MessageInPieces

from .wire import body

FRAME_MAX = 4096

CONSUMER = ConsumerFraming(3, b"tag", FRAME_MAX, b"\0\0\0\0")

OPENING = b"what precedes the body"


@given(
    st.integers(0, 20_000),
    st.lists(st.integers(1, 6_000), max_size=20),
    st.lists(st.integers(0, 7_000), max_size=60),
)
def test_pieces_and_partial_sends(size: int, pieces: list[int], taken: list[int]) -> None:
    data = bytes(number % 251 for number in range(size))
    begun = MessageInPieces(CONSUMER, OPENING, size, None)
    wire = b""
    piece_sizes, takes = iter(pieces), iter(taken)
    for _ in range(200):
        if begun.is_done:
            break
        piece = data[begun.body : begun.body + next(piece_sizes, size + 1)]
        octets = b"".join(begun.framed(piece))
        count = min(next(takes, len(octets)), len(octets))
        begun.sent(count)
        wire += octets[:count]
        assert begun.body < size or begun.is_done or not size
        assert begun.is_begun == bool(wire)
    assert begun.is_done
    assert wire.startswith(OPENING)
    assert joined(wire[len(OPENING) :]) == data


def joined(wire: bytes) -> bytes:
    """Return the payloads of body frames on channel 3, which must be whole."""
    found = b""
    while wire:
        size = int.from_bytes(wire[3:7], "big")
        assert 0 < size <= FRAME_MAX - 8
        payload = wire[7 : 7 + size]
        assert wire.startswith(body(3, payload))
        found += payload
        wire = wire[8 + size :]
    return found
