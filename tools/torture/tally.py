"""The results of one kind of failure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from history import Stored


@dataclass(slots=True)
class Outcome:
    """A sentence for each broken promise and for each scenario that was left out, and the number of checked
    messages.
    """

    broken: list[str] = field(default_factory=list)
    messages: int = 0
    left_out: list[str] = field(default_factory=list)

    def blame(self, where: str, found: Iterable[str]) -> None:
        """Record broken promises and where they were found."""
        self.broken += [f"{where}: {text}" for text in found]

    def count(self, topics: Mapping[str, Stored]) -> None:
        """Count the messages of these topics as checked."""
        self.messages += sum(len(topic.messages) for topic in topics.values())


def leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    """Return the exceptions without the groups that Trio adds."""
    found: list[Exception] = []
    for problem in group.exceptions:
        found += leaves(problem) if isinstance(problem, BaseExceptionGroup) else [problem]
    return found
