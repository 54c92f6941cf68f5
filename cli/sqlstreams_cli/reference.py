"""Writes docs/command.md from the command itself: `python -m sqlstreams_cli.reference > docs/command.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from sqlstreams_cli.commands import SHARED
from sqlstreams_cli.main import app

_INTRODUCTION = """\
<!-- Written by `python -m sqlstreams_cli.reference`; a test says when it is out of date. -->

# The command

`sqlstreams NOUN VERB`, with the nouns `system`, `stream`, `consumer`, `dead` and `relay`, and `dev`, `demo`, `doctor`
and `explain` beside them. Every command has `--help`, which ends with a line to paste.

**Which database.** `--database-url`, else the variable `SQLSTREAMS_DATABASE_URL`, else the embedded PostgreSQL of
`sqlstreams dev` when the extra `sqlstreams[embedded]` (or a PostgreSQL on this machine) is there; it then says so.
`--schema`, else `SQLSTREAMS_SCHEMA`, else `sqlstreams`. A password belongs in the variable: others on the
machine can see arguments.

**What it writes.** The answer is on stdout, all else on stderr. With `--json` stdout holds JSON only: one document,
an array for a list, and one document a line for `stream tail`. Fields have the names of the Python API, durations are
numbers of seconds, times are ISO 8601 in UTC, and payloads are embedded as the JSON they are.

**Exit codes.**

| code | meaning |
|---|---|
| 0 | done |
| 1 | it failed, or the thing named is absent |
| 2 | usage: an option, an argument or a value was refused before anything was done |
| 130 | ended by Ctrl-C (a running `dev`, `consumer run` or `relay run` ends with 0) |
| 141 | whoever read the output went away, as in `sqlstreams stream tail invoices --follow \\| head -1` |

An error names its code, and what to do about it: `sqlstreams explain SQL0012`.
"""


def reference() -> str:
    """Return the text of docs/command.md."""
    root = _command_tree()
    parts = [_INTRODUCTION, "## Options of every command\n", "They may stand before the noun or behind the verb.\n"]
    parts += _options(_shared(root))
    plain = [each for each in root.commands.values() if not hasattr(each, "commands")]
    for group in (each for each in root.commands.values() if hasattr(each, "commands")):
        parts += [f"## {group.name}\n", f"{group.help}\n"]
        for each in group.commands.values():
            parts += _describe(f"sqlstreams {group.name} {each.name}", each)
    parts.append("## Beside the nouns\n")
    for each in plain:
        parts += _describe(f"sqlstreams {each.name}", each)
    return "\n".join(parts)


def examples() -> dict[str, str]:
    """Return the example of every command that has one."""
    return {name: example for name, each in _leaves() if (example := _example(each)) is not None}


def _command_tree() -> Any:
    return typer.main.get_command(app)


def _leaves() -> Iterator[tuple[str, Any]]:
    for name, each in _command_tree().commands.items():
        if hasattr(each, "commands"):
            yield from ((f"{name} {verb}", leaf) for verb, leaf in each.commands.items())
        else:
            yield name, each


def _describe(name: str, command: Any) -> Iterator[str]:
    own = [each for each in command.params if each.name not in SHARED.parameters and each.name != "help"]
    arguments = "".join(f" {each.metavar}" for each in own if each.param_type_name == "argument")
    yield f"### {name}{arguments}\n"
    yield f"{inspect.cleandoc(command.help)}\n"
    if (example := _example(command)) is not None:
        yield f"```sh\n{example}\n```\n"
    if own:
        yield from _options(own)


def _options(params: Iterable[Any]) -> Iterator[str]:
    yield "| option | what it does |\n|---|---|"
    for each in params:
        yield f"| {_names(each)} | {each.help}{_default(each)} |"
    yield ""


def _names(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.metavar}`"
    value = "" if param.is_flag else f" {param.metavar}"
    return ", ".join(f"`{option}{value}`" for option in sorted(param.opts, key=len, reverse=True))


def _default(param: Any) -> str:
    if param.required:
        return " Required."
    if param.default is None or param.default is False:
        return ""
    return f" Default: {param.default}."


def _shared(command: Any) -> list[Any]:
    return [each for each in command.params if each.name in SHARED.parameters]


def _example(command: Any) -> str | None:
    _, found, example = (command.epilog or "").partition("Example:\n")
    return example.strip() if found else None


if __name__ == "__main__":
    print(reference(), end="")
