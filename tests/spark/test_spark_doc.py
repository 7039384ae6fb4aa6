"""docs/SPARK.md: its examples, run as they stand and in their order, and what they print compared."""

import contextlib
import io
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from certificates import Authority
from made_stores import Topic, make_store
from programs import PATH, output_of_script
from pyspark.sql import SparkSession
from serving_stores import secured, serving

from omq.spark.options import ELSEWHERE, READ_OPTIONS, WRITE_OPTIONS

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "SPARK.md").read_text()


def examples() -> list[tuple[str, str, str | None]]:
    """Return language, program, and what it prints where that is shown."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    return [
        (language, text, found[place + 1][1] if found[place + 1 : place + 2][0][0] == "text" else None)
        for place, (language, text) in enumerate(found)
        if language != "text"
    ]


def mask(printed: str) -> str:
    """Mask the figures that are not the same each time: times, rates, and octets in the store."""
    printed = re.sub(r"in [\d.]+ s: [\d,]+ messages/s", "in N s: N messages/s", printed)
    return re.sub(r" +[\d.N]+ (k?B)$", r" N \1", printed, flags=re.MULTILINE)


def changed(text: str, addresses: Mapping[str, str]) -> str:
    for address, real in addresses.items():
        text = text.replace(address, real)
    return text


@pytest.mark.long
@pytest.mark.timeout(900)  # with other long tests beside it, it takes more than the usual limit
def test_every_example(spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, object] = {}
    authority = Authority(tmp_path / "authority")
    (tmp_path / "authority.pem").write_bytes(authority.file.read_bytes())
    (tmp_path / "reader.id").write_text("reader:sesame\n")
    (tmp_path / "reader.id").chmod(0o600)
    afar = make_store(tmp_path / "afar", prices=Topic((30,)))
    with (
        serving(tmp_path / "store") as server,
        serving(afar, security=secured(authority)) as other,
    ):
        addresses = {"127.0.0.1:7730": server.address, "127.0.0.1:7731": other.address}
        environment = {
            "PATH": PATH,
            "OMQ_SERVER": f"omq://{server.address}",
            "PYSPARK_PYTHON": sys.executable,
        }
        for language, program, shown in examples():
            here = changed(program, addresses).replace("/tmp/", f"{tmp_path}/")
            if language == "python":
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(compile(here, "SPARK.md", "exec"), names)
                printed = output.getvalue()
            else:
                printed = output_of_script(here, ROOT, 180, **environment)
            expected = changed(shown or "", addresses)
            assert mask(printed).strip() == mask(expected).strip(), program


def test_the_page_has_examples() -> None:
    assert [language for language, *_ in examples()].count("python") >= 5
    assert [language for language, *_ in examples()].count("sh") >= 3


@pytest.mark.parametrize("option", sorted({*READ_OPTIONS, *WRITE_OPTIONS}))
def test_every_option_is_there(option: str) -> None:
    assert f"`{option}`" in DOCUMENT


def test_options_of_kafka_with_other_names_are_known() -> None:
    for option in re.findall(r"`(kafka\.[\w.]+)`", DOCUMENT):
        assert option in ELSEWHERE


def test_the_example_of_the_readme(spark: SparkSession, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"^## With Spark\n.*?^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    with serving(tmp_path / "store") as server:
        server.publish("greetings", [b"hello", b"hello again"])
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(program.replace("127.0.0.1:7730", server.address), "README.md", "exec"), {})
    rows = [line.split("|")[1:3] for line in output.getvalue().splitlines()[3:5]]
    assert [[cell.strip() for cell in row] for row in rows] == [["1", "hello"], ["2", "hello again"]]


def test_the_example_of_the_howto(spark: SparkSession, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "spark.md").read_text()
    (program,) = re.findall(r"^ *```python\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    program = textwrap.dedent(program)
    with serving(tmp_path / "store") as server:
        server.publish("prices", [b"1.0843", b"1.0851"])
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(program.replace("127.0.0.1:7730", server.address), "spark.md", "exec"), {})
    rows = [[cell.strip() for cell in line.split("|")] for line in output.getvalue().splitlines()[3:5]]
    assert [(row[1], row[3]) for row in rows] == [("1", "1.0843"), ("2", "1.0851")]
