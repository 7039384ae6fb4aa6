"""The types that a message's body may have."""

from collections.abc import Iterable

KINDS = (bytes, bytearray, memoryview)


def check_bodies(bodies: Iterable[object]) -> None:
    """Raise TypeError for the first object that is not a body, and name the required type.

    Call this only after a failure: checking each message beforehand would cost too much.
    """
    for body in bodies:
        if not isinstance(body, KINDS):
            hint = ": encode it" if isinstance(body, str) else ""
            raise TypeError(f"the body of a message must be bytes, not {type(body).__name__}{hint}")
