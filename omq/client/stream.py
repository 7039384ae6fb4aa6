"""A connected socket with its handshake behind it."""

import trio

from omq.client.errors import ConnectionFailed, HandshakeRefused
from omq.client.network import Security, Stream, open_stream
from omq.client.reasons import reason
from omq.protocol import handshake
from omq.protocol.handshake import VERSION_ONE


async def open_greeted(host: str, port: int, seconds: float, security: Security | None) -> Stream:
    """Connect and agree on the version, within `seconds`. Raises ConnectionFailed and HandshakeRefused."""
    where = f"{host}:{port}"
    try:
        with trio.fail_after(seconds):
            stream = await open_stream(host, port, security)
            try:
                await stream.send_all(handshake.hello())
                answer = b""
                while len(answer) < handshake.LENGTH:
                    data = await stream.receive_some(handshake.LENGTH - len(answer))
                    if not data:
                        raise ConnectionFailed(f"{where} closed the connection during the handshake")
                    answer += data
                if answer == handshake.REFUSED:
                    raise HandshakeRefused(f"{where} does not speak version {VERSION_ONE} of omq")
                if answer != handshake.ACCEPTED:
                    raise HandshakeRefused(f"{where} is no omq server: it answered {answer!r}")
            except BaseException:  # cancelled, too
                stream.socket.close()
                raise
    except trio.TooSlowError as error:
        raise ConnectionFailed(f"{where} did not answer within {seconds:g} s") from error
    except UnicodeError as error:
        raise ConnectionFailed(f"cannot connect to {where!r}: no host can have this name") from error
    except (OSError, trio.BrokenResourceError) as error:
        raise ConnectionFailed(f"cannot connect to {where}: {reason(error)}") from error
    return stream
