"""The modules of PySpark, compiled in the archive from which Spark's Python processes import them.

Spark puts archives before the installed package, and Python keeps no bytecode of what it imports from an
archive. A query starts several processes, and each would compile for half a second. As a program this adds
the bytecode to the archives of the installed PySpark; `tools/test` runs it.
"""

import marshal
import shutil
import sys
import warnings
from importlib.util import MAGIC_NUMBER, find_spec, source_hash
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

NEVER_COMPARED = (1).to_bytes(4, "little")
"""The flags of bytecode that Python takes without comparing it with its source."""


def bytecode_of(source: bytes, name: str) -> bytes:
    """Return the content of a file with the bytecode of a module."""
    with warnings.catch_warnings(action="ignore"):  # they would be of PySpark's tests
        code = compile(source, name, "exec", dont_inherit=True)
    return MAGIC_NUMBER + NEVER_COMPARED + source_hash(source) + marshal.dumps(code)


def add_bytecode(archive: Path) -> None:
    """Add the bytecode of those modules that have none."""
    new = archive.with_suffix(".new")
    shutil.copyfile(archive, new)
    with ZipFile(new, "a", ZIP_DEFLATED) as file:
        names = set(file.namelist())
        for name in names:
            if name.endswith(".py") and f"{name}c" not in names:
                file.writestr(f"{name}c", bytecode_of(file.read(name), name))
    new.replace(archive)


if __name__ == "__main__":
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        sys.exit("PySpark is not installed.")
    for archive in (Path(found.origin).parent / "python" / "lib").glob("*.zip"):
        add_bytecode(archive)
