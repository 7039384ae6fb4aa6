"""Programs and scripts that must succeed, run to their end."""

import os
import subprocess
import sys
from pathlib import Path

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
"""The search path, with the commands of this environment first."""


def output_of(*command: str | Path, cwd: Path | None = None, seconds: float = 60, **environment: str) -> str:
    """Run a program, with these variables in its environment. Return what it prints, errors included."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=os.environ | environment,
        timeout=seconds,
        check=False,
    )
    printed = done.stdout.decode()
    assert done.returncode == 0, printed
    return printed


def output_of_script(script: str, cwd: Path | None = None, seconds: float = 60, **environment: str) -> str:
    """Run a script in bash, up to the first command that fails. Otherwise do as `output_of`."""
    return output_of("bash", "-euo", "pipefail", "-c", script, cwd=cwd, seconds=seconds, **environment)
