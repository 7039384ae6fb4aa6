"""Numbers of things in sentences: 1 message, 2 messages."""


def counted(number: int, noun: str, form: str = "") -> str:
    """Return the number, formatted as in an f-string, and the noun, with an s unless the number is 1."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"
