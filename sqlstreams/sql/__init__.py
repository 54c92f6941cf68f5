"""The SQL of the library: statements under names in .sql files, filled in with validated identifiers only."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


def quote_identifier(name: str) -> str:
    """Quote `name` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Quote `text` as an SQL string literal, under any setting of standard_conforming_strings."""
    return ("E" if "\\" in text else "") + "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def fill(text: str, *, schema: str, stream: int | None) -> str:
    """Fill in `{schema}`, `{schema_literal}` and `{stream}`: in a quoted literal the schema is escaped for it."""
    identifier = quote_identifier(schema)
    inside_literal = identifier.replace("'", "''")
    text = text.replace("'{schema}.", f"'{inside_literal}.")
    text = text.replace("{schema_literal}", quote_literal(schema)).replace("{schema}", identifier)
    return text if stream is None else text.replace("{stream}", str(stream))


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
