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
from omq_storage.pages import Pages

DATA = "data.mdb"

ADVICE = '"omq store check" tells more, "omq store repair" saves what can be saved'


def problems(path: Path) -> list[str]:
    """What is wrong with the data file of the environment in this directory, a clause each; none is well.

    OSError when the file cannot be read.
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
    found = [problem for problem in found if _LEAK not in problem]
    return found or _further(file)


_LEAK = "neither reachable nor in the freeDB -- a leak"


def _further(file: Path) -> list[str]:
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
    return []


def require_sound(path: Path) -> None:
    """Raises DamagedFile, which names the file, unless the environment in this directory may be opened."""
    file = path / DATA
    try:
        found = problems(path)
    except FileNotFoundError:
        raise DamagedFile(f"The file {file} is missing; {ADVICE}.") from None
    if found:
        raise DamagedFile(f"The file {file} is damaged: {found[0]}; {ADVICE}.")
