"""Repairing a damaged store from everything in it whose checksum is right.

Three rules:

- Rebuild only a damaged environment.  Build it in a directory of its own, ``NAME.new``, and rename it when it
  is complete and synced.  So an interruption leaves the damaged one in place, and the repair can run again.
- Delete nothing.  The damaged environment stays as ``NAME.damaged-N``: what this version cannot read, a
  later one might.
- Never assign a message id twice.  A client may have seen messages that are lost now, and would take a new
  message with the same id for an old one.  So the repair skips ids wherever it cannot know which were used.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from omq_storage.blocks import Block
from omq_storage.catalogue import MESSAGE_IDS_SKIPPED, TOPIC_IDS_SKIPPED, StoreCatalogue
from omq_storage.environment import Environment
from omq_storage.files import DIRECTORY_MODE, sync_directory
from omq_storage.fragments import Fragmented, Fragments
from omq_storage.inspection import Inspection, LevelInspection, RecordInterpreter, inspect, quoted
from omq_storage.levels import Level
from omq_storage.misplaced import finish_moves, move_misplaced
from omq_storage.salvage import Salvage
from omq_storage.store import CATALOGUE, CATALOGUE_MAP_SIZE, MAP_SIZE, StoreState, write_format
from omq_storage.topics import TopicRecord
from omq_storage.topology import ExchangeRecord, StoredTopology

_GROUP = 8 << 20
_GROUP_FRAGMENTS = 64
_FRESH = ".new"


def repair(
    path: Path,
    words: RecordInterpreter,
    boot_id: str,
    progress: Callable[[str], None],
    *,
    map_size: int = MAP_SIZE,
) -> list[str]:
    """Repair a store that this process has locked, see ``store.lock_store``.

    Returns sentences about what was wrong, what was done, and what could not be saved; none for an intact
    store.  ``words`` interprets the records of topics.  ``progress`` is called with a line for each step.

    Raises NewerFormat, StoreError and OSError; then the damaged files are where they were, and the call can
    be repeated.
    """
    _finish_swaps(path)
    report = finish_moves(path)
    found = inspect(path, boot_id, progress)
    if found.lineage is not None:
        wrong = found.problems
        moved = move_misplaced(path, found.lineage.store)
        if moved:
            report += [*wrong, *moved]
            found = inspect(path, boot_id, progress)
    if not found.problems:
        return report
    report += found.problems
    broken = [level for level in found.levels.values() if level.damaged]
    if found.catalogue_damaged:
        progress(f"{CATALOGUE}: rebuilding it")
        report += _renew_catalogue(found, words)
    else:
        _skip_ids(found, words, broken)
    for level in broken:
        progress(f"{level.level.value}: rebuilding it")
        report += _renew_level(found, words, level, map_size, boot_id)
    if found.format and found.becomes.state is StoreState.BACKUP:
        report.append(
            f"Its next start skips {MESSAGE_IDS_SKIPPED} message ids of each topic: it may be a copy."
        )
    write_format(path, found.becomes.state, found.becomes.number)
    return report


def _finish_swaps(path: Path) -> None:
    """Complete or undo the steps of an interrupted repair.

    ``_swap`` renames the old directory away before it renames the new one.  So a new directory without an old
    one is complete; beside an old one it may be anything, and is built again.
    """
    for name in (CATALOGUE, *(level.value for level in Level)):
        fresh = path / (name + _FRESH)
        if fresh.exists() and not (path / name).exists():
            fresh.rename(path / name)
            sync_directory(path)
        elif fresh.exists():
            shutil.rmtree(fresh)


def _swap(path: Path, name: str) -> str:
    """Replace an environment by the rebuilt one.  Return a sentence with the new name of the old one."""
    number = 1
    while (aside := path / f"{name}.damaged-{number}").exists():
        number += 1
    sync_directory(path / (name + _FRESH))
    if (path / name).exists():
        (path / name).rename(aside)
    (path / (name + _FRESH)).rename(path / name)
    sync_directory(path)
    return f"What {name} was is kept as {aside}." if aside.exists() else f"There was no {name}."


def _skip_ids(found: Inspection, words: RecordInterpreter, broken: list[LevelInspection]) -> None:
    """Make the topics of the rebuilt levels continue after all message ids that a client may have seen."""
    levels = {level.level for level in broken}
    resume = {
        record.id: max(record.reserved, record.resume)
        for record in found.catalogue.topics.values()
        if words.level_of(record) in levels
    }
    if resume:
        catalogue = StoreCatalogue(found.path / CATALOGUE, map_size=CATALOGUE_MAP_SIZE)
        try:
            catalogue.resume(resume)
        finally:
            catalogue.close()


def _renew_catalogue(found: Inspection, words: RecordInterpreter) -> list[str]:
    report = []
    records: dict[int, TopicRecord] = {}
    names: set[bytes] = set()
    for topic, record in sorted(found.catalogue.topics.items()):
        if record.name not in names:
            records[topic] = record
            names.add(record.name)
    for level in found.levels.values():
        for topic in sorted(level.found.known - records.keys()):
            if topic < (found.catalogue.next_topic or 0) and not _is_incomplete(found):
                continue  # the topic was deleted; the next start deletes its remaining blocks
            older = found.catalogue.older_topics.get(topic)
            if older is not None and older.name not in names:
                records[topic] = older
                names.add(older.name)
                continue
            record = words.unnamed(topic, level.level, topic in level.found.positions)
            report.append(
                f"The name of topic {topic} could not be saved; now it is called {quoted(record.name)}."
            )
            records[topic] = record
    # The catalogue records which message ids may be in use. It was damaged, so skip more ids than a server
    # can have assigned since any record that was found.
    extents = [level.found.extents for level in found.levels.values()]
    for topic, record in records.items():
        seen = [known[topic].next for known in extents if topic in known]
        bound = max(1, record.reserved, record.resume, *seen) + MESSAGE_IDS_SKIPPED
        records[topic] = replace(record, reserved=bound, resume=bound, lost_from=0)
    next_id = max(found.catalogue.next_topic or 0, *(topic + 1 for topic in records), 0) + TOPIC_IDS_SKIPPED
    topology, lost = _topology(found.catalogue, words, records)
    report += lost
    fresh = found.path / (CATALOGUE + _FRESH)
    fresh.mkdir(DIRECTORY_MODE)
    # No start needs to skip ids for levels that lost messages: every topic already continues far behind them.
    lineage = None if found.lineage is None else replace(found.lineage, lost=())
    StoreCatalogue.make(
        fresh, records.values(), next_id, lineage, map_size=CATALOGUE_MAP_SIZE, topology=topology
    )
    report.append(_swap(found.path, CATALOGUE))
    return report


def _topology(
    found: Salvage, words: RecordInterpreter, topics: Mapping[int, TopicRecord]
) -> tuple[StoredTopology, list[str]]:
    """Return the exchanges, bindings and queues that can be saved, and sentences about the others."""
    exchanges = dict(found.exchanges)
    for binding in found.bindings.values():
        for name in (binding.source, binding.destination):
            # A deleted exchange has no bindings, so this one was not deleted.
            if isinstance(name, bytes) and name not in exchanges and name in found.older_exchanges:
                exchanges[name] = found.older_exchanges[name]
    bindings = {}
    report = []
    for number, binding in sorted(found.bindings.items()):
        ends = (binding.source, binding.destination)
        missing = [end for end in ends if isinstance(end, bytes) and not _is_there(end, exchanges, words)]
        if not missing and (isinstance(binding.destination, bytes) or binding.destination in topics):
            bindings[number] = binding
        else:
            what = f"exchange {quoted(missing[0])}" if missing else f"topic {binding.destination!r}"
            report.append(f"A binding of {quoted(binding.source)} is lost: {what} could not be saved.")
    # A topic id is never used again, so older options of a topic are its own.
    queues = {**found.older_queues, **found.queues}
    kept = {topic: options for topic, options in queues.items() if topic in topics}
    if found.damaged or found.problems:
        report.append("Of exchanges, bindings and options of queues, what could be read is saved.")
    return StoredTopology(exchanges, bindings, kept), report


def _is_there(exchange: bytes, exchanges: Mapping[bytes, ExchangeRecord], words: RecordInterpreter) -> bool:
    return exchange in exchanges or words.has_exchange(exchange)


def _is_incomplete(found: Inspection) -> bool:
    return bool(found.catalogue.problems or found.catalogue.damaged)


def _renew_level(
    found: Inspection, words: RecordInterpreter, level: LevelInspection, map_size: int, boot_id: str
) -> list[str]:
    """Rebuild the environment of a level from the blocks and records that can be read.  Return sentences."""
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
    report = [_swap(found.path, name)]
    if not old.problems and not level.foreign:
        return report
    for record in found.catalogue.topics.values():
        if words.level_of(record) is not level.level:
            continue
        if record.id not in old.known and record.reserved > 1:
            report.append(f"{name}: nothing of {quoted(record.name)} could be saved.")
        elif words.has_position(record) and record.id in old.blocks and record.id not in old.positions:
            report.append(
                f"{name}: the position of {quoted(record.name)} could not be saved; "
                "all its stored messages are delivered again."
            )
    return report


def _copy_large(path: Path, level: LevelInspection, message: Fragmented, environment: Environment) -> None:
    """Copy a message in fragments, which the inspection has found whole."""
    body = environment.bodies.begin()
    parts = level.found.body(path, message)
    index = 0
    while some := list(islice(parts, _GROUP_FRAGMENTS)):
        environment.put_fragments([Fragments(message.topic, body, index, b"".join(some))])
        index += len(some)
    environment.append([replace(message, body=body)])


def _copy(path: Path, level: LevelInspection, topic: int, environment: Environment) -> None:
    group: list[Block] = []
    octets = 0
    for block in level.found.read(path, topic):
        if isinstance(block, Fragmented):
            environment.append(group)
            group = []
            octets = 0
            _copy_large(path, level, block, environment)
            continue
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
