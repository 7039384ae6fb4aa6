"""Makes text from other programs safe for a terminal: names of topics, sentences of servers."""


def printable(line: str) -> str:
    """Return a line in which control characters and terminal escapes are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def printable_lines(text: str) -> str:
    """Do the same for several lines."""
    return "\n".join(map(printable, text.split("\n")))
