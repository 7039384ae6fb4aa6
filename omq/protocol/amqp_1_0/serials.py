"""Serial numbers of 32 bits, which begin again at 0 after the greatest one.

delivery-count, delivery-id and transfer-id are such numbers (RFC 1982; AMQP 1.0, part 2, section 2.8.9,
"Sequence No"): they are compared by their difference, which is negative where it is more than half of them.
"""

MODULUS = 1 << 32
_MASK = MODULUS - 1
_HALF = MODULUS >> 1


def add(serial: int, n: int) -> int:
    """Return the number `n` after this one; `n` may be negative."""
    return (serial + n) & _MASK


def difference(later: int, earlier: int) -> int:
    """Return the distance from `earlier` to `later`; negative if it is before."""
    apart = (later - earlier) & _MASK
    return apart - MODULUS if apart >= _HALF else apart
