"""What a body may be, for those who give something else."""

from collections.abc import Iterable

KINDS = (bytes, bytearray, memoryview)


def check_bodies(bodies: Iterable[object]) -> None:
    """Raises TypeError for the first that is no body, in words that say what is wanted.

    Only called when something has failed: to look at each message beforehand would cost too much.
    """
    for body in bodies:
        if not isinstance(body, KINDS):
            hint = ": encode it" if isinstance(body, str) else ""
            raise TypeError(f"the body of a message must be bytes, not {type(body).__name__}{hint}")
