"""Making a damaged store whole again, from everything in it that is still as it was written.

Only what is damaged is made anew, beside the old, and put in its place when it is complete. The old stays,
under another name. Ids are skipped wherever it is unknown which of them somebody has seen.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from omq_storage.catalogue import MESSAGES_LEAPT, TOPICS_LEAPT, Catalogue, TopicRecord
from omq_storage.environment import Environment
from omq_storage.files import DIRECTORY_MODE, sync_directory
from omq_storage.inspection import Inspection, LevelInspection, Words, inspect, shown
from omq_storage.levels import Level
from omq_storage.places import finish_moves, put_in_place
from omq_storage.store import CATALOGUE, CATALOGUE_MAP_SIZE, State, write_format

_GROUP = 8 << 20
_FRESH = ".new"


def repair(
    path: Path, words: Words, boot_id: str, said: Callable[[str], None], *, map_size: int = 1 << 40
) -> list[str]:
    """Repairs a store that this process has locked, see ``store.lock_store``.

    Sentences about what was wrong, what was done, and what could not be saved; none when nothing was wrong.
    ``said`` is called with what is done, as it goes on.

    Raises NewerFormat, StoreError and OSError; then the damaged files are where they were, and it can be
    called again.
    """
    _finish_swaps(path)
    told = finish_moves(path)
    found = inspect(path, boot_id, said)
    if found.lineage is not None:
        wrong = found.problems
        moved = put_in_place(path, found.lineage.store)
        if moved:
            told += [*wrong, *moved]
            found = inspect(path, boot_id, said)
    if not found.problems:
        return told
    told += found.problems
    broken = [level for level in found.levels.values() if level.damaged]
    if found.catalogue_damaged:
        said(f"{CATALOGUE}: making it anew")
        told += _renew_catalogue(found, words)
    else:
        _skip_ids(found, words, broken)
    for level in broken:
        said(f"{level.level.value}: making it anew")
        told += _renew_level(found, words, level, map_size, boot_id)
    if found.format and found.becomes.state is State.BACKUP:
        told.append(f"Its next start skips {MESSAGES_LEAPT} message ids of each topic: it may be a copy.")
    write_format(path, found.becomes.state, found.becomes.number)
    return told


def _finish_swaps(path: Path) -> None:
    """Completes, or takes back, what a repair that was cut short has begun."""
    for name in (CATALOGUE, *(level.value for level in Level)):
        fresh = path / (name + _FRESH)
        if fresh.exists() and not (path / name).exists():
            fresh.rename(path / name)
            sync_directory(path)
        elif fresh.exists():
            shutil.rmtree(fresh)


def _swap(path: Path, name: str) -> str:
    """Puts what was made anew in the place of the old; what that is called now, as a sentence."""
    number = 1
    while (aside := path / f"{name}.damaged-{number}").exists():
        number += 1
    sync_directory(path / (name + _FRESH))
    if (path / name).exists():
        (path / name).rename(aside)
    (path / (name + _FRESH)).rename(path / name)
    sync_directory(path)
    return f"What {name} was is kept as {aside}." if aside.exists() else f"There was no {name}."


def _skip_ids(found: Inspection, words: Words, broken: list[LevelInspection]) -> None:
    """Lets the topics of levels that are made anew go on behind all ids that somebody may have seen."""
    levels = {level.level for level in broken}
    resume = {
        record.id: max(record.reserved, record.resume)
        for record in found.catalogue.topics.values()
        if words.level_of(record) in levels
    }
    if resume:
        catalogue = Catalogue(found.path / CATALOGUE, map_size=CATALOGUE_MAP_SIZE)
        try:
            catalogue.resume(resume)
        finally:
            catalogue.close()


def _renew_catalogue(found: Inspection, words: Words) -> list[str]:
    told = []
    records: dict[int, TopicRecord] = {}
    names: set[bytes] = set()
    for topic, record in sorted(found.catalogue.topics.items()):
        if record.name not in names:
            records[topic] = record
            names.add(record.name)
    for level in found.levels.values():
        for topic in sorted(level.found.known - records.keys()):
            if topic < (found.catalogue.next_topic or 0) and not _is_incomplete(found):
                continue  # it was deleted, and the next start deletes the rest of it
            older = found.catalogue.older_topics.get(topic)
            if older is not None and older.name not in names:
                records[topic] = older
                names.add(older.name)
                continue
            record = words.unnamed(topic, level.level, topic in level.found.positions)
            told.append(
                f"The name of topic {topic} could not be saved; now it is called {shown(record.name)}."
            )
            records[topic] = record
    # Which ids were handed out is as uncertain as the rest of it.
    extents = [level.found.extents for level in found.levels.values()]
    for topic, record in records.items():
        seen = [known[topic].next for known in extents if topic in known]
        bound = max(1, record.reserved, record.resume, *seen) + MESSAGES_LEAPT
        records[topic] = replace(record, reserved=bound, resume=bound)
    next_id = max(found.catalogue.next_topic or 0, *(topic + 1 for topic in records), 0) + TOPICS_LEAPT
    fresh = found.path / (CATALOGUE + _FRESH)
    fresh.mkdir(DIRECTORY_MODE)
    # What may have been lost does not matter any more: every topic goes on far behind it.
    lineage = None if found.lineage is None else replace(found.lineage, lost=())
    Catalogue.make(fresh, records.values(), next_id, lineage, map_size=CATALOGUE_MAP_SIZE)
    told.append(_swap(found.path, CATALOGUE))
    return told


def _is_incomplete(found: Inspection) -> bool:
    return bool(found.catalogue.problems or found.catalogue.damaged)


def _renew_level(
    found: Inspection, words: Words, level: LevelInspection, map_size: int, boot_id: str
) -> list[str]:
    """Makes the environment of a level anew from what can be read of it."""
    name = level.level.value
    fresh = found.path / (name + _FRESH)
    fresh.mkdir(DIRECTORY_MODE)
    old = level.found
    environment = Environment(fresh, level.level, map_size=map_size, boot_id=boot_id)
    try:
        if found.lineage is not None:
            environment.identify(found.lineage.identity(level.level))
        for topic in sorted(old.known):
            _copy(found.path / name, level, topic, environment)
        environment.set_positions(old.positions)
    except BaseException:  # Ctrl-C, too
        environment.close(clean=False)
        raise
    environment.close()
    told = [_swap(found.path, name)]
    if not old.problems and not level.foreign:
        return told
    for record in found.catalogue.topics.values():
        if words.level_of(record) is not level.level:
            continue
        if record.id not in old.known and record.reserved > 1:
            told.append(f"{name}: nothing of {shown(record.name)} could be saved.")
        elif words.has_position(record) and record.id in old.blocks and record.id not in old.positions:
            told.append(
                f"{name}: how far {shown(record.name)} was dealt could not be saved; "
                "all that is stored of it is dealt again."
            )
    return told


def _copy(path: Path, level: LevelInspection, topic: int, environment: Environment) -> None:
    group = []
    octets = 0
    for block in level.found.read(path, topic):
        group.append(block)
        octets += block.size
        if octets >= _GROUP:
            environment.append(group)
            group = []
            octets = 0
    environment.append(group)
    known = level.found.sequences.get(topic, {})
    by_use = sorted(known, key=lambda producer: known[producer])
    environment.set_sequences(topic, {producer: known[producer][1] for producer in by_use})
