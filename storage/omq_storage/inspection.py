"""Looking through a whole store: is everything that was kept in it there, and as it was written?

A level that a power failure left between two checkpoints is first put back to the last one, as the next start
would do it. Nothing else is changed.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from omq_storage.catalogue import TABLES as CATALOGUE_TABLES
from omq_storage.catalogue import TopicRecord
from omq_storage.checkpoint import CHECKPOINT, is_readable, recover
from omq_storage.environment import TABLES as LEVEL_TABLES
from omq_storage.errors import DamagedFile
from omq_storage.identity import Expected, Identity, Lineage, read_identity
from omq_storage.levels import Level
from omq_storage.salvage import Salvage, salvage
from omq_storage.soundness import ADVICE, DATA
from omq_storage.store import CATALOGUE, FORMAT, FORMAT_FILE, Format, State, read_format

_NO_LINEAGE = "it has lost which store it belongs to"

MOST_TOLD = 20
"""How many problems of one file are told one by one."""


class Words(Protocol):
    """What a store's user alone knows: the words that stand in the catalogue."""

    def level_of(self, record: TopicRecord) -> Level | None:
        """The level that a topic is kept at, None when it is not kept."""

    def has_position(self, record: TopicRecord) -> bool:
        """Whether a topic has a position when anything of it is kept."""

    def unnamed(self, topic: int, level: Level, positioned: bool) -> TopicRecord:
        """The record of a topic whose own was lost."""


@dataclass(frozen=True, slots=True)
class LevelInspection:
    """What was found of one level."""

    level: Level
    found: Salvage
    missing: dict[int, list[tuple[int, int]]]
    """For each topic the runs of message ids that cannot be read."""
    rolled_back: bool
    """Whether messages that somebody may have seen were lost in a power failure, or may have been."""
    foreign: bool
    """Whether its data file is of another level or store, and nothing was read from it."""
    damaged: list[str]
    """Sentences; none when it is as it was written."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found of a store."""

    path: Path
    format: list[str]
    """What is wrong with the format file: a sentence, or nothing."""
    catalogue: Salvage
    catalogue_damaged: list[str]
    """Sentences; none when it is as it was written."""
    levels: dict[Level, LevelInspection]
    becomes: Format
    """What the format file has to say when everything is whole."""
    lineage: Lineage | None
    """What the levels were compared with; None for format 1."""

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong, a sentence each."""
        found = [*self.format, *self.catalogue_damaged]
        for level in self.levels.values():
            found += level.damaged
        return found


def inspect(path: Path, boot_id: str, said: Callable[[str], None]) -> Inspection:
    """Looks through a store that this process has locked, see ``store.lock_store``.

    ``boot_id``: names this start of the machine. ``said`` is called with what is looked at, as it goes on.

    Raises NewerFormat, and OSError for files that cannot be read at all.
    """
    wrong_format = []
    form: Format | None = None
    try:
        form = read_format(path)
        if form is None:
            wrong_format = [f"The file {path / FORMAT_FILE} is missing."]
    except DamagedFile:
        wrong_format = [f"The file {path / FORMAT_FILE} is damaged."]
    said(CATALOGUE)
    catalogue = salvage(path / CATALOGUE, CATALOGUE_TABLES, older_topics=True)
    damaged = _of_file(path / CATALOGUE / DATA, catalogue)
    if not damaged and catalogue.next_topic is None and catalogue.topics:
        damaged = [f"The file {path / CATALOGUE / DATA} has lost which topic id is next."]
    identities = [known for level in Level if (known := read_identity(path / level.value)) is not None]
    if form is None:
        # It may have been a copy that was never opened; then it has to skip ids.
        form = Format(FORMAT if identities or catalogue.lineage else 1, State.BACKUP)
    lineage: Lineage | None = None
    if form.number == FORMAT and form.state is not State.BEGUN:
        lineage, objection = _compared_with(catalogue.lineage, identities)
        if objection is not None:
            damaged = damaged or [f"The file {path / CATALOGUE / DATA} is not the right one: {objection}."]
            if catalogue.lineage is not None and catalogue.lineage.store != lineage.store:
                catalogue = Salvage(problems=[objection])  # its names are those of other topics
    levels = {}
    traces: set[int] = set()
    for level in Level:
        said(level.value)
        levels[level] = _inspect_level(path / level.value, level, catalogue, boot_id, lineage)
        traces |= levels[level].found.known
    unknown = sorted(topic for topic in traces if topic >= (catalogue.next_topic or 0))
    if unknown and not damaged:
        numbers = ", ".join(map(str, unknown[:MOST_TOLD]))
        damaged = [f"The catalogue of {path} never knew topics that have messages: {numbers}."]
    return Inspection(path, wrong_format, catalogue, damaged, levels, form, lineage)


def _compared_with(known: Lineage | None, identities: Collection[Identity]) -> tuple[Lineage, str | None]:
    """What the levels are to be compared with, and why the catalogue is not the right one, a clause."""
    if not identities:
        return known or Lineage.new(), None if known else _NO_LINEAGE
    ((store, count),) = Counter(identity.store for identity in identities).most_common(1)
    newest = max(identity.generation for identity in identities if identity.store == store)
    # The start of that generation may have been interrupted.
    told = Lineage(store, since=max(1, newest - 1), generation=newest)
    if known is None:
        return told, _NO_LINEAGE
    if known.store == store and known.generation < newest:
        return told, (
            f"it is older than the rest of the store: it is of start {known.generation}, "
            f"and a level is of start {newest}"
        )
    if known.store != store and count > 1:
        return told, "it belongs to another store"
    return known, None


def _inspect_level(
    path: Path, level: Level, catalogue: Salvage, boot_id: str, lineage: Lineage | None
) -> LevelInspection:
    rolled_back = False
    misplaced: list[str] = []
    expected = None if lineage is None else Expected(level, lineage)
    if level is not Level.STRONG and path.is_dir():
        try:
            rolled_back = recover(path, boot_id, expected).rolled_back
        except DamagedFile as error:
            misplaced = [str(error).removesuffix(f"; {ADVICE}.") + "."]
    found = salvage(path, LEVEL_TABLES)
    damaged = _of_file(path / DATA, found)
    foreign = expected is not None and found.identity is not None and expected.is_foreign(found.identity)
    if foreign:
        found = Salvage(identity=found.identity)
    if expected is not None and (found.identity is not None or not damaged):
        objection = expected.objection(found.identity)
        if objection is not None:
            misplaced.append(f"The file {path / DATA} is not the right one: {objection}.")
    damaged += dict.fromkeys(misplaced)
    if level is not Level.STRONG and not is_readable(path):
        damaged.append(f"The file {path / CHECKPOINT} is missing or damaged.")
    missing = {}
    for topic in sorted(found.known):
        name = catalogue.topics[topic].name if topic in catalogue.topics else None
        called = f"topic {topic}" if name is None else shown(name)
        lost = found.missing(topic)
        if lost:
            missing[topic] = lost
        damaged += [
            f"{path.name}: messages {first} to {last} of {called} cannot be read." for first, last in lost
        ]
        if found.blocks.get(topic) and topic not in found.extents:
            damaged.append(f"{path.name}: what is stored of {called} is not known.")
        unlisted = found.blocks.get(topic, {}).keys() - found.index.get(topic, {}).keys()
        if unlisted and not found.problems:
            damaged.append(f"{path.name}: {len(unlisted)} blocks of {called} are not in the index.")
    return LevelInspection(level, found, missing, rolled_back, foreign, damaged)


def shown(name: bytes) -> str:
    """The name of a topic within a sentence."""
    return repr(name)[1:]


def _of_file(file: Path, found: Salvage) -> list[str]:
    told = [f"The file {file} is damaged: {problem}." for problem in found.problems[:MOST_TOLD]]
    if len(found.problems) > MOST_TOLD:
        told.append(f"The file {file} has {len(found.problems) - MOST_TOLD} more faults.")
    if found.damaged:
        told.append(f"The file {file} has {found.damaged} damaged entries.")
    return told
