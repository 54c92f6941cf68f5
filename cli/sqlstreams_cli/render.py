"""What a command writes on stdout: JSON for programs, tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from sqlstreams_cli.values import describe_duration, describe_size, describe_time, printable

if TYPE_CHECKING:
    from rich.table import Table

    from sqlstreams import StoredMessage

Fields = Mapping[str, object]

_WIDE = 100_000
# What GroupStatus counts no further than this.
_BOUNDED = ("waiting", "ready", "inflight", "deferred", "unread", "dead", "superseded")
_MOST_COUNTED = 100_000


def fields(*values: Struct) -> dict[str, object]:
    """Return the fields of several values of the library as those of one."""
    return {name: getattr(value, name) for value in values for name in value.__struct_fields__}


def print_json(value: object) -> None:
    """Write one JSON document: times in UTC, durations in seconds, the names of the library."""
    print(msgspec.json.format(msgspec.json.encode(_plain(value)), indent=2).decode())


def print_json_line(value: object) -> None:
    """Write one JSON document on one line."""
    print(msgspec.json.encode(_plain(value)).decode())


def print_message(message: StoredMessage) -> None:
    """Write one message for people: id, time, key, payload."""
    key = "-" if message.key is None else printable(message.key)
    payload = printable(_one_line(message.payload).decode("utf-8", "backslashreplace"))
    print(f"{message.id:>8}  {describe_time(message.created_at)}  {key}  {payload}")


def print_fields(values: Fields) -> None:
    """Write one thing for people, a field a line."""
    table = _table()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(_title(name), _cell(name, value))
    _print(table)


def print_table(rows: Iterable[Fields], columns: Sequence[str]) -> None:
    """Write many things for people, one a line."""
    rows = list(rows)
    table = _table(show_header=True)
    for name in columns:
        numbers = all(isinstance(row[name], int | float) for row in rows)
        table.add_column(_title(name), justify="right" if numbers and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(name, row[name]) for name in columns))
    _print(table)


def _plain(value: Any) -> object:
    match value:
        case Struct():
            return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        case datetime():
            return value.astimezone(UTC)
        case timedelta():
            return value.total_seconds()
        case bytes():
            return msgspec.Raw(_one_line(value))
        case Mapping():
            return {name: _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value


def _one_line(payload: bytes) -> bytes:
    try:
        return msgspec.json.format(bytes(payload), indent=-1)
    except msgspec.DecodeError:
        # PostgreSQL stores halves of surrogate pairs when plain SQL hands them in.
        return json.dumps(json.loads(payload)).encode()


def _table(*, show_header: bool = False) -> Table:
    from rich.table import Table

    return Table(box=None, show_header=show_header, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _print(table: Table) -> None:
    from rich.console import Console

    # A pipe has no width: whoever reads it should get whole lines.
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _title(name: str) -> str:
    return name.replace("_", " ")


def _cell(name: str, value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() if name in ("size", "max_payload"):
            return describe_size(value)
        case int() if name in _BOUNDED and value == _MOST_COUNTED:
            return f"{value:,} or more"
        case int():
            return f"{value:,}"
        case datetime():
            return describe_time(value)
        case timedelta():
            return describe_duration(value)
        case list() | tuple():
            return "\n".join(_cell(name, inner) for inner in value) or "-"
        case _:
            return "\n".join(printable(line) for line in str(value).split("\n"))
