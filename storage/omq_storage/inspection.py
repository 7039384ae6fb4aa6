"""Verifying a whole store: whether everything that was stored is there, with the right checksum.

If a power failure left a level between two checkpoints, the inspection first restores the last one, and makes
the commits again that the journal of Strong has, as the next start would do.  It changes nothing else.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from omq_storage.catalogue import TABLES as CATALOGUE_TABLES
from omq_storage.checkpoint import CHECKPOINT, is_readable
from omq_storage.environment import TABLES as LEVEL_TABLES
from omq_storage.environment import replay
from omq_storage.errors import DamagedFile
from omq_storage.identity import Expected, LevelIdentity, Lineage, read_identity
from omq_storage.integrity import ADVICE, DATA, problems
from omq_storage.levels import Level
from omq_storage.salvage import Salvage, salvage
from omq_storage.store import (
    CATALOGUE,
    FORMAT,
    FORMAT_FILE,
    FORMAT_WITH_JOURNAL,
    MAP_SIZE,
    Format,
    StoreState,
    read_format,
    recover_level,
)
from omq_storage.topics import TopicRecord

_NO_LINEAGE = "it has lost which store it belongs to"

MAX_REPORTED = 20
"""The greatest number of faults of one file that the report lists; it only counts the rest."""


class RecordInterpreter(Protocol):
    """Interprets the texts that the user of this package stores in ``delivery`` and ``persistence`` of a
    topic.
    """

    def level_of(self, record: TopicRecord) -> Level | None:
        """Return the level at which a topic is stored; None if it is not stored."""

    def has_position(self, record: TopicRecord) -> bool:
        """Return whether the topic has a position as soon as it has stored messages."""

    def has_exchange(self, name: bytes) -> bool:
        """Return whether there is an exchange with this name without a record."""

    def unnamed(self, topic: int, level: Level, positioned: bool) -> TopicRecord:
        """Return a record for a topic whose own record was lost."""


@dataclass(frozen=True, slots=True)
class LevelInspection:
    """The result of inspecting one level."""

    level: Level
    found: Salvage
    missing: dict[int, list[tuple[int, int]]]
    """The ranges of message ids (first, last) of each topic that cannot be read."""
    rolled_back: bool
    """Whether a power failure may have lost messages that a client has seen."""
    foreign: bool
    """Whether its data file belongs to another level or store; then nothing was read from it."""
    damaged: list[str]
    """A sentence for each fault."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of inspecting a store."""

    path: Path
    format: list[str]
    """The fault of the format file as a sentence, or nothing."""
    catalogue: Salvage
    catalogue_damaged: list[str]
    """A sentence for each fault."""
    levels: dict[Level, LevelInspection]
    becomes: Format
    """The content of the format file after a repair."""
    lineage: Lineage | None
    """The lineage that the identities of the levels must fit; None for format 1."""

    @property
    def problems(self) -> list[str]:
        """All faults, a sentence for each."""
        found = [*self.format, *self.catalogue_damaged]
        for level in self.levels.values():
            found += level.damaged
        return found


def inspect(path: Path, boot_id: str, progress: Callable[[str], None]) -> Inspection:
    """Inspect a store that this process has locked, see ``store.lock_store``.

    ``boot_id``: names this start of the machine.  ``progress`` is called with the name of each part before it
    is read.  Raises NewerFormat, and OSError for files that cannot be read at all.
    """
    wrong_format = []
    form: Format | None = None
    try:
        form = read_format(path)
        if form is None:
            wrong_format = [f"The file {path / FORMAT_FILE} is missing."]
    except DamagedFile:
        wrong_format = [f"The file {path / FORMAT_FILE} is damaged."]
    progress(CATALOGUE)
    catalogue = salvage(path / CATALOGUE, CATALOGUE_TABLES, older_topics=True)
    damaged = _file_problems(path / CATALOGUE / DATA, catalogue)
    if not damaged and catalogue.next_topic is None and catalogue.topics:
        damaged = [f"The file {path / CATALOGUE / DATA} has lost which topic id is next."]
    identities = [known for level in Level if (known := read_identity(path / level.value)) is not None]
    if form is None:
        # Without the file it is unknown whether the store is a copy that was never opened. Such a copy must
        # skip ids, so treat it as one.
        newest = FORMAT if (path / Level.STRONG.value / CHECKPOINT).exists() else FORMAT_WITH_JOURNAL - 1
        form = Format(newest if identities or catalogue.lineage else 1, StoreState.BACKUP)
    lineage: Lineage | None = None
    if form.number > 1 and form.state is not StoreState.BEGUN:
        lineage, objection = _expected_lineage(catalogue.lineage, identities)
        if objection is not None:
            damaged = damaged or [f"The file {path / CATALOGUE / DATA} is not the right one: {objection}."]
            if catalogue.lineage is not None and catalogue.lineage.store != lineage.store:
                catalogue = Salvage(problems=[objection])  # its names belong to other topics
    if not damaged:
        damaged = _strays(path / CATALOGUE / DATA, catalogue)
    levels = {}
    traces: set[int] = set()
    for level in Level:
        progress(level.value)
        has_checkpoints = level is not Level.STRONG or form.number >= FORMAT_WITH_JOURNAL
        levels[level] = _inspect_level(
            path / level.value, level, catalogue, boot_id, lineage, has_checkpoints
        )
        traces |= levels[level].found.known
    unknown = sorted(topic for topic in traces if topic >= (catalogue.next_topic or 0))
    if unknown and not damaged:
        numbers = ", ".join(map(str, unknown[:MAX_REPORTED]))
        damaged = [f"The catalogue of {path} never knew topics that have messages: {numbers}."]
    return Inspection(path, wrong_format, catalogue, damaged, levels, form, lineage)


def _expected_lineage(
    known: Lineage | None, identities: Collection[LevelIdentity]
) -> tuple[Lineage, str | None]:
    """Return the lineage that the levels must fit, and a clause on why the catalogue is wrong, or None.

    If the catalogue and the levels disagree, the majority of the levels decides.
    """
    if not identities:
        return known or Lineage.new(), None if known else _NO_LINEAGE
    ((store, count),) = Counter(identity.store for identity in identities).most_common(1)
    newest = max(identity.generation for identity in identities if identity.store == store)
    # The start of the newest generation may have been interrupted, so accept the one before, too.
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
    path: Path,
    level: Level,
    catalogue: Salvage,
    boot_id: str,
    lineage: Lineage | None,
    has_checkpoints: bool,
) -> LevelInspection:
    rolled_back = False
    misplaced: list[str] = []
    expected = None if lineage is None else Expected(level, lineage)
    if path.is_dir():
        try:
            rolled_back = recover_level(path.parent, level, boot_id, expected, has_checkpoints).rolled_back
            if level is Level.STRONG and has_checkpoints and not problems(path):
                replay(path, boot_id, MAP_SIZE)
        except DamagedFile as error:
            misplaced = [str(error).removesuffix(f"; {ADVICE}.") + "."]
        except FileNotFoundError:
            pass  # what cannot be found is reported below
    found = salvage(path, LEVEL_TABLES)
    damaged = _file_problems(path / DATA, found)
    foreign = expected is not None and found.identity is not None and expected.is_foreign(found.identity)
    if foreign:
        found = Salvage(identity=found.identity)
    if expected is not None and (found.identity is not None or not damaged):
        objection = expected.objection(found.identity)
        if objection is not None:
            misplaced.append(f"The file {path / DATA} is not the right one: {objection}.")
    damaged += dict.fromkeys(misplaced)
    if has_checkpoints and not is_readable(path):
        damaged.append(f"The file {path / CHECKPOINT} is missing or damaged.")
    missing = {}
    for topic in sorted(found.known):
        name = catalogue.topics[topic].name if topic in catalogue.topics else None
        called = f"topic {topic}" if name is None else quoted(name)
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
            damaged.append(f"{path.name}: blocks of {called} that are not in the index: {len(unlisted)}.")
    return LevelInspection(level, found, missing, rolled_back, foreign, damaged)


def _strays(file: Path, catalogue: Salvage) -> list[str]:
    """Return a sentence for bindings and options of topics that are not in the catalogue."""
    bound = {record.destination for record in catalogue.bindings.values()}
    strays = {topic for topic in bound | catalogue.queues.keys() if isinstance(topic, int)}
    strays -= catalogue.topics.keys()
    if not strays:
        return []
    numbers = ", ".join(map(str, sorted(strays)[:MAX_REPORTED]))
    return [f"The file {file} has bindings or options of topics that it does not have: {numbers}."]


def quoted(name: bytes) -> str:
    """Return the name of a topic in quotation marks, for a sentence."""
    return repr(name)[1:]


def _file_problems(file: Path, found: Salvage) -> list[str]:
    told = [f"The file {file} is damaged: {problem}." for problem in found.problems[:MAX_REPORTED]]
    if len(found.problems) > MAX_REPORTED:
        told.append(f"Further faults of the file {file}: {len(found.problems) - MAX_REPORTED}.")
    if found.damaged:
        told.append(
            f"The file {file} has {found.damaged} damaged {'entry' if found.damaged == 1 else 'entries'}."
        )
    return told
