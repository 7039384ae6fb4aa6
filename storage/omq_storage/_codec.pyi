"""The types of the compiled codec; what the functions do stands in _codec.pyx."""

from collections.abc import Callable, Container, Sequence
from typing import Any, Literal, final

from omq_storage.numbers import Octets

@final
class Frames:
    count: int
    octets: int
    def stamped(self, topic: int, first: int) -> tuple[bytes, bytes] | None: ...
    def part(self, begin: int, end: int) -> Frames: ...
    def bodies(self) -> list[bytes]: ...

@final
class FrameInParts:
    def __init__(self, size: int) -> None: ...
    def add(self, octets: bytes) -> None: ...
    def frames(self) -> Frames: ...

@final
class Spans:
    count: int
    longest: int
    def __init__(self, data: bytes) -> None: ...
    def add_envelope(self, head: int, body: int, end: int, options: int) -> None: ...
    def take_envelopes(
        self, position: int, max_message: int, max_head: int, most: int, time: int = 8
    ) -> tuple[int, int]: ...
    def frames(self) -> Frames | None: ...
    def bodies(self) -> list[bytes]: ...
    def heads(self) -> list[bytes]: ...
    def options(self) -> list[int]: ...

@final
class Lane:
    outlets: tuple[Any, ...]
    def __init__(self, outlets: tuple[Any, ...]) -> None: ...

@final
class Route:
    topic: int
    next_id: int
    reserved: int
    messages_in: int
    octets_in: int
    messages_out: int
    octets_out: int
    is_open: bool
    owner: Any
    def __init__(self, topic: int, next_id: int, reserved: int) -> None: ...
    def open(self, lane: Lane | None) -> None: ...
    def close(self) -> None: ...

@final
class Pass:
    lanes: list[Lane]
    frames: list[bytes]
    counts: list[int]
    messages: int
    is_full: bool
    filled: Lane | None
    def __init__(
        self, routes: dict[bytes, Route], allowed: Container[bytes] | None, largest: int
    ) -> None: ...
    def part(self, lane: int) -> Part: ...

@final
class Part:
    octets: bytes
    messages: int
    @property
    def held(self) -> int: ...
    def unsent(self, sent: int) -> tuple[bytes, list[tuple[Route, int, int, int]]]: ...

@final
class SexpScan:
    marks: list[int]
    fault: int
    is_empty: bool
    def __init__(self, text: bytes, max_depth: int, max_tokens: int) -> None: ...
    def step(self, octets: int) -> bool: ...

def unescaped(text: bytes, begin: int, stop: int, end: int) -> tuple[bytes, int]: ...
def deal_lines(
    data: bytes, position: int, most: int, routed: Pass | None = None
) -> tuple[list[tuple[bytes, Spans]], int]: ...
def properties_end(data: bytes, position: int) -> int: ...
def joined(parts: list[Frames]) -> Frames | None: ...
def prepare(bodies: Sequence[bytes]) -> Frames | None: ...
def frames_of(topic: int, first: int, bodies: Sequence[bytes]) -> tuple[bytes, bytes] | None: ...
def gathered(frames: Octets, offsets: Octets, begin: int, end: int, step: int) -> bytes | None: ...
def copy_bodies(
    frames: Octets, offsets: Octets, begin: int, end: int, bodies: object, bounds: object
) -> Literal[True] | None: ...
def count_up(first: int, numbers: object) -> None: ...
def slices(frames: Octets, offsets: Octets, index: int) -> list[memoryview] | None: ...
def rises(offsets: Octets, count: int, size: int, least: int) -> bool | None: ...
def property_flags(offsets: Octets, octets: Octets) -> int | None: ...
def origins(heads: Sequence[bytes]) -> list[tuple[bytes, int] | None] | None: ...
def envelopes_of(
    frames: Octets, offsets: Octets, begin: int, end: int, step: int, smallest: int, head: bytes
) -> bytes | None: ...
def envelopes(bodies: Sequence[Octets], heads: Sequence[bytes], smallest: int) -> bytes | None: ...
def take_messages(
    data: bytes,
    position: int,
    largest: int,
    found: list[Any],
    run: Callable[[int, list[int], list[bytes]], object],
) -> int: ...
def take_publishes(
    data: bytes, position: int, channel: int, max_body: int, max_frame: int, max_head: int, most: int
) -> tuple[int, Spans, list[bytes], int, bytes, bytes, bool] | None: ...
def take_acks(data: bytes, position: int, channel: int, most: int) -> tuple[list[tuple[int, int]], int]: ...
def deliveries(
    frames: Octets,
    offsets: Octets,
    head_offsets: Octets | None,
    head_octets: Octets | None,
    begin: int,
    end: int,
    step: int,
    channel: int,
    tag: int,
    frame_max: int,
    message: int,
    template: Callable[[bytes], tuple[bytes, int, int, int] | None],
) -> tuple[bytes, int] | None: ...
def take_transfers(
    data: bytes, position: int, max_frame: int, most: int
) -> tuple[int, int, int, int, bool, int, Spans, list[bytes] | None] | None: ...
def take_disposition(
    octets: bytes, position: int, stop: int
) -> tuple[bool, int, int | None, bool, bytes, bool, int] | None: ...
def transfers(
    frames: Octets,
    offsets: Octets,
    head_offsets: Octets | None,
    head_octets: Octets | None,
    begin: int,
    end: int,
    step: int,
    channel: int,
    handle: bytes,
    delivery: int,
    message: int,
    settled: bool,
    room: int,
    around: Callable[[bytes], tuple[int, bytes, bytes] | None],
) -> tuple[bytes, int] | None: ...
