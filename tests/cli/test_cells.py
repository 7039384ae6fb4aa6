"""The cells of a terminal that names take."""

import pytest

from omq.cli.cells import cut, shortened, width
from omq.cli.output import columns

JAPANESE = "気温.東京"
ACCENT = "e\u0301te\u0301"  # each é of two characters


def test_wide_letters_take_two_cells_and_accents_none() -> None:
    assert [width(text) for text in ("", "prices", "Füße", JAPANESE, ACCENT)] == [0, 6, 4, 9, 3]


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("prices", 3, "pri"),
        ("prices", 9, "prices"),
        (JAPANESE, 3, "気"),
        (JAPANESE, 4, "気温"),
        (ACCENT, 2, "e\u0301t"),
    ],
)
def test_a_cut_text_fits(text: str, most: int, expected: str) -> None:
    assert cut(text, most) == expected


def test_a_shortened_name_has_its_beginning_and_its_end() -> None:
    assert shortened("sensors.room1", 13) == "sensors.room1"
    assert shortened("sensors.room1", 9) == "sens…oom1"
    assert shortened("sensors.room1", 10) == "sens…room1"
    assert shortened(JAPANESE, 6) == "気…京"
    assert shortened(JAPANESE, 1) == "…"


def test_columns_of_wide_letters_are_aligned() -> None:
    assert columns([("NAME", "N"), (JAPANESE, "10"), ("prices", "7")], {1}) == (
        f"NAME        N\n{JAPANESE}  10\nprices      7\n"
    )
