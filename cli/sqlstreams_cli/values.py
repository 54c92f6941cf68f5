"""Values as people type and read them: durations, positions in a stream, times, sizes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")


def parse_duration(text: str, *, option: str) -> timedelta:
    """Read a duration such as 500ms, 10s, 5m, 1h30m or 2d."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise typer.BadParameter(
            f"must be a duration such as 500ms, 10s, 5m, 1h30m or 2d, got {text!r}", param_hint=option
        )
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError:
        raise typer.BadParameter(f"is longer than any duration, got {text!r}", param_hint=option) from None


def parse_optional_duration(text: str | None, *, option: str) -> timedelta | None:
    """Read a duration, if there is one."""
    return None if text is None else parse_duration(text, option=option)


def parse_duration_bounds(text: str | None, *, option: str) -> tuple[timedelta | None, timedelta | None]:
    """Read the least and the most of a duration, such as 1s..5m or ..5m."""
    low, high = _parse_bounds(text, option=option)
    return parse_optional_duration(low, option=option), parse_optional_duration(high, option=option)


def parse_count_bounds(text: str | None, *, option: str) -> tuple[int | None, int | None]:
    """Read the least and the most of a count, such as 0..20 or 3.. without a most."""
    low, high = _parse_bounds(text, option=option)
    return _parse_count(low, option=option), _parse_count(high, option=option)


def _parse_bounds(text: str | None, *, option: str) -> tuple[str | None, str | None]:
    low, dots, high = (".." if text is None else text).partition("..")
    if not dots:
        raise typer.BadParameter(
            f"must be the least and the most, such as 1..5, 1.. or ..5, got {text!r}", param_hint=option
        )
    return low or None, high or None


def _parse_count(text: str | None, *, option: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise typer.BadParameter(f"must bound a whole number, got {text!r}", param_hint=option)
    return int(text)


def parse_position(text: str, *, option: str) -> str | int | datetime:
    """Read a position in a stream: beginning, head, an id, or a time with its zone."""
    if text in ("beginning", "head"):
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    return _parse_time(text, option=option, otherwise="beginning, head, an id or ")


def parse_time(text: str, *, option: str) -> datetime:
    """Read a time with its zone."""
    return _parse_time(text, option=option, otherwise="")


def _parse_time(text: str, *, option: str, otherwise: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"must be {otherwise}a time such as 2026-07-01T10:00Z, got {text!r}", param_hint=option
        ) from None
    if at.utcoffset() is None:
        raise typer.BadParameter(f"needs a zone, for example {text}Z for UTC", param_hint=option)
    return at


def describe_duration(duration: timedelta) -> str:
    """Write a duration for people, to two units at most."""
    seconds = duration.total_seconds()
    if abs(seconds) < 1:
        return f"{seconds * 1_000:.0f} ms" if seconds else "0 s"
    if abs(seconds) < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"


def describe_time(at: datetime) -> str:
    """Write a time for people, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{at.microsecond // 1_000:03}Z"


def describe_size(size: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1_024:
            return f"{size:.1f}".removesuffix(".0") + f" {unit}"
        size /= 1_024
    return f"{size:.1f} TiB"


def printable(text: str) -> str:
    """Write what a terminal could take for a command as an escape."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
