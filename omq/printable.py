"""Text for a person, of which some may come from strangers: names of topics, sentences of servers."""


def printable(line: str) -> str:
    """A line with nothing in it that a terminal acts upon."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def printable_lines(text: str) -> str:
    """The same for several lines."""
    return "\n".join(map(printable, text.split("\n")))
