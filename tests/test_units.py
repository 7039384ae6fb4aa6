"""The numbers for sizes and times with units."""

import pytest

from omq.units import octets_meant, seconds_meant


@pytest.mark.parametrize(
    ("text", "octets"),
    [
        ("10GiB", 10 << 30),
        ("1.5 MiB", 3 << 19),
        ("64kB", 64_000),
        ("2T", 2 << 40),
        ("1K", 1024),
        ("7B", 7),
        ("10", None),
        ("GiB", None),
        ("-1GiB", None),
        ("10 GiBs", None),
        ("10PB", None),
        ("1234567890TiB", None),
    ],
)
def test_sizes(text: str, octets: int | None) -> None:
    assert octets_meant(text) == octets


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 2_592_000),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("2 min", 120),
        ("1w", 604_800),
        ("1M", None),
        ("5", None),
    ],
)
def test_times(text: str, seconds: float | None) -> None:
    assert seconds_meant(text) == seconds
