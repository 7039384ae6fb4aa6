"""The name and secret of a client, by the SASL mechanisms PLAIN and AMQPLAIN, as an id of omq's clients."""

from omq.protocol.amqp.fields import LongString, read_small_table
from omq.protocol.amqp.shortstr import FieldError
from omq.terminals.connection.login import BadLogin, Login, client_name, read_plain

MECHANISMS = b"PLAIN AMQPLAIN"


def read_login(mechanism: bytes, response: bytes) -> Login:
    """Read the answer of a client to Connection.Start. Raises BadLogin."""
    match mechanism:
        case b"PLAIN":
            return read_plain(response)
        case b"AMQPLAIN":
            return _amqplain(response)
        case _:
            raise BadLogin("the mechanisms are PLAIN and AMQPLAIN")


def _amqplain(response: bytes) -> Login:
    """Read a field table without its own length, with LOGIN and PASSWORD. Raise BadLogin."""
    table_octets = len(response).to_bytes(4, "big") + response
    try:
        table, _ = read_small_table(table_octets, 0, len(table_octets), "the response to AMQPLAIN")
    except FieldError as problem:
        raise BadLogin(str(problem)) from problem
    found = {name: value.octets for name, value in table.entries if isinstance(value, LongString)}
    if b"LOGIN" not in found or b"PASSWORD" not in found:
        raise BadLogin("the response to AMQPLAIN has no LOGIN and PASSWORD")
    return Login(client_name(found[b"LOGIN"]), found[b"PASSWORD"])
