"""The bodies of messages: their types, and batches of them."""

from collections.abc import Iterable, Iterator

KINDS = (bytes, bytearray, memoryview)


def check_bodies(bodies: Iterable[object]) -> None:
    """Raise TypeError for the first object that is not a body, and name the required type.

    Call this only after a failure: checking each message beforehand would cost too much.
    """
    for body in bodies:
        if not isinstance(body, KINDS):
            hint = ": encode it" if isinstance(body, str) else ""
            raise TypeError(f"the body of a message must be bytes, not {type(body).__name__}{hint}")


def batches(bodies: Iterable[bytes], most_octets: int, most_messages: int) -> Iterator[list[bytes]]:
    """Divide bodies into batches. A batch ends with the body that makes it so large. Raises TypeError."""
    batch: list[bytes] = []
    octets = 0
    for body in bodies:
        batch.append(body)
        try:
            octets += len(body)
        except TypeError:
            check_bodies([body])
            raise
        if octets >= most_octets or len(batch) >= most_messages:
            yield batch
            batch = []
            octets = 0
    if batch:
        yield batch
