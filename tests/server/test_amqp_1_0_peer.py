"""The raw client of AMQP 1.0 that other tests use, with a server that the test plays."""

from trio.testing import memory_stream_pair

from omq.protocol.amqp_1_0 import frames, performatives
from omq.protocol.amqp_1_0.performatives import Begin, Disposition, Flow, Performative

from .amqp_1_0_peer import ACCEPTED, Peer, data


def write(*said: Performative, channel: int = 5) -> bytes:
    return b"".join(frames.write(channel, performatives.write(one)) for one in said)


def windows(transfers: int) -> Flow:
    """Return the windows that a server states when it has read so many transfers."""
    return Flow(transfers, 64, 0, 64)


async def test_settling_is_over_when_all_transfers_are_counted() -> None:
    near, far = memory_stream_pair()
    client = Peer(near)
    await client.say(Begin(None, 0, 64, 64))
    for _ in range(3):
        await client.publish(data(b"x"))
    outcome = Disposition(True, 0, 0, True, ACCEPTED)
    await far.send_all(write(Begin(0, 0, 64, 64), windows(2), outcome))
    await far.send_all(write(Begin(1, 0, 64, 64), windows(3), channel=6))
    await far.send_all(write(windows(3), windows(4)))
    await client.settle()
    assert await client.heard(Begin) == Begin(0, 0, 64, 64)
    assert await client.heard(Disposition) == outcome
    assert await client.heard(Begin) == Begin(1, 0, 64, 64)
    assert await client.heard(Flow) == windows(3)  # that of another session
    assert await client.heard(Flow) == windows(4)
