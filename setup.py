"""The compiled codec, and the description for package indexes. pyproject.toml has all else about the package.

The codec is optional: where there is no C compiler, or the headers of Python are missing, the build says so
and goes on without it, and the plain functions do its work. With OMQ_REQUIRE_CODEC=1 in the environment such
a build fails: a wheel that is published must have the codec.
"""

import os
import re
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent

# A link or an image of Markdown whose target is a file of this repository.
LINK = re.compile(r"!?\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<file>[^)#\s]+)[^)]*\)")


def description() -> str:
    """Return the README for a package index, where no file stands beside it: files are named, not linked."""

    def named(link: "re.Match[str]") -> str:
        text, file = link["text"], link["file"]
        return text if text.strip("`") == file else f"{text} (`{file}`)"

    readme = LINK.sub(named, (ROOT / "README.md").read_text(encoding="utf-8"))
    return f"{readme.rstrip()}\n\nThe files that this text names are in the source distribution.\n"


# A level of optimization in CFLAGS comes before these arguments to the compiler, and must not be overridden.
optimized = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"]
codec = Extension("omq_storage._codec", ["storage/omq_storage/_codec.pyx"], extra_compile_args=optimized)

# Cython writes its C files into build/, so that the folders of the sources have no generated files.
(made,) = cythonize([codec], build_dir="build")
made.optional = os.environ.get("OMQ_REQUIRE_CODEC", "") in ("", "0")

setup(
    ext_modules=[made],
    long_description=description(),
    long_description_content_type="text/markdown",
)
