"""docs/TROUBLESHOOTING.md: every sentence in a heading is one that a program of ours says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import PATH, output_of_script
from server_command import configured_server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text()
PROTOCOL = (ROOT / "docs" / "PROTOCOL.md").read_text()

SENTENCES: list[str] = re.findall(r"^### `(.*)`$", PAGE, re.MULTILINE)


def specified() -> set[str]:
    blocks: list[str] = re.findall(r"^```errors\n(.*?)^```$", PROTOCOL, re.MULTILINE | re.DOTALL)
    return {line for block in blocks for line in block.splitlines()}


def literals() -> Iterator[str]:
    """Yield every string of the code, with … for what is filled in."""
    for file in [*(ROOT / "omq").rglob("*.py"), *(ROOT / "storage" / "omq_storage").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[sdgr]|%\.\d[fg]", "…", node.value)


@pytest.fixture(scope="module")
def said() -> set[str]:
    return specified() | set(literals())


def test_the_page_names_enough_sentences() -> None:
    assert len(SENTENCES) > 40
    assert len(set(SENTENCES)) == len(SENTENCES)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_sentence_exists(sentence: str, said: set[str]) -> None:
    if re.match(r"(Subscribe|Publish|Confirm|Declare|Connect|Request|Received|Ping|COMMAND)\b", sentence):
        assert sentence in specified()
    else:
        assert any(sentence in each for each in said)


def pattern(sentence: str) -> str:
    """Make a pattern of a sentence: … and words in capitals are any text, single capitals are numbers."""
    literal = re.escape(sentence)
    return re.sub(r"\b[A-Z]\b", r"\\d+", re.sub(r"…|\b[A-Z]{3,}\b", ".+", literal))


MISTAKES = {
    "omq pub t aaaaa --confirm": "Publish TOPIC: a message has at most N octets, this one M",
    "printf aaaaa > five; omq pub t --file five": "its body of … octets is above the limit of …",
    "head -c 100000 /dev/zero > large; omq pub t --file large": (
        "its size is …, and no message may take more than …"
    ),
    "head -c 1100000 /dev/zero | omq pub t -": "…: a line has more than … octets, the most that one may have",
    "omq pub other a --confirm": (
        "COMMAND TOPIC: there is no such topic, and this server wants topics declared"
    ),
    "omq sub t --from 5": "Subscribe TOPIC: there is no message A yet, the next one is B",
    "omq sub jobs --from beginning": "Subscribe TOPIC: a round-robin topic cannot be replayed",
    "omq sub live --from beginning": "Subscribe TOPIC: a transient topic cannot be replayed",
    "omq sub t --credit 1": "Request TOPIC: only a round-robin topic gives credit",
    "omq declare t --delivery round-robin": "Declare TOPIC: the topic exists as TYPES",
    "omq ping --server $PLACE": "… is no address of the form omq://HOST:PORT or omqs://HOST:PORT",
    "omq ping --server omq://a..b": "…: no host can have this name",
    "omq ping --server omq://127.0.0.1:1": "cannot connect to …: …",
    "omq ping --server omqs://$PLACE": "the connection ended without a reason",
    "printf a:b > id; chmod 644 id; omq topics --id-file id; false": (
        "…: other users may read the secret in it; `chmod 600 …` corrects it"
    ),
    "mkdir junk; touch junk/a; omq-server --store junk": "The directory … is not a store: it holds ….",
    "omq-server --listen $PLACE --store own": "cannot listen on …: …",
    "omq-server --store store": "The store … is in use by another process.",
    "omq-server --listen 0.0.0.0:0": (
        "insecure: … can be reached from other machines, and without clients configured every client may do"
        " everything"
    ),
}
"""Scripts that fail, and the heading that describes the error that each of them prints."""

CONFIGURATION = """
allow_undeclared = false
max_message_bytes = 4

[[topics]]
name = "t"

[[topics]]
name = "jobs"
delivery = "round-robin"

[[topics]]
name = "live"
persistence = "transient"
"""


def test_what_the_programs_print_is_on_the_page(tmp_path: Path) -> None:
    with configured_server(tmp_path, CONFIGURATION) as server:
        environment = {"PATH": PATH, "OMQ_SERVER": f"omq://{server.address}", "PLACE": server.address}
        for script, sentence in MISTAKES.items():
            assert sentence in SENTENCES
            printed = output_of_script(f"if ({script}); then exit 1; fi", tmp_path, **environment)
            assert re.search(pattern(sentence), printed), (script, printed)
