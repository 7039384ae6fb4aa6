"""Verifying a data file before LMDB may open it.

LMDB maps the file into the process and trusts every number in it.  A damaged page number can crash the
process, or make a commit overwrite intact pages.

``lmdb.verify`` reads the file without mapping it and verifies all links between pages.  It does not read the
inside of large values; these have checksums of their own.  This module verifies two more things:

- whether the file is complete;
- whether the two meta pages agree with the rest.  One flipped bit in a meta page can leave the file well
  formed and yet lead to the state before the last commit, so that confirmed messages disappear unnoticed.
"""

from pathlib import Path

from lmdb import verify

from omq_storage.errors import DamagedFile
from omq_storage.metas import NO_PAGE, Meta
from omq_storage.pages import Pages

DATA = "data.mdb"

ADVICE = '"omq store check" reports the details, "omq store repair" saves what can be saved'


_LEAK = "neither reachable nor in the freeDB -- a leak"


def problems(path: Path, *, thorough: bool = False) -> list[str]:
    """Return the faults of the data file in this directory, a clause for each; none for an intact file.

    ``thorough``: also report faults that matter only if something else is damaged later.  Raises OSError when
    the file cannot be read.
    """
    file = path / DATA
    if not file.stat().st_size:
        return ["it is empty"]
    try:
        found: list[str] = verify.verify(str(file), subdir=False)  # type: ignore[no-untyped-call]  # it has no types
    except verify.VerifyError as error:
        return [str(error)]
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - it calculates with the damaged numbers, so anything may fail
        return [f"it cannot be verified ({error!r})"]
    # Leaked pages waste room, but they do no harm.
    serious = [problem for problem in found if _LEAK not in problem]
    return serious or _further_problems(file, thorough and not found)


def _further_problems(file: Path, thorough: bool) -> list[str]:
    with Pages(file) as pages:
        if len(pages.metas) != 2:
            return ["its first two pages cannot be read"]
        newest, other = pages.metas
        # A commit overwrites the older meta page, so their transactions are consecutive.
        number = newest.transaction
        if number > 1 and other.transaction != number - 1:
            return [f"its first two pages are of the transactions {number} and {other.transaction}"]
        # lmdb.verify does not read large values. Reading one beyond the end of the file kills the process
        # with SIGBUS.
        beyond = range(pages.count, newest.last_page + 1)
        if beyond and not pages.freed(newest).issuperset(beyond):
            return [f"it ends after {pages.count} pages, and has {newest.last_page + 1}"]
        # Every commit frees at least one page and records that under its own number.
        freed = pages.newest_freed(newest)
        if freed is not None and freed != number:
            return [f"it says that its newest transaction is {number}, but that was {freed}"]
        return _meta_problems(pages, newest, other, thorough)


def _meta_problems(pages: Pages, newest: Meta, other: Meta, thorough: bool) -> list[str]:
    """Return the faults of the two meta pages.

    The state of the older one must be intact, too: a commit overwrites no page of the state before it.
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
                found.append(f"page {number} describes other {name} than there are")
            elif name == "tables" and len(walk.trees) != walk.counts.entries:
                found.append(f"page {number} leads to pages that are no tables")
    if other.last_page > newest.last_page or other.map_size > newest.map_size:
        found.append("it was larger once")  # neither number ever decreases
    if thorough and not found and newest.transaction > 1:
        if pages.highest(other) not in (None, other.last_page):
            found.append(f"its older page says that page {other.last_page} was its last")
        # Every commit changes a table, so it writes the root of the tables to a new page and frees the old
        # one.
        freed_pages = pages.freed_by_commits(newest).get(newest.transaction, set())
        if other.main_root not in (NO_PAGE, *freed_pages):
            found.append("its older page does not lead to the state before the last commit")
    return found


def require_end(path: Path, last_page: int, page_size: int) -> None:
    """Raise DamagedFile if the data file in this directory ends before a page that is in use. Reading such a
    page kills the process with SIGBUS.

    This is for readers beside a server, which cannot verify the whole file: call it within a read
    transaction.  ``last_page`` and ``page_size``: what LMDB says.  Raises OSError when the file cannot be
    read.
    """
    file = path / DATA
    if file.stat().st_size >= (last_page + 1) * page_size:
        return
    with Pages(file) as pages:
        if not pages.metas:
            return  # LMDB knows better
        # A page that was freed by the transaction that added it may never have been written.
        if not pages.freed(pages.newest).issuperset(range(pages.count, last_page + 1)):
            raise DamagedFile(
                f"The file {file} is damaged: it ends after {pages.count} pages, and has {last_page + 1}; "
                f"{ADVICE}."
            )


def require_intact(path: Path) -> None:
    """Raise DamagedFile, with the name of the file, unless LMDB may open the environment in this
    directory.
    """
    file = path / DATA
    try:
        found = problems(path)
    except FileNotFoundError:
        raise DamagedFile(f"The file {file} is missing; {ADVICE}.") from None
    if found:
        raise DamagedFile(f"The file {file} is damaged: {found[0]}; {ADVICE}.")
