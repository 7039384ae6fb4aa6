"""The declarations of the ES module client: TypeScript compares them with programs and with the modules."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from server_command import running_server

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "omq" / "console" / "client"
HERE = Path(__file__).parent / "types"
INSTALLED = Path(sys.prefix) / "typescript" / "node_modules"

OPTIONS = (
    "--noEmit", "--strict", "--target", "esnext", "--types", "node", "--pretty", "false",
)  # fmt: skip

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed"),
    pytest.mark.skipif(
        not (INSTALLED / "typescript").is_dir(),
        reason="TypeScript is not installed: tools/test gets it from npm",
    ),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a program that has installed the client."""
    modules = tmp_path / "node_modules"
    modules.mkdir()
    (modules / "omq-client").symlink_to(CLIENT)
    (modules / "@types").symlink_to(INSTALLED / "@types")
    (tmp_path / "package.json").write_text('{ "type": "module" }')
    return tmp_path


def compiled(project: Path, *arguments: str, unchecked: str = "--skipLibCheck") -> str:
    """Return the errors that the compiler finds in the program, without those of `unchecked` libraries."""
    done = subprocess.run(
        ["node", INSTALLED / "typescript" / "lib" / "tsc.js", *OPTIONS, unchecked, *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode == 0) == (done.stdout == ""), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "resolution",
    [("nodenext", "nodenext", "esnext"), ("bundler", "esnext", "esnext,dom,dom.iterable")],
    ids=["node", "browser"],
)
def test_a_program_is_checked(resolution: tuple[str, str, str], project: Path) -> None:
    text = (HERE / "usage.ts").read_text()
    expected = text.count("@ts-expect-error")
    assert expected >= 6
    (project / "usage.ts").write_text(text)
    (project / "wrong.ts").write_text(text.replace("// @ts-expect-error", "//"))
    how, module, library = resolution
    arguments = ("--moduleResolution", how, "--module", module, "--lib", library, "usage.ts", "wrong.ts")
    errors = [line for line in compiled(project, *arguments).splitlines() if "error TS" in line]
    assert len(errors) == expected
    assert [error for error in errors if not error.startswith("wrong.ts")] == []


def test_the_declarations_agree_with_the_modules(project: Path) -> None:
    (project / "conforms.ts").write_text((HERE / "conforms.ts").read_text().replace("REAL", str(CLIENT)))
    options = ("--moduleResolution", "nodenext", "--module", "nodenext", "--lib", "esnext,dom,dom.iterable")
    # The declarations themselves are checked here. TypeScript has its own library checked.
    unchecked = "--skipDefaultLibCheck"
    assert compiled(project, *options, "--allowJs", "--checkJs", "conforms.ts", unchecked=unchecked) == ""


def test_the_console_has_no_type_error(project: Path) -> None:
    options = ("--moduleResolution", "bundler", "--module", "esnext", "--lib", "esnext,dom,dom.iterable")
    assert compiled(project, *options, "--allowJs", "--checkJs", str(CLIENT.parent / "app" / "main.js")) == ""


def test_the_declarations_have_what_the_server_answers(project: Path) -> None:
    configuration = project / "omq.toml"
    configuration.write_text("")
    with running_server(
        "--listen", "127.0.0.1:0", "--store", project / "store", "--config", configuration
    ) as server:
        configuration.write_text("nonsense = 7\n")
        server.process.send_signal(1)  # its answer is an error in the log
        values = subprocess.run(
            ["node", HERE / "values.mjs"],
            env=os.environ | {"OMQ_ADDRESS": f"omq://{server.address}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
    for kind in ("Began", "Server", "Warnings", "Topics", "Gone", "Complete"):
        assert f'"kind": "{kind}"' in values
    (project / "values.ts").write_text(values)
    (project / "wrong.ts").write_text(values.replace('"messagesIn"', '"messages_in"'))
    options = ("--moduleResolution", "nodenext", "--module", "nodenext", "--lib", "esnext")
    errors = compiled(project, *options, "values.ts", "wrong.ts")
    assert "messages_in" in errors
    assert "values.ts" not in errors
