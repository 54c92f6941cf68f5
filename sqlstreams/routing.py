"""Bindings: the patterns of routing keys by which a consumer group chooses its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlstreams.errors import InvalidInput

_MOST: Final = 100
_LONGEST: Final = 512


def check_bindings(field: str, bindings: object) -> tuple[str, ...]:
    """Return `bindings` sorted and each once, when they are up to 100 patterns; None and an empty list are none."""
    if bindings is None:
        return ()
    if isinstance(bindings, str) or not isinstance(bindings, Sequence):
        raise InvalidInput(field, f"must be a list of patterns, got {type(bindings).__name__}")
    if len(bindings) > _MOST:
        raise InvalidInput(field, f"must be at most {_MOST} patterns, got {len(bindings)}")
    return tuple(sorted({_check_pattern(field, pattern) for pattern in bindings}))


def like_pattern(binding: str) -> str:
    """Return the pattern of SQL's LIKE that matches the same keys: `*` is any run of characters, the rest itself."""
    literal = binding.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return literal.replace("*", "%")


def like_patterns(bindings: Sequence[str]) -> list[str] | None:
    """Return what a group with these bindings takes, None for everything."""
    return [like_pattern(binding) for binding in bindings] or None


def _check_pattern(field: str, pattern: object) -> str:
    if not isinstance(pattern, str):
        raise InvalidInput(field, f"must be a list of texts, got a {type(pattern).__name__} in it")
    try:
        size = len(pattern.encode())
    except UnicodeEncodeError:
        raise InvalidInput(field, "must not contain a lone surrogate") from None
    if "\x00" in pattern:
        raise InvalidInput(field, "must not contain the character NUL")
    if not 1 <= size <= _LONGEST:
        raise InvalidInput(field, f"must be patterns of 1 to {_LONGEST} bytes, got one of {size}")
    return pattern
