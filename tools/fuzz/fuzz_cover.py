"""The inputs worth keeping: the shortest that together take every step that all of them take."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from fuzz_checks import Target
from fuzz_corpus import ROOT

Step = tuple[str, int, int]
"""A file of ours, a line, and the line after it in the same call."""

_OURS = (f"{ROOT}/omq/", f"{ROOT}/storage/")


def steps(target: Target, data: bytes) -> set[Step]:
    """Return the steps that the check of an input takes through our code."""
    found: set[Step] = set()

    def enter(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        del event, argument
        file = frame.f_code.co_filename
        if not file.startswith(_OURS):
            return None
        last = 0

        def step(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            del event, argument
            nonlocal last
            found.add((file, last, frame.f_lineno))
            last = frame.f_lineno
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        target.check(data)
    finally:
        sys.settrace(before)
    return found


def covering(target: Target, inputs: list[bytes]) -> list[bytes]:
    """Return of these inputs, the shortest first, each that takes a step that none before it took."""
    taken: set[Step] = set()
    kept = []
    for data in inputs:
        new = steps(target, data) - taken
        if new:
            kept.append(data)
            taken |= new
    return kept
