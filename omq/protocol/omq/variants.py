"""Convert the variants in commands from and to sexps: Delivery.t, Persistence.t and Replay.t.

Source: docs/PROTOCOL.md, "Types". A constructor without arguments must be an atom, one with
arguments a list. Readers raise ConversionError.
"""

from typing import assert_never

from omq.model import (
    Delivery,
    FromBeginning,
    FromCurrent,
    FromMessage,
    Persistence,
    Persistent,
    Replay,
    Sync,
    Transient,
)
from omq.protocol.omq.converters import ConversionError, constructors, int64_of_sexp
from omq.protocol.omq.sexp import Sexp

_DELIVERIES = constructors({delivery.value: delivery for delivery in Delivery})
_SYNCS = constructors({sync.value: sync for sync in Sync})
_TRANSIENT = constructors({"Transient": Transient()})
_PERSISTENT = constructors({"Persistent": Persistent})
_WHOLE_REPLAYS: dict[bytes, Replay] = constructors(
    {"From_beginning": FromBeginning(), "From_current": FromCurrent()}
)
_FROM_MESSAGE = constructors({"From_message": FromMessage})


def delivery_of_sexp(sexp: Sexp) -> Delivery:
    if isinstance(sexp, bytes) and sexp in _DELIVERIES:
        return _DELIVERIES[sexp]
    raise ConversionError("must be Broadcast or Round_robin")


def sexp_of_delivery(delivery: Delivery) -> Sexp:
    return delivery.value.encode()


def persistence_of_sexp(sexp: Sexp) -> Persistence:
    match sexp:
        case bytes() if sexp in _TRANSIENT:
            return _TRANSIENT[sexp]
        case [bytes() as name, bytes() as sync] if name in _PERSISTENT and sync in _SYNCS:
            return Persistent(_SYNCS[sync])
        case _:
            raise ConversionError(
                "must be Transient or (Persistent sync), the sync being Strong, Weak or Async"
            )


def sexp_of_persistence(persistence: Persistence) -> Sexp:
    match persistence:
        case Transient():
            return b"Transient"
        case Persistent(sync):
            return [b"Persistent", sync.value.encode()]
        case _:
            assert_never(persistence)


def replay_of_sexp(sexp: Sexp) -> Replay:
    match sexp:
        case bytes() if sexp in _WHOLE_REPLAYS:
            return _WHOLE_REPLAYS[sexp]
        case [bytes() as name, message] if name in _FROM_MESSAGE:
            try:
                return FromMessage(int64_of_sexp(message))
            except ConversionError as error:
                raise ConversionError(f"must be From_message with an id that {error}") from error
        case _:
            raise ConversionError("must be From_beginning, (From_message id) or From_current")


def sexp_of_replay(replay: Replay) -> Sexp:
    match replay:
        case FromBeginning():
            return b"From_beginning"
        case FromMessage(message):
            return [b"From_message", b"%d" % message]
        case FromCurrent():
            return b"From_current"
        case _:
            assert_never(replay)
