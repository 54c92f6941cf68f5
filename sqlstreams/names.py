"""What may be named, and the limits of text that users hand in."""

from __future__ import annotations

import re
from typing import Final

from sqlstreams.errors import InvalidInput

NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]{0,99}$"
KEY_LIMIT: Final = 512
ERROR_TEXT_LIMIT: Final = 8_192

_PART = r'(?:[^\W\d][\w$]*|"(?:[^"]|"")+")'
_TABLE: Final = re.compile(rf"{_PART}(?:\.{_PART})?\Z")
_NAME = re.compile(NAME_PATTERN.rstrip("$") + r"\Z")


def check_name(field: str, value: object) -> str:
    """Return `value` when it can name a stream or group; raise `InvalidInput` otherwise."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a str, got {type(value).__name__}")
    if not _NAME.match(value):
        raise InvalidInput(field, f"must match {NAME_PATTERN}, got {shorten(value)}")
    return value


def check_key(field: str, value: object) -> str | None:
    """Return `value` when it can be a message or routing key (text of 1 to 512 bytes) or is None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a str, got {type(value).__name__}")
    size = len(encode_text(field, value))
    if not 1 <= size <= KEY_LIMIT:
        raise InvalidInput(field, f"must have 1 to {KEY_LIMIT} bytes, got {size}")
    return value


def check_required_key(field: str, value: object) -> str:
    """Return `value` when it can be a message key."""
    if check_key(field, value) is None:
        raise InvalidInput(field, "must be given")
    return str(value)


def check_schema(value: object) -> str:
    """Return `value` when PostgreSQL can have a schema of this name; any such name will do."""
    if not isinstance(value, str):
        raise InvalidInput("schema", f"must be a str, got {type(value).__name__}")
    size = len(encode_text("schema", value))
    if not 1 <= size <= 63:
        raise InvalidInput("schema", f"must have 1 to 63 bytes, got {size}")
    if value.startswith("pg_"):
        raise InvalidInput("schema", f"must not begin with pg_, which PostgreSQL keeps for itself, got {value!r}")
    return value


def channel(schema: str) -> str:
    """Return the name of the channel on which an installation says what is new; PostgreSQL allows 63 bytes."""
    return f"sqlstreams:{schema}".encode()[:63].decode(errors="ignore")


def check_identifier(field: str, value: object) -> str:
    """Return `value` when it can name a column, letter by letter: it is quoted where it is used."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a str, got {type(value).__name__}")
    size = len(encode_text(field, value))
    if not 1 <= size <= 63:
        raise InvalidInput(field, f"must have 1 to 63 bytes, got {size}")
    return value


def check_table(field: str, value: object) -> str:
    """Return `value` when it is a table's name as SQL has it: with its schema or without, quoted where needed."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a str, got {type(value).__name__}")
    encode_text(field, value)
    if not _TABLE.match(value):
        raise InvalidInput(
            field, f'must be a name as in SQL, such as orders, sales.orders or "My Orders", got {shorten(value)}'
        )
    return value


def encode_text(field: str, value: str) -> bytes:
    """Return `value` as UTF-8; refuse what PostgreSQL cannot store as text (NUL, lone surrogates)."""
    if "\x00" in value:
        raise InvalidInput(field, "must not contain the character NUL")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, f"must not contain a lone surrogate, found one at {error.start}") from None


def clean_text(text: str, *, limit: int = ERROR_TEXT_LIMIT) -> str:
    """Return `text` so that PostgreSQL can store it: no NUL, no lone surrogate, at most `limit` characters."""
    if len(text) > limit:
        text = f"{text[: limit - 60]} … ({len(text) - limit + 60} more characters)"
    cleaned = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    return cleaned[:limit]


def shorten(value: str) -> str:
    """Return a repr of `value` that is short enough for an error message."""
    return repr(value) if len(value) <= 60 else f"{value[:57]!r}… ({len(value)} characters)"
