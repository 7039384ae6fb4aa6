"""The cells of a terminal that a text takes: a letter of Chinese takes two, an accent of its own none."""

import unicodedata


def width(text: str) -> int:
    """Return the number of cells that the text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def cut(text: str, most: int) -> str:
    """Return the longest beginning of the text that fits into N (`most`) cells."""
    if text.isascii():
        return text[:most]
    taken = 0
    for at, char in enumerate(text):
        taken += _cells(char)
        if taken > most:
            return text[:at]
    return text


def shortened(text: str, most: int) -> str:
    """Return the text if it fits into this number of cells; else its beginning and its end, which tells names
    with a common beginning apart.
    """
    if width(text) <= most:
        return text
    end = cut(text[::-1], most // 2)[::-1]
    return f"{cut(text, most - 1 - width(end))}…{end}"


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
