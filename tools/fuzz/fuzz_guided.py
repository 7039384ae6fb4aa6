"""The process that atheris runs a target in, guided by the lines and branches that each input reaches.

    python fuzz_guided.py TARGET LIBFUZZER-OPTION...

It is a program of its own because atheris ends its process, and because our modules must be imported under
its eyes.
"""

import sys

import atheris

# Atheris sees the plain codec only; the targets compare the compiled one with it.
with atheris.instrument_imports(
    include=["omq", "omq_storage", "sexpdata", "tomllib"], enable_loader_override=False
):
    from fuzz_targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
