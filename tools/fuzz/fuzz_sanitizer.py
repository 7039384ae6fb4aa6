"""The compiled codec under AddressSanitizer and UndefinedBehaviorSanitizer.

Each run builds the codec into a directory of its own and loads it in processes that load the sanitizers
first. It runs the tests that compare the codec with its plain twin, and `fuzz_codec`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from fuzz_corpus import ROOT

TESTS = (
    "tests/storage/test_codec_twins.py",
    "tests/protocol/test_protocol_twins.py",
    "tests/protocol/test_amqp_0_9_delivery.py",
    "tests/protocol/test_amqp_0_9_cuts.py",
    "tests/protocol/test_amqp_0_9_messages.py",
    "tests/protocol/test_amqp_0_9_server.py",
)

CASES_FOR_AN_EXAMPLE = 100
"""Each hypothesis test of the twins gets one in this number of the inputs, because these tests are slow."""

_SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g",
)

_LOADED = ("libasan.so", "libubsan.so")

# Releases of hypothesis word it differently.
_EXAMPLES = re.compile(r"- (\d+) passing\D*, (\d+) failing\D*, (?:and )?(\d+) invalid")

_REPORT = re.compile(r"ERROR: AddressSanitizer|runtime error:|AddressSanitizer:DEADLYSIGNAL")


class CannotBuildError(Exception):
    """There is no compiler here that has the sanitizers, or no Cython."""


def run_sanitized(cases: int, seed: int, first: int) -> int:
    """Run N cases from number `first` on, and with the very first the tests of the twins. Print counts.

    0 when nothing was found, 1 when something was, 2 when the codec cannot be built so.
    """
    with tempfile.TemporaryDirectory(prefix="omq-sanitized-") as made:
        try:
            extension = build(Path(made))
        except CannotBuildError as error:
            print(error, file=sys.stderr)
            return 2
        found = run_tests(extension, max(cases // CASES_FOR_AN_EXAMPLE, 10), seed) if not first else 0
        return max(found, run_cases(extension, cases, seed, first))


def build(
    directory: Path, sources: Path = ROOT / "storage" / "omq_storage", optimization: str = "-O1"
) -> Path:
    """Return the codec of these sources, made with the sanitizers in this directory. Raises
    CannotBuildError.
    """
    compiler = os.environ.get("CC", "gcc")
    if shutil.which(compiler) is None:
        raise CannotBuildError(f"there is no C compiler {compiler} here; CC names another")
    source = directory / "_codec.c"
    made = directory / f"_codec{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = f"-I{sysconfig.get_paths()['include']}"
    commands: tuple[list[str | Path], ...] = (
        [sys.executable, "-m", "cython", "-3", sources / "_codec.pyx", "-o", source],
        [compiler, "-shared", "-fPIC", optimization, *_SANITIZERS, include, source, "-o", made],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBuildError(f"the codec cannot be built with the sanitizers:\n{done.stderr[-2000:]}")
    return made


def _environment() -> dict[str, str]:
    """Return the environment of a process that may load the codec: the sanitizers first, and each object in
    memory of its own.
    """
    compiler = os.environ.get("CC", "gcc")
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in _LOADED
    ]
    return os.environ | {
        "LD_PRELOAD": " ".join(libraries),
        # Python frees nothing at its end, so leaks are looked for by counting instead.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "OMQ_PLAIN": "",
    }


def run_tests(extension: Path, examples: int, seed: int) -> int:
    """Run the tests of the twins with `examples` each, and print the total.

    Return 1 for a finding, else 0.
    """
    started = time.monotonic()
    done = _run(
        "tests", str(extension), str(examples),
        # The profile needs hypothesis before pytest has looked at it.
        "-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", "-q",
        "--timeout=0",  # this number of examples takes longer than the limit of a test
        "--hypothesis-show-statistics", f"--hypothesis-seed={seed}",
        *TESTS,
    )  # fmt: skip
    tried = sum(sum(map(int, found.groups())) for found in _EXAMPLES.finditer(done.stdout))
    rate = f"{tried:,} examples of the twins' tests in {time.monotonic() - started:.0f} s (seed {seed})"
    if done.returncode or _REPORT.search(done.stderr):
        print(f"codec: FOUND within {rate}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}")
        return 1
    print(f"codec: {rate}, no report", flush=True)
    return 0


def run_cases(extension: Path, cases: int, seed: int, first: int = 0) -> int:
    """Run N cases of `fuzz_codec_cases`; print the number of each kind. Return 1 for a finding, else 0."""
    started = time.monotonic()
    status = extension.with_name("status")
    done = _run("cases", str(extension), str(cases), str(first), str(seed), str(status))
    at = int(status.read_text() or 0) if status.exists() else 0
    seconds = time.monotonic() - started
    if done.returncode == -signal.SIGTERM:
        print(f"codec: ended by a signal in case {at}")
        return 2
    if done.returncode or _REPORT.search(done.stderr):
        print(f"codec: FOUND with seed {seed}, in case {at} (status {done.returncode})")
        print(f"try it again: tools/fuzz.py codec --seed {seed} --case {at} --inputs 1")
        print(done.stdout[-4000:] + done.stderr[-6000:])
        return 1
    counts = json.loads(done.stdout)
    growth = counts.pop("growth")
    print(
        f"codec: {sum(counts.values()):,} cases in {seconds:.0f} s (seed {seed}), no report; memory {growth}"
    )
    for kind, count in sorted(counts.items()):
        print(f"    {kind:24} {count:>10,}")
    return 0


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("fuzz_codec.py")), *arguments],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        errors="backslashreplace",
        check=False,
    )
