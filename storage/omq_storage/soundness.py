"""Whether an environment's data file may be given to LMDB, which maps it into the process and follows what it
says: in a damaged one it can end the process, or write over what is still good.

Everything that leads from page to page is verified: ``lmdb.verify`` reads the file as octets and looks at all
pages but the insides of large values, which have checksums of their own.  More is looked at here: whether the
file has all its pages; and what a single bit in one of the first two pages could change without making the
file any less well formed, which leads back to the state before the last commit.
"""

import struct
from pathlib import Path

from lmdb import verify

from omq_storage.errors import DamagedFile
from omq_storage.metas import NO_PAGE, Meta
from omq_storage.pages import Pages

DATA = "data.mdb"

ADVICE = '"omq store check" tells more, "omq store repair" saves what can be saved'


_LEAK = "neither reachable nor in the freeDB -- a leak"


def problems(path: Path, *, thorough: bool = False) -> list[str]:
    """What is wrong with the data file of the environment in this directory, a clause each; none is well.

    ``thorough``: also what matters only when something else is damaged later.  OSError when the file cannot
    be read.
    """
    file = path / DATA
    if not file.stat().st_size:
        return ["it is empty"]
    try:
        found: list[str] = verify.verify(str(file), subdir=False)  # type: ignore[no-untyped-call]  # it has no types
    except verify.VerifyError as error:
        return [str(error)]
    except (struct.error, IndexError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        return [f"it cannot be verified ({error!r})"]
    # Pages that nothing uses and nothing will are a waste, and no danger.
    serious = [problem for problem in found if _LEAK not in problem]
    return serious or _further(file, thorough and not found)


def _further(file: Path, thorough: bool) -> list[str]:
    with Pages(file) as pages:
        if len(pages.metas) != 2:
            return ["its first two pages cannot be read"]
        newest, other = pages.metas
        # A commit writes over the older of the two pages, and frees at least one page.
        number = newest.transaction
        if number > 1 and other.transaction != number - 1:
            return [f"its first two pages are of the transactions {number} and {other.transaction}"]
        # The insides of large values were not looked at; beyond the end of the file they end the process.
        beyond = range(pages.count, newest.last_page + 1)
        if beyond and not pages.freed(newest).issuperset(beyond):
            return [f"it ends after {pages.count} pages, and has {newest.last_page + 1}"]
        freed = pages.newest_freed(newest)
        if freed is not None and freed != number:
            return [f"it says that its newest transaction is {number}, but that was {freed}"]
        return _of_metas(pages, newest, other, thorough)


def _of_metas(pages: Pages, newest: Meta, other: Meta, thorough: bool) -> list[str]:
    """What the first two pages say that cannot be.  The state that the older one leads to is whole too, since
    a commit writes over no page of the state before it.
    """
    found = []
    for number, meta in enumerate(filter(None, pages.first_two)):
        found += meta.faults(number)
        if meta.page_size != pages.page_size:
            found.append(f"page {number} says that pages have {meta.page_size} octets")
        freed = pages.newest_freed(meta)
        if freed is not None and freed != meta.transaction:
            found.append(f"page {number} says that it is of transaction {meta.transaction}, not of {freed}")
        for name, tree in (("free pages", meta.free), ("tables", meta.main)):
            walk = pages.walk(tree.root)
            if walk is None or walk.counts != tree.counts or walk.highest > meta.last_page:
                found.append(f"what page {number} says of the {name} is not what is there")
            elif name == "tables" and len(walk.trees) != walk.counts.entries:
                found.append(f"what page {number} leads to are no tables")
    if other.last_page > newest.last_page or other.map_size > newest.map_size:
        found.append("it was larger once")  # neither ever becomes less
    if thorough and not found and newest.transaction > 1:
        if pages.highest(other) not in (None, other.last_page):
            found.append(f"its older page says that page {other.last_page} was its last")
        # Every commit changes a table, and so writes the root of the tables to another page.
        freed_pages = pages.freed_by_commits(newest).get(newest.transaction, set())
        if other.main_root not in (NO_PAGE, *freed_pages):
            found.append("its older page does not lead to the state before the last commit")
    return found


def require_sound(path: Path) -> None:
    """Raises DamagedFile, which names the file, unless the environment in this directory may be opened."""
    file = path / DATA
    try:
        found = problems(path)
    except FileNotFoundError:
        raise DamagedFile(f"The file {file} is missing; {ADVICE}.") from None
    if found:
        raise DamagedFile(f"The file {file} is damaged: {found[0]}; {ADVICE}.")
