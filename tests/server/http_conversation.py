"""Requests of HTTP to a server under test, and its answers, octet by octet."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

import trio

from .conversation import PATIENCE, Host


@dataclass(frozen=True)
class Answered:
    """An answer as it came."""

    status: int
    fields: Mapping[str, str]
    body: bytes


async def read_answer(stream: trio.abc.ReceiveStream, buffered: bytearray, *, head: bool = False) -> Answered:
    """Return the next answer on a connection; `head`: to a request with the method HEAD."""
    with trio.fail_after(PATIENCE):
        while b"\r\n\r\n" not in buffered:
            data = await stream.receive_some(64 << 10)
            assert data, f"the connection ended after {bytes(buffered)!r}"
            buffered += data
        first, _, _ = bytes(buffered).partition(b"\r\n\r\n")
        line, *lines = first.decode().split("\r\n")
        fields = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}
        length = 0 if head else int(fields.get("content-length", "0"))
        del buffered[: len(first) + 4]
        while len(buffered) < length:
            data = await stream.receive_some(64 << 10)
            assert data, "the connection ended in the middle of a body"
            buffered += data
    body = bytes(buffered[:length])
    del buffered[:length]
    assert line.startswith("HTTP/1.1 ")
    return Answered(int(line.split()[1]), fields, body)


def request(path: str, method: str = "GET", host: str = "127.0.0.1", **fields: str) -> bytes:
    """Return a request; underscores in the names of fields are hyphens."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def ask(host: Host, octets: bytes) -> Answered:
    """Return the answer to a request on a connection of its own."""
    client = await host.open()
    await client.send(octets)
    answered = await read_answer(client.stream, bytearray(), head=octets.startswith(b"HEAD"))
    client.close()
    return answered


def basic(id: str) -> str:
    """Return the field Authorization for the id of a client."""
    return "Basic " + base64.b64encode(id.encode()).decode()
