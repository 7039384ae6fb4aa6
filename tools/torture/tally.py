"""What came of one kind of torture."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from history import Stored


@dataclass(slots=True)
class Outcome:
    """The promises that were broken, a sentence each, and how many messages were looked at."""

    broken: list[str] = field(default_factory=list)
    messages: int = 0

    def blame(self, where: str, found: Iterable[str]) -> None:
        """Note what was broken, and where."""
        self.broken += [f"{where}: {text}" for text in found]

    def count(self, topics: Mapping[str, Stored]) -> None:
        """Every message of these topics was looked at."""
        self.messages += sum(len(topic.messages) for topic in topics.values())
