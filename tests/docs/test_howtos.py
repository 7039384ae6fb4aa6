"""docs/howto: the commands of the pages are run on a server, and the words of the log exist."""

import ast
import json
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import PATH, output_of_script
from server_command import RunningServer, configured_server, running_server

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto"


def blocks(page: str, language: str) -> list[str]:
    found: list[str] = re.findall(
        rf"^( *```{language}\n.*?^ *```)$", (HOWTO / page).read_text(), re.MULTILINE | re.DOTALL
    )
    return ["\n".join(textwrap.dedent(text).splitlines()[1:-1]) + "\n" for text in found]


def run(script: str, folder: Path, server: RunningServer, **environment: str) -> str:
    """Return the output of a script, with the server's port in place of the default one."""
    address = f"omq://127.0.0.1:{server.port}"
    script = script.replace("7730", str(server.port))
    return output_of_script(script, folder, PATH=PATH, OMQ_SERVER=address, **environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("howto")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with running_server("--listen", "127.0.0.1:0", "--store", folder / "omq-store") as running:
        yield running


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_monitor(server: RunningServer, folder: Path) -> None:
    looked, asked, tried = (run(script, folder, server) for script in blocks("monitor.md", "sh"))
    assert "PROTOCOL" in looked
    assert re.search(r"^omq_connections_limit \d", asked, re.MULTILINE)
    assert tried == ""


def test_upgrade(server: RunningServer, folder: Path) -> None:
    (backup,) = blocks("upgrade.md", "sh")
    run("mkdir -p backups; " + backup, folder, server)
    assert (folder / "backups" / "before-upgrade" / "format").exists()


def test_replay(server: RunningServer, folder: Path) -> None:
    run("printf '%s\n' a b c | omq pub prices - --confirm", folder, server)
    again, copied = blocks("replay.md", "sh")
    assert run(again, folder, server) == 'a\nb\nc\n{"id": 3, "topic": "prices", "body": "c"}\na\nb\nc\n'
    with running_server("--listen", "127.0.0.1:0", "--store", folder / "other") as other:
        said = run(copied, folder, server, OTHER=f"omq://127.0.0.1:{other.port}")
    assert said.endswith("a\nb\nc\n")


def test_from_rabbitmq(folder: Path) -> None:
    (declare,) = blocks("from-rabbitmq.md", "sh")
    (program,) = blocks("from-rabbitmq.md", "python")
    (configuration,) = blocks("../AMQP.md", "toml")
    hashed = output_of_script("printf guest | omq-server --hash-secret", PATH=PATH).strip()
    configuration = re.sub(r"^listen = .*$", "", configuration, flags=re.MULTILINE)
    configuration = configuration.replace("$scrypt$ln=14,r=8,p=1$...", hashed)
    (folder / "new").mkdir()
    with (
        running_server("--listen", "127.0.0.1:0", "--store", folder / "rabbitmq") as old,
        configured_server(folder / "new", configuration) as new,
    ):

        def run_there(script: str, server: RunningServer) -> str:
            for address, real in (("127.0.0.1:5672", server.address), ("127.0.0.1:5673", old.address)):
                script = script.replace(address, real)
            return run(script, folder, server)

        export, _ = declare.split("\n", 1)
        run_there(declare, new)
        assert "audit" in run_there(f"{export}; omq queues list", new)
        run_there(declare + "printf '%s\\n' a b | omq pub audit - --header source=web", old)
        assert run_there(f"python - <<'END'\n{program}END", new) == "2 messages are moved\n"
        assert run_there(f"{export}; omq queues peek audit --format json", old) == ""
        moved = run_there(f"{export}; omq sub audit --dmp --count 2 --format json", new).splitlines()
    assert [json.loads(line)["body"] for line in moved] == ["a", "b"]
    assert all('"source": "web"' in line for line in moved), moved


@pytest.mark.parametrize("page", ["from-nats.md", "from-redis-streams.md", "from-rabbitmq.md", "spark.md"])
def test_the_programs_are_python(page: str) -> None:
    programs = blocks(page, "python")
    assert programs
    for program in programs:
        ast.parse(program)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_secure(server: RunningServer, folder: Path) -> None:
    certificate, secret, configuration, start, publish, refused = blocks("secure.md", "sh")
    (shown,) = blocks("secure.md", "text")
    run(certificate + secret, folder, server)
    run(configuration.replace("localhost:7730", "127.0.0.1:0"), folder, server)
    assert start == "omq-server --config omq.toml\n"
    file = folder / "omq.toml"
    file.write_text(
        file.read_text().replace('"server.', f'"{folder}/server.')
    )  # the test starts it elsewhere
    with running_server("--config", file, "--store", folder / "secure") as secured:
        assert run(publish, folder, secured) == ""
        address, _ = publish.split("\n", 1)
        assert run(f"{address}\n{refused}", folder, secured) == shown


def test_the_words_of_the_log_exist() -> None:
    page = (HOWTO / "monitor.md").read_text()
    words: list[str] = re.findall(r"^\| `([^`]+)` \|", page.partition("## Read the log")[2], re.MULTILINE)
    assert len(words) > 5
    code = "".join(
        re.sub(r'"\s*f?"', "", file.read_text())
        for package in ("omq", "storage/omq_storage")
        for file in (ROOT / package).rglob("*.py")
    )
    for each in words:
        assert each in code, each
