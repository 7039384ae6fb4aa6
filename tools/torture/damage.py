"""Damage to files: flipped bits, truncated files, missing files.

Whatever it is, the server either does not start, and names the file, or serves every message as it was and
says which are missing. After a repair it starts, and a single bit has cost no more than the block it was in.
"""

import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio
from examiner import Broken, Examiner, RefusedToStart, Repaired, Served
from history import KINDS, MARK, History, Stored
from load import CONFIGURATION, declare_all, load
from server import Server
from tally import Outcome

MOST_IN_A_BLOCK = 4096

RUN_SECONDS = 0.4
"""The number of seconds in which a store is filled: it is small, so that index pages are a large part of it.
"""

Told = Mapping[str, Stored]


@dataclass(frozen=True, slots=True)
class IntactMessages:
    """The messages of the intact store, and those that it no longer has, by topic and id."""

    topics: Told
    seen: Mapping[str, Mapping[int, bytes]]
    published: Mapping[str, AbstractSet[bytes]]
    """The bodies that were published to the queues of AMQP."""


@dataclass(frozen=True, slots=True)
class FileDamage:
    """A damage to one file."""

    file: str
    what: str
    do: Callable[[Path], None]
    is_small: bool
    """One bit."""


async def damage(directory: Path, count: int, chance: random.Random, done: Callable[[], None]) -> Outcome:
    """Flip `count` bits, and truncate, empty and remove every file. `done` is called after each bit."""
    outcome = Outcome()
    store = directory / "whole"
    history = History()
    await _fill(store, history, chance)
    with Examiner() as examiner:
        opened = directory / "opened"
        shutil.copytree(store, opened)
        found_whole = examiner.examine(opened, "this-boot")
        if not isinstance(found_whole, Served):
            outcome.blame("a store without damage", [str(found_whole)])
            return outcome
        seen = {
            name: {id: body for id, (body, _) in told.seen.items()} for name, told in history.topics.items()
        }
        published = {kind.name: history.topics[kind.name].published for kind in KINDS if kind.is_amqp}
        whole = IntactMessages(found_whole.topics, seen, published)
        for number, harm in enumerate(_harms(store, count, chance)):
            copy = directory / f"damaged-{number}"
            shutil.copytree(store, copy)
            harm.do(copy / harm.file)
            boot_id = chance.choice(("this-boot", "another-boot"))
            found = [
                *_as_found(examiner, copy, harm, whole, boot_id),
                *_repaired(examiner, copy, harm, whole, boot_id),
            ]
            outcome.count(whole.topics)
            outcome.blame(f"{copy / harm.file}, {harm.what}", found)
            if not found:
                shutil.rmtree(copy)
            if harm.is_small:
                done()
    return outcome


async def _fill(store: Path, history: History, chance: random.Random) -> None:
    with Server(store, CONFIGURATION.format(weak=0.1, asynchronous=0.2), "this-boot", {}) as server:
        port = await server.ready()
        await declare_all(port, history)
        with trio.move_on_after(RUN_SECONDS):
            await load(port, history, chance)
        server.stop()


def _harms(store: Path, flips: int, chance: random.Random) -> Iterator[FileDamage]:
    files = {str(path.relative_to(store)): path.stat().st_size for path in store.rglob("*") if path.is_file()}
    files = {name: size for name, size in sorted(files.items()) if size}
    for name, size in files.items():
        yield FileDamage(name, "removed", Path.unlink, is_small=False)
        for length in (0, 1, size - 1, *(chance.randrange(size) for _ in range(flips // 100))):
            yield FileDamage(name, f"cut to {length} octets", partial(_cut, length=length), is_small=False)
    # Mostly in the data files, which have pointers; most other octets have a checksum.
    names = [name for name in files if name.endswith("data.mdb")] * 4 + list(files)
    for _ in range(flips):
        name = chance.choice(names)
        bit = chance.randrange(8 * files[name])
        if name.endswith("data.mdb") and chance.random() < 0.1:
            bit = chance.randrange(8 * 2 * 4096)  # the two pages that everything hangs on
        yield FileDamage(name, f"bit {bit}", partial(_flip, bit=bit), is_small=True)


def _cut(file: Path, length: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(length)


def _flip(file: Path, bit: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(bit // 8)
        (octet,) = opened.read(1)
        opened.seek(bit // 8)
        opened.write(bytes([octet ^ 1 << bit % 8]))


def _as_found(
    examiner: Examiner, copy: Path, harm: FileDamage, whole: IntactMessages, boot_id: str
) -> Iterator[str]:
    """Yield the promises that the server's reaction breaks."""
    store = copy.with_name(copy.name + "-opened")
    shutil.copytree(copy, store)
    match examiner.examine(store, boot_id):
        case Broken(what):
            yield what
        case RefusedToStart(sentence):
            if str(store / harm.file) not in sentence and not (
                "has format" in sentence and harm.file == "format"
            ):
                yield f"the sentence names no file: {sentence}"
        case Served(topics):
            yield from _not_true(topics, whole)
            yield from _not_told(topics, whole)
    shutil.rmtree(store)


def _repaired(
    examiner: Examiner, copy: Path, harm: FileDamage, whole: IntactMessages, boot_id: str
) -> Iterator[str]:
    """Yield the promises that the repaired store breaks."""
    store = copy.with_name(copy.name + "-repaired")
    shutil.copytree(copy, store)
    repaired = examiner.repair(store, boot_id)
    match repaired:
        case Broken(what):
            yield f"repair: {what}"
        case RefusedToStart(sentence):
            if not _is_of_later_format(sentence, harm):
                yield f"it cannot be repaired: {sentence}"
        case Repaired(sentences):
            match examiner.examine(store, boot_id):
                case Served(topics):
                    yield from _not_true(topics, whole)
                    if harm.is_small:
                        yield from _too_much(topics, whole, sentences)
                case other:
                    yield f"after the repair: {other}; it had said {sentences}"
    shutil.rmtree(store, ignore_errors=True)


def _is_of_later_format(sentence: str, harm: FileDamage) -> bool:
    """Return whether the flipped bit turned the number of the format into a later one."""
    return harm.file == "format" and " has format " in sentence


def _not_true(topics: Told, whole: IntactMessages) -> Iterator[str]:
    """Return wrong messages, and ids that were assigned a second time."""
    for name, topic in topics.items():
        # Confirmed work may be delivered again if the record of the confirmation is lost.
        known = {**whole.seen[name], **dict(whole.topics[name].messages)}
        for id, body in topic.messages:
            # Consumers of AMQP learn no ids: only the bodies of their messages are known.
            if id not in known and body in whole.published.get(name, ()):
                continue
            if known.get(id) != body and not body.startswith(MARK):
                yield f"{name}: message {id} was {known.get(id)!r} and is {body!r}"
        if topic.next_id <= max(known, default=0):
            yield f"{name}: message {topic.next_id} is new, but {max(known)} was handed out before"


def _tells(sentence: str, name: str, first: int, last: int) -> bool:
    """Return whether a sentence reports these messages, and perhaps adjacent ones, as unreadable."""
    match = re.search(r"messages (\d+) to (\d+) of '(.+)' cannot", sentence)
    return match is not None and match[3] == name and int(match[1]) <= first and last <= int(match[2])


def _missing(topics: Told, whole: IntactMessages) -> Iterator[tuple[str, list[int]]]:
    for kind in KINDS:
        here = {id for id, _ in topics[kind.name].messages} if kind.name in topics else set()
        messages = whole.topics[kind.name].messages
        missing = [id for id, body in messages if id not in here and not body.startswith(MARK)]
        if missing:
            yield kind.name, missing


def _not_told(topics: Told, whole: IntactMessages) -> Iterator[str]:
    """Return missing messages that no sentence reports."""
    for name, missing in _missing(topics, whole):
        gaps = topics[name].gaps if name in topics else []
        silent = [id for id in missing if not any(first <= id <= last for first, last in gaps)]
        if silent:
            yield f"{name}: messages {silent[0]} to {silent[-1]} are missing, and nobody says so"


def _too_much(topics: Told, whole: IntactMessages, sentences: list[str]) -> Iterator[str]:
    """Return lost messages that one flipped bit does not explain."""
    for name, missing in _missing(topics, whole):
        first, last = missing[0], missing[-1]
        between = [id for id, _ in whole.topics[name].messages if first <= id <= last]
        if missing != sorted(between) or len(missing) > MOST_IN_A_BLOCK:
            yield f"{name}: one bit has cost {len(missing)} messages between {first} and {last}"
        if not any(_tells(sentence, name, first, last) for sentence in sentences):
            yield f"{name}: nobody says that messages {first} to {last} are lost, only {sentences}"
