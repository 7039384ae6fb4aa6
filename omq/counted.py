"""Numbers in sentences, such as 1 message and 2 messages, and in arguments of commands."""

_MANY = 1000
"""More digits than any bound of a number has."""


def counted(number: int, noun: str, form: str = "") -> str:
    """Return the number, formatted as in an f-string, and the noun, with an s unless the number is 1."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"


def natural(text: str) -> int | None:
    """Return the number that a text of decimal digits stands for; None for any other text.

    A number with a thousand digits or more becomes one with a thousand and one: it is above every bound, and
    `int` refuses some of them with a ValueError that says nothing about the argument.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) < _MANY else 10**_MANY
