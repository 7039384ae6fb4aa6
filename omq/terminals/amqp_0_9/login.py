"""Who a client says to be: the SASL mechanisms PLAIN and AMQPLAIN, as an id of omq's clients."""

from dataclasses import dataclass

from omq.protocol.amqp.fields import LongString, read_table
from omq.protocol.amqp.shortstr import FieldError

MECHANISMS = b"PLAIN AMQPLAIN"


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a secret. `id` is their form in a Connect of omq."""

    name: bytes
    secret: bytes

    @property
    def id(self) -> bytes:
        return self.name + b":" + self.secret


class BadLogin(Exception):
    """The response to the mechanism cannot be read; the message is for the client."""


def read_login(mechanism: bytes, response: bytes) -> Login:
    """Read what a client answered to Connection.Start. Raises BadLogin."""
    match mechanism:
        case b"PLAIN":
            return _plain(response)
        case b"AMQPLAIN":
            return _amqplain(response)
        case _:
            raise BadLogin("the mechanisms are PLAIN and AMQPLAIN")


def _plain(response: bytes) -> Login:
    """`authorisation identity | 0 | name | 0 | secret` (RFC 4616); the identity is not looked at."""
    parts = response.split(b"\0", 2)
    if len(parts) != 3:
        raise BadLogin("the response to PLAIN has no name and secret")
    return Login(_name(parts[1]), parts[2].removesuffix(b"\0"))


def _amqplain(response: bytes) -> Login:
    """A field table without its own length, with LOGIN and PASSWORD."""
    table_octets = len(response).to_bytes(4, "big") + response
    try:
        table, _ = read_table(table_octets, 0, len(table_octets), "the response to AMQPLAIN")
    except FieldError as problem:
        raise BadLogin(str(problem)) from problem
    found = {name: value.octets for name, value in table.entries if isinstance(value, LongString)}
    if b"LOGIN" not in found or b"PASSWORD" not in found:
        raise BadLogin("the response to AMQPLAIN has no LOGIN and PASSWORD")
    return Login(_name(found[b"LOGIN"]), found[b"PASSWORD"])


def _name(name: bytes) -> bytes:
    if b":" in name:  # it would end the name in an id
        raise BadLogin("a name has no colon")
    return name
