"""Checks the arguments of callers: an error names the argument, and nothing of the command is sent."""

from typing import get_args

from omq.model import Delivery, Persistence, Replay


def check_replay(replay: Replay) -> None:
    """Raise TypeError unless the value is a start of a subscription or feed."""
    if not isinstance(replay, Replay):
        raise TypeError(f"replay must be {_kinds(Replay)}, not {replay!r}")


def check_types(delivery: Delivery, persistence: Persistence) -> None:
    """Raise TypeError unless the values are types of a topic."""
    if not isinstance(delivery, Delivery):
        raise TypeError(f"delivery must be a Delivery, not {delivery!r}")
    if not isinstance(persistence, Persistence):
        raise TypeError(f"persistence must be {_kinds(Persistence)}, not {persistence!r}")


def check_positive(name: str, number: int) -> None:
    """Raise ValueError for a number below 1, and TypeError for anything else than an integer."""
    if not isinstance(number, int):
        raise TypeError(f"{name} must be an integer, not {number!r}")
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")


def check_period(seconds: float) -> None:
    """Raise ValueError for a period that no server accepts, or that ends a Watch: it sends no rounds then."""
    if not 0.1 <= seconds <= 3600:
        raise ValueError(f"period must be 0.1 to 3600 seconds, not {seconds!r}")


def _kinds(union: object) -> str:
    """Return the classes of a union: "A, B or C"."""
    *others, last = (kind.__name__ for kind in get_args(union))
    return f"{', '.join(others)} or {last}"
