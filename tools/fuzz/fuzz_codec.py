"""The process in which the codec is tried that was built with the sanitizers.

    python fuzz_codec.py tests EXTENSION EXAMPLES PYTEST-OPTION...
    python fuzz_codec.py cases EXTENSION CASES FIRST SEED STATUS-FILE

Each case has a random generator of its own, of the seed and the number of the case, and STATUS-FILE has that
number: so the case that a report stopped can be run again by itself.
"""

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import omq_storage

BETWEEN_THREADS = 1000
"""One in this number of cases uses threads: it takes as long as hundreds of others."""


def load(extension: str) -> ModuleType:
    """Return the codec from this file, in the place of the one that was installed."""
    spec = importlib.util.spec_from_file_location("omq_storage._codec", extension)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["omq_storage._codec"] = module
    omq_storage._codec = module
    return module


def run_tests(examples: int, options: list[str]) -> int:
    import pytest
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "sanitized",
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    # As an option: it overrides the profile that the tests load.
    return int(pytest.main(["--hypothesis-profile=sanitized", *options]))


def run_cases(cases: int, first: int, seed: str, status: Path, native: Any) -> None:
    """Try cases from number `first` on. Print the number of each kind, and the memory use."""
    from random import Random

    from fuzz_codec_cases import KINDS, several_threads, try_case

    from omq_storage import codec

    assert codec.native is native, "another codec was loaded"

    counts: Counter[str] = Counter()
    before = 0
    with status.open("w") as file:
        for number in range(first, first + cases):
            # Written over in place: the file is read only when this process is no more.
            file.seek(0)
            file.write(f"{number:12}")
            file.flush()
            random = Random(f"{seed}/{number}")
            kind = KINDS[number % len(KINDS)] if (number + 1) % BETWEEN_THREADS else several_threads
            try_case(kind, random, native)
            counts[kind.__name__] += 1
            if number == first + cases // 2:
                before = resident()
    growth = resident() - before
    print(json.dumps({**counts, "growth": f"{growth:+} KiB in the second half"}))


def resident() -> int:
    """Return the KiB of anonymous memory."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:")
    )
    return int(line.split()[1])


def main() -> int:
    kind, extension, number, *rest = sys.argv[1:]
    native = load(extension)
    if kind == "tests":
        return run_tests(int(number), rest)
    first, seed, status = rest
    run_cases(int(number), int(first), seed, Path(status), native)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
