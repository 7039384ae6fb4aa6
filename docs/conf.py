"""The settings with which Sphinx builds `docs/` as a site: see `tools/site` and tests/docs/test_site.py.

The documents are written for readers of the repository, too. So some of what they contain needs an answer
here: links to files outside of `docs/`, and blocks in languages of ours.
"""

import argparse
import os
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util import logging

from omq.cli.command_line import every_parser
from omq.cli.reference import program

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

os.environ["COLUMNS"] = "86"  # the width of the help of commands
os.environ["NO_COLOR"] = "1"

project = "omq"
author = "The omq authors"
release = version = metadata.version("omq-server")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["conf.py"]
language = "en"

html_theme = "furo"
html_title = "omq"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False

myst_heading_anchors = 4
"""Headings have the anchors that they have in a repository's view of the file."""

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
default_role = "code"
autodoc_mock_imports = ["pyarrow", "pyspark"]
"""The packages that the extras need, and the site does not."""


class CommandHelp(Directive):
    """The `--help` of one of our programs and of its commands, each in a section of its own."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return [self._section(parser) for parser in every_parser(program(self.arguments[0]))]

    def _section(self, parser: argparse.ArgumentParser) -> nodes.section:
        section = nodes.section(names=[parser.prog])
        section += nodes.title(text=parser.prog)
        section += nodes.literal_block(text=parser.format_help(), language="text")
        self.state.document.note_implicit_target(section, section)
        return section


def adapt(app: Sphinx, name: str, source: list[str]) -> None:
    """Change the text of a document before it is parsed: links to files that are not part of the site, and in
    the index the list of documents that it does not name.
    """

    def outside(link: re.Match[str]) -> str:
        words, target = link.groups()
        if not (DOCS / Path(name).parent / target).resolve().is_relative_to(DOCS):
            if not (DOCS / Path(name).parent / target).exists():
                logging.getLogger(__name__).warning("%s: there is no file %s", name, target)
            file = (DOCS / Path(name).parent / target).resolve().relative_to(ROOT)
            return words if str(file) in words else f"{words} (`{file}` in the source)"
        return link[0]

    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)", outside, source[0])
    if name == "index":
        known = set(re.findall(r"^[\w./-]+$", source[0], re.MULTILINE))
        others = sorted(page for page in app.env.found_docs if page not in known | {"index"})
        source[0] = source[0].replace("(others)", "\n".join(others))


def adapt_docstring(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Change a docstring, which has code in backticks as in Markdown, to reStructuredText."""
    parts = re.split(r"(`[^`]+`)", "\n".join(lines))
    parts[::2] = [re.sub(r"[*|]|_\b", r"\\\g<0>", words) for words in parts[::2]]
    # "`Message`s" needs a mark of where the code ends.
    parts[2::2] = [re.sub(r"^(?=\w)", r"\\ ", words) for words in parts[2::2]]
    lines[:] = "".join(parts).split("\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Set up the documentation for Sphinx, which calls this."""
    for ours in ("omq", "errors"):
        app.add_lexer(ours, TextLexer)
    app.add_directive("command-help", CommandHelp)
    app.connect("source-read", adapt)
    app.connect("autodoc-process-docstring", adapt_docstring)
    return {"parallel_read_safe": True}
