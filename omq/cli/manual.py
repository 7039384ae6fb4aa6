"""Manual pages, in the language of man(7), from the parser of a command line."""

import argparse
from collections.abc import Iterator, Sequence

from omq.cli.command_line import commands_of
from omq.version import VERSION


def manual_page(parser: argparse.ArgumentParser, section: int, see_also: Sequence[str]) -> str:
    """Return the manual page of a program, with one part for each of its commands."""
    return "\n".join(_page(parser, section, see_also)) + "\n"


def _page(parser: argparse.ArgumentParser, section: int, see_also: Sequence[str]) -> Iterator[str]:
    name = parser.prog
    summary, _, rest = (parser.description or "").partition("\n\n")
    yield f'.TH {name.upper()} {section} "" "omq {VERSION}" "omq"'
    yield ".SH NAME"
    yield f"{_escaped(name)} \\- {_escaped(summary.rstrip('.').replace(chr(10), ' '))}"
    yield ".SH SYNOPSIS"
    yield from _usage(parser)
    if rest:
        yield ".SH DESCRIPTION"
        yield from _text(rest)
    yield ".SH OPTIONS"
    yield from _options(parser, ())
    commands = list(commands_of(parser))
    if commands:
        yield ".SH COMMANDS"
    general = [action.option_strings for action in parser._actions if action.option_strings]
    for command in commands:
        yield from _command(command, general)
    if parser.epilog:
        yield ".SH NOTES"
        yield from _text(parser.epilog)
    yield ".SH SEE ALSO"
    yield ", ".join(f"\\fB{_escaped(other)}\\fR" for other in see_also)


def _command(parser: argparse.ArgumentParser, general: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the section of a command, without the options that are described for all commands."""
    yield f".SS {_escaped(parser.prog)}"
    yield from _text(parser.description or "")
    yield ".PP"
    yield from _usage(parser)
    yield from _options(parser, general)
    yield ".PP"
    yield from _text(parser.epilog or "")
    for verb in commands_of(parser):
        yield from _command(verb, general)


def _usage(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield ".nf"
    yield from map(_escaped, parser.format_usage().removeprefix("usage: ").rstrip().split("\n"))
    yield ".fi"


def _options(parser: argparse.ArgumentParser, without: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the options and arguments of a parser, without some options, and without its commands."""
    formatter = parser._get_formatter()
    for action in parser._actions:
        if action.help in (None, argparse.SUPPRESS) or isinstance(action, argparse._SubParsersAction):
            continue
        if action.option_strings in without:
            continue
        yield ".TP"
        yield f"\\fB{_escaped(formatter._format_action_invocation(action))}\\fR"
        yield _escaped(" ".join(formatter._expand_help(action).split()))


def _text(text: str) -> Iterator[str]:
    """Yield paragraphs; indented lines stay as they are."""
    filled = True
    for line in text.strip("\n").split("\n"):
        if line.startswith(" ") is filled:
            filled = not filled
            yield ".fi" if filled else ".nf"
        yield _escaped(line) if line else ".PP"
    if not filled:
        yield ".fi"


def _escaped(line: str) -> str:
    """Return a line that roff shows as it is."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line
