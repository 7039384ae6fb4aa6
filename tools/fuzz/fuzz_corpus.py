"""The inputs that a target begins with: its seeds, those in the repository, and those of earlier runs."""

from hashlib import sha256
from pathlib import Path

from fuzz_checks import Target

ROOT = Path(__file__).resolve().parents[2]

KEPT = ROOT / "tests" / "data" / "fuzz"
"""One file a target, an input in hexadecimal on each line: each reaches code that those before it do not."""


def kept(target: Target) -> list[bytes]:
    """Return the inputs that the repository has."""
    file = KEPT / f"{target.name}.hex"
    return [bytes.fromhex(line) for line in file.read_text().split("\n")[:-1]] if file.is_file() else []


def known(target: Target) -> list[bytes]:
    """Return the seeds and the inputs that the repository has."""
    return [*target.seeds, *kept(target)]


def write(directory: Path, inputs: list[bytes]) -> None:
    """Write one file for each input, named after the hash of its contents."""
    directory.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        (directory / sha256(data).hexdigest()[:40]).write_bytes(data)


def read(directory: Path) -> list[bytes]:
    """Return the inputs of a directory, in the order of their length."""
    files = sorted(directory.iterdir()) if directory.is_dir() else []
    return sorted((file.read_bytes() for file in files), key=lambda data: (len(data), data))


def keep(target: Target, inputs: list[bytes]) -> None:
    """Put these inputs into the repository in the place of those it has."""
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{target.name}.hex").write_text("".join(f"{data.hex()}\n" for data in inputs))
