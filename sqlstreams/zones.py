"""Time zones as the package tzdata has them; the system's copy and the process's search path are left alone."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import metadata
from importlib.resources import files
from zoneinfo import ZoneInfo

from sqlstreams.errors import InvalidInput
from sqlstreams.names import encode_text, shorten


def zone_data_version() -> str:
    """Return the version of the package tzdata, such as "2026.6". Slots computed with another one may be elsewhere."""
    return metadata.version("tzdata")


def check_timezone(field: str, value: object) -> str:
    """Return `value` when it is the name of a zone, letter by letter; else refuse it and tell the nearest names."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a str, got {type(value).__name__}")
    encode_text(field, value)
    if value not in _names():
        raise InvalidInput(field, f"must be a zone such as Europe/Berlin, got {shorten(value)}{_suggestion(value)}")
    return value


@cache
def zone(name: str) -> ZoneInfo:
    """Return the zone of a name that `check_timezone` has let through."""
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as content:
        return ZoneInfo.from_file(content, key=name)


@cache
def _names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())


def _suggestion(value: str) -> str:
    """People write the name in small letters, with a slip, or only the city."""
    known: dict[str, str] = {}
    for name in sorted(_names()):
        known[name.lower()] = name
        known.setdefault(name.lower().rpartition("/")[2], name)
    wanted = value.lower().replace(" ", "_")[:100]
    close = dict.fromkeys(known[each] for each in ([wanted] if wanted in known else get_close_matches(wanted, known)))
    return f"; did you mean {' or '.join(close)}?" if close else ""
