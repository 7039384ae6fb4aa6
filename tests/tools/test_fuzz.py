"""The fuzzer's checks hold for every kept input, and for many inputs of hypothesis.

The fuzzer itself runs for longer than tests may (docs/FUZZING.md). Here its targets are asked without
guidance, and it is seen to find what is there to be found.
"""

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fuzz_corpus
import fuzz_sanitizer
import pytest
from fuzz_growth import GrowthError, check_growth
from fuzz_targets import TARGETS
from hypothesis import given
from hypothesis import strategies as st

FUZZ = Path(__file__).resolve().parents[2] / "tools" / "fuzz.py"
ROOT = FUZZ.parents[1]

needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed: pip install -e '.[fuzz]'"
)


def can_sanitize() -> bool:
    compiler = shutil.which("gcc")
    if compiler is None or importlib.util.find_spec("Cython") is None:
        return False
    library = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    return Path(library.stdout.strip()).is_absolute()


needs_sanitizer = pytest.mark.skipif(
    not can_sanitize(), reason="no gcc with AddressSanitizer here, or no Cython"
)


@pytest.mark.parametrize("name", TARGETS)
def test_the_inputs_that_are_kept(name: str) -> None:
    target = TARGETS[name]
    inputs = fuzz_corpus.kept(target)
    assert inputs, "tools/fuzz.py TARGET --keep makes them"
    for data in (*target.seeds, *inputs):
        target.check(data)


@st.composite
def changed(draw: st.DrawFn, originals: list[bytes], words: tuple[bytes, ...]) -> bytes:
    """Return one or two of these inputs with some octets changed, removed or inserted."""
    octets = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(octets)))
        match draw(st.sampled_from(["change", "cut", "word", "splice"])):
            case "change":
                octets[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del octets[at : at + draw(st.integers(1, 20))]
            case "word":
                octets[at:at] = draw(st.sampled_from(words))
            case _:
                octets[at:] = draw(st.sampled_from(originals))[at:]
    return bytes(octets)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
def test_inputs_that_hypothesis_makes(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    octets = data.draw(st.binary(max_size=100) | changed(fuzz_corpus.known(target), target.words))
    target.check(octets[: target.longest])


def test_a_parser_that_keeps_its_input_is_noticed() -> None:
    kept: list[bytes] = []

    def keep(data: bytes) -> None:
        kept.extend(bytes([octet, 0]) for octet in data)

    target = replace(TARGETS["handshake"], check=keep)
    with pytest.raises(GrowthError, match="handshake grows"):
        check_growth(target, [b"eight octets"])
    assert kept
    assert "look" in check_growth(TARGETS["handshake"], [b"eight octets"])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, FUZZ, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_one_input_can_be_tried_by_itself(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"(Publish a b)")
    done = run("sexp", "--input", str(tmp_path / "input"))
    assert (done.returncode, done.stdout) == (0, "sexp: nothing wrong with 13 octets\n")


def test_the_targets_are_listed() -> None:
    listed = [line.split()[0] for line in run("--list").stdout.splitlines()]
    assert listed == [*TARGETS, "codec"]
    assert run().returncode == 2
    assert run("no-such-target").returncode == 2


@needs_atheris
def test_a_guided_run_counts_its_inputs() -> None:
    done = run("handshake", "--inputs", "2000", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("handshake: 2,000 inputs in ")
    assert "(seed 7), nothing found; " in done.stdout


QUICK = "-O0"
"""To optimize the codec takes longer than to run these few cases without that."""


@needs_sanitizer
@pytest.mark.long
def test_the_codec_under_the_sanitizers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extension = fuzz_sanitizer.build(tmp_path, optimization=QUICK)
    assert fuzz_sanitizer.run_cases(extension, 1000, 1) == 0
    assert capsys.readouterr().out.startswith("codec: 1,000 cases in ")


@needs_sanitizer
@pytest.mark.long
def test_the_sanitizers_find_a_read_beyond_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = shutil.copytree(ROOT / "storage" / "omq_storage", tmp_path / "storage")
    file = sources / "native" / "blocks.pxi"
    check = "return begin[0] <= end[0] <= self.size"
    assert file.read_text().count(check) == 1
    file.write_text(file.read_text().replace(check, "return begin[0] <= end[0]"))
    extension = fuzz_sanitizer.build(tmp_path, sources, QUICK)
    assert fuzz_sanitizer.run_cases(extension, 1000, 1) == 1
    assert "AddressSanitizer" in capsys.readouterr().out
