"""Which right each command of the omq protocol takes."""

from typing import assert_never

from omq.access.rights import Rights
from omq.drivers.reasons import Reason, Refused
from omq.protocol.omq import types


def check_rights(rights: Rights, command: types.Command) -> None:
    """Raises Refused for a command that somebody with these rights may not give.

    It is asked before anything is looked up: the answer does not tell whether there is such a topic. Publish
    is not judged here: most come in runs, which are no commands.
    """
    match command:
        case types.Put(topic):
            allowed, what = topic in rights.publish, "publish to"
        case (
            types.Subscribe(topic)
            | types.Get(topic)
            | types.Request(topic)
            | types.Fetch(topic)
            | types.Blocks(topic)
        ):
            allowed, what = topic in rights.subscribe, "subscribe to"
        case types.Declare(topic):
            allowed, what = topic in rights.declare, "declare"
        case types.Delete(topic):
            allowed, what = topic in rights.delete, "delete"
        case (
            types.Connect()
            | types.Publish()
            | types.Unsubscribe()
            | types.Received()
            | types.Ack()
            | types.Confirm()
            | types.Topics()
        ):
            return
        case _:
            assert_never(command)
    if not allowed:
        raise Refused(Reason.FORBIDDEN, f"this client may not {what} it")
