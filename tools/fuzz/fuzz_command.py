"""The command line, and its output."""

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import fuzz_corpus
from fuzz_checks import BUILT, Target
from fuzz_cover import covering
from fuzz_growth import GrowthError, check_growth
from fuzz_sanitizer import run_sanitized
from fuzz_targets import TARGETS

CODEC = "codec"

SECONDS_FOR_ONE = 10
"""An input that takes longer hangs. None takes a hundredth of that."""

MEMORY_MIB = 1024

INTERRUPTED = 72
"""libFuzzer's status when it was ended by a signal."""

_EXECUTED = re.compile(r"^stat::number_of_executed_units: (\d+)$", re.MULTILINE)
_FOUND = re.compile(r"Test unit written to (\S+)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when nothing was found, 1 when something was, 2 when it could not be tried."""
    parser = argparse.ArgumentParser(prog="tools/fuzz.py", description=__doc__)
    parser.add_argument(
        "target",
        nargs="*",
        choices=[*TARGETS, CODEC, "all", []],
        metavar="TARGET",
        help="all, or names of --list",
    )
    parser.add_argument(
        "--inputs", type=int, default=1_000_000, metavar="N", help="number of inputs (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="seed of the random numbers (default %(default)s)"
    )
    parser.add_argument("--seconds", type=int, default=0, metavar="T", help="end each target after T seconds")
    parser.add_argument(
        "--case", type=int, default=0, metavar="N", help="number of the first case for the codec"
    )
    parser.add_argument(
        "--corpus", type=Path, metavar="DIR", help="also use the inputs in DIR/TARGET, and add new ones there"
    )
    parser.add_argument("--input", type=Path, metavar="FILE", help="try this one input, and print its fault")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="put the shortest inputs that reach all that was reached into the repository",
    )
    parser.add_argument("--list", action="store_true", help="list the targets")
    options = parser.parse_args(arguments)
    if options.list:
        for target in TARGETS.values():
            print(f"{target.name:10} {target.about}")
        print(f"{CODEC:10} the compiled codec under AddressSanitizer, and the tests of the twins")
        return 0
    names = [*TARGETS, CODEC] if "all" in options.target else options.target
    if not names:
        parser.error("which target? --list names them")
    if options.input is not None:
        return _try_one([TARGETS[name] for name in names if name != CODEC], options.input.read_bytes())
    statuses = []
    for name in names:
        if name == CODEC:
            statuses.append(run_sanitized(options.inputs, options.seed, options.case))
        else:
            statuses.append(_fuzz(TARGETS[name], options))
    return max(statuses)


def _try_one(targets: list[Target], data: bytes) -> int:
    for target in targets:
        try:
            target.check(data)
        except Exception:  # noqa: BLE001 - whatever comes out is what was looked for
            traceback.print_exc()
            return 1
        print(f"{target.name}: nothing wrong with {len(data)} octets")
    return 0


def _fuzz(target: Target, options: argparse.Namespace) -> int:
    if importlib.util.find_spec("atheris") is None:
        print(
            "atheris is not installed: pip install -e '.[fuzz]' in the checkout",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="omq-fuzz-") as made:
        scratch = Path(made)
        corpus = options.corpus / target.name if options.corpus else scratch / "corpus"
        fuzz_corpus.write(corpus, fuzz_corpus.known(target))
        words = scratch / "words"
        words.write_text("".join(map(_dictionary_line, target.words)))
        started = time.monotonic()
        done = _guided(
            target, f"-runs={options.inputs}", f"-seed={options.seed}", f"-max_total_time={options.seconds}",
            f"-max_len={target.longest}", f"-dict={words}",
            f"-artifact_prefix={Path.cwd()}/fuzz-{target.name}-", corpus,
        )  # fmt: skip
        seconds = time.monotonic() - started
        executed = _EXECUTED.search(done.stderr)
        count = int(executed[1]) if executed else 0
        rate = f"{count:,} inputs in {seconds:.0f} s (seed {options.seed})"
        if done.returncode == INTERRUPTED:
            print(f"{target.name}: ended by a signal after {rate}")
            return 2
        if done.returncode:
            print(f"{target.name}: FOUND after {rate}")
            print(done.stdout[-4000:] + done.stderr[-4000:])
            artefact = _FOUND.search(done.stderr)
            if artefact:
                print(f"try it again: tools/fuzz.py {target.name} --input {artefact[1]}")
            return 1
        inputs = fuzz_corpus.read(corpus)
    if options.keep:
        fuzz_corpus.keep(target, covering(target, inputs))
    try:
        grown = check_growth(target, inputs)
    except GrowthError as error:
        print(f"{target.name}: FOUND after {rate}: {error}")
        return 1
    twins = "" if BUILT else "; no compiled codec here, so only the plain one"
    print(f"{target.name}: {rate}, nothing found; {grown}{twins}", flush=True)
    return 0


def _dictionary_line(word: bytes) -> str:
    """Return a line of a dictionary as libFuzzer reads it."""
    return '"' + "".join(f"\\x{octet:02x}" for octet in word) + '"\n'


def _guided(target: Target, *options: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable, Path(__file__).with_name("fuzz_guided.py"), target.name,
            f"-timeout={SECONDS_FOR_ONE}", f"-rss_limit_mb={MEMORY_MIB}", "-print_final_stats=1",
            "-verbosity=1", *options,
        ],
        capture_output=True, text=True, errors="backslashreplace", check=False,
    )  # fmt: skip
