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


def joined(pieces: Iterable[bytes], most_octets: int, most_pieces: int) -> Iterator[bytes]:
    """Join small pieces, and divide large ones: the results have less than twice `most_octets`. A piece that
    is not `bytes` is copied before the next one is requested, since its owner may use its memory again.
    Raises TypeError.
    """
    batch: list[bytes] = []
    octets = 0
    for piece in pieces:
        check_bodies([piece])
        for part in _parts(piece, most_octets):
            batch.append(part)
            octets += len(part)
            if octets >= most_octets or len(batch) >= most_pieces:
                yield b"".join(batch)
                batch = []
                octets = 0
    if batch:
        yield b"".join(batch)


def _parts(piece: bytes, most_octets: int) -> Iterator[bytes]:
    octets = memoryview(piece)
    if octets.nbytes <= most_octets:
        yield bytes(piece)  # no copy of `bytes`
        return
    octets = octets.cast("B")
    for start in range(0, len(octets), most_octets):
        yield bytes(octets[start : start + most_octets])
