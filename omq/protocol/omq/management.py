"""The sexps of Manage and Managed, derived from the types of `omq.management` (docs/PROTOCOL.md, "Manage").

Arguments and changes are pairs, and constructors of small variants have an argument instead of a record: a
command has at most 100 atoms and parentheses.
"""

from collections.abc import Iterator
from typing import cast, get_args

from omq import management
from omq.management import Answer, Request
from omq.protocol.omq.derived import Derived
from omq.protocol.omq.sexp import Sexp

_DERIVED = Derived(
    records=(
        management.QueueInfo, management.ExchangeInfo, management.BindingInfo, management.MessageInfo,
    ),
    tuples=(management.Argument, management.Change),
    with_argument=(
        management.Queue, management.Exchange,
        management.String, management.Int, management.Bool, management.Other,
    ),
)  # fmt: skip

_REQUESTS: tuple[type, ...] = get_args(Request)
_ANSWERS: tuple[type, ...] = get_args(Answer)


def request_of_sexp(sexp: Sexp) -> Request:
    """Convert the argument of a Manage. Raises ConversionError."""
    return cast(Request, _DERIVED.variant(_REQUESTS, sexp))


def sexp_of_request(request: Request) -> Sexp:
    """Convert a request to the argument of a Manage."""
    return _DERIVED.sexp(request)


def answer_pieces(answer: Answer) -> Iterator[bytes]:
    """Encode the payload of a Managed frame, in pieces that are short to make."""
    return _DERIVED.pieces(answer)


def read_answer(payload: bytes) -> Answer:
    """Parse the payload of a Managed frame. Raises SexpError."""
    return cast(Answer, _DERIVED.read_variant(_ANSWERS, payload, "an answer"))
