"""docs/TUTORIAL.md: its commands are run, and their output is compared with what it shows."""

import re
import shlex
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from ports import reserved_port
from programs import PATH, output_of_script
from server_command import RunningServer, running_server

TUTORIAL = Path(__file__).parents[2] / "docs" / "TUTORIAL.md"
BLOCK = re.compile(r"^```(sh|text|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """A reader of the tutorial who follows its steps, with two terminals."""

    def __init__(self, folder: Path, terminals: ExitStack) -> None:
        self._folder = folder
        self._terminals = terminals
        self._server: RunningServer | None = None
        self._port = terminals.enter_context(reserved_port())

    def start(self, line: str) -> str:
        """Start the server in the first terminal. Returns what it prints."""
        _, *options = shlex.split(line)
        option = options.index("--store") + 1
        options[option] = str(self._folder / options[option])
        server = running_server(*options, "--listen", f"127.0.0.1:{self._port}")
        self._server = self._terminals.enter_context(server)
        return self._here(self._server.ready, back=True)

    def kill(self) -> None:
        assert self._server is not None
        self._server.stop(signal.SIGKILL)

    def run(self, script: str) -> str:
        """Run a script in the second terminal. Returns its output."""
        address = f"omq://127.0.0.1:{self._port}"
        return output_of_script(self._here(script), self._folder, PATH=PATH, OMQ_SERVER=address)

    def save(self, name: str, text: str) -> None:
        (self._folder / name).write_text(self._here(text))

    def _here(self, text: str, *, back: bool = False) -> str:
        """Replace the port of the tutorial by that of the server, or back."""
        ports = ("7730", str(self._port))
        return text.replace(*(ports[::-1] if back else ports))


def without_octets(output: str) -> str:
    """Remove the column OCTETS of `omq topics`, which depends on when the server joined small blocks."""
    return re.sub(r"(weak|strong)( +\d+) +\d+", r"\1\2", output)


@pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("nc", "xxd")), reason="nc or xxd is not installed"
)
def test_every_command_of_the_tutorial_prints_the_shown_output(tmp_path: Path) -> None:
    blocks: list[tuple[str, str]] = BLOCK.findall(TUTORIAL.read_text())
    shown = 0
    with ExitStack() as terminals:
        reader = Reader(tmp_path, terminals)
        printed = ""
        for language, text in blocks:
            match language:
                case "text":
                    assert without_octets(printed) == without_octets(text)
                    printed = ""
                    shown += 1
                case "python":
                    reader.save("weather.py", text)
                case _:
                    assert not printed, f"the tutorial does not show {printed!r}"
                    if text.startswith("omq-server"):
                        printed = reader.start(text)
                        if shown:  # its first start is shown, and the second one is the same
                            printed = ""
                    elif text.startswith("pkill"):
                        reader.kill()
                    else:
                        printed = reader.run(text)
        assert not printed
    assert shown == len([language for language, _ in blocks if language == "text"]) > 5
