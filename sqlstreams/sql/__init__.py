"""The SQL of the library: statements under names in .sql files, filled in with validated identifiers only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import count
from types import MappingProxyType
from typing import Final

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PLACES = re.compile(r"'\{schema\}\.|\{schema_literal\}|\{schema\}|\{stream\}|\$sqlstreams\$")
_NO_PLACES: Final[Mapping[str, str]] = MappingProxyType({})
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


def quote_identifier(name: str) -> str:
    """Quote `name` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Quote `text` as an SQL string literal, under any setting of standard_conforming_strings."""
    return ("E" if "\\" in text else "") + "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def fill(text: str, *, schema: str, stream: int | None, places: Mapping[str, str] = _NO_PLACES) -> str:
    """Fill in `{schema}`, `{schema_literal}` and `{stream}`: in a quoted literal the schema is escaped for it.

    `places` are further names in braces, and what stands for each. One pass, since a schema may be called `{stream}`;
    and the quotes of a function's body must not occur in its name.
    """
    identifier = quote_identifier(schema)
    values = {
        "'{schema}.": "'" + identifier.replace("'", "''") + ".",
        "{schema_literal}": quote_literal(schema),
        "{schema}": identifier,
        "{stream}": "{stream}" if stream is None else str(stream),
        "$sqlstreams$": next(tag for number in count() if (tag := f"$sqlstreams{number or ''}$") not in schema),
    }
    values |= {f"{{{place}}}": value for place, value in places.items()}
    pattern = re.compile("|".join([_PLACES.pattern, *(re.escape(f"{{{place}}}") for place in places)]))
    return pattern.sub(lambda place: values[place[0]], text)


@cache
def statement_texts() -> dict[str, str]:
    """Return every named statement of the .sql files, without its comments."""
    texts: dict[str, str] = {}
    for resource in sorted(files(__name__).iterdir(), key=lambda each: each.name):
        if resource.name.endswith(".sql"):
            _, *parts = _NAME.split(resource.read_text(encoding="utf-8"))
            for name, text in zip(parts[::2], parts[1::2], strict=True):
                if name in texts:
                    raise AssertionError(f"two statements are named {name}")
                texts[name] = _COMMENT.sub("", text).strip()
    return texts


@cache
def render(name: str, schema: str, stream: int | None = None) -> bytes:
    """Return statement `name` for one schema and, where it belongs to a stream's family, one stream."""
    # The placeholders are psycopg's, so a percent sign in a schema's name must be doubled.
    return fill(statement_texts()[name], schema=schema.replace("%", "%%"), stream=stream).encode()


@cache
def render_rows(name: str, schema: str, places: tuple[tuple[str, str], ...]) -> bytes:
    """Return statement `name` for the rows of a user's table; `places` are quoted identifiers and made of such."""
    doubled = {place: value.replace("%", "%%") if place != "narrow" else value for place, value in places}
    return fill(statement_texts()[name], schema=schema.replace("%", "%%"), stream=None, places=doubled).encode()
