"""What became of one delivery, decided in one place."""

from __future__ import annotations

import traceback

from msgspec import Struct

from sqlstreams.codec import DecodeFailed
from sqlstreams.errors import Delay, Terminal
from sqlstreams.names import clean_text


class Outcome(Struct, frozen=True):
    """A delivery that did not succeed: `failed` (again later), `delayed` (again after `pause` seconds) or `dead`."""

    kind: str
    error_type: str
    error: str
    pause: float = 0.0


def decide(error: BaseException) -> Outcome:
    """Return what a handler's exception means for its message. Never fails, whatever the exception does."""
    match error:
        case Delay():
            return Outcome("delayed", "Delay", describe(error), pause=error.by.total_seconds())
        case Terminal():
            return Outcome("dead", "Terminal", describe(error))
        case DecodeFailed():
            return Outcome("dead", "DecodeFailed", describe(error))
        case _:
            return Outcome("failed", clean_text(type(error).__name__, limit=200), describe(error))


def describe(error: BaseException) -> str:
    """Return the text of an exception with the place it was raised, cleaned so that it can always be stored."""
    try:
        text = str(error) or repr(error)
    except Exception as broken:
        text = f"<its text cannot be had: {type(broken).__name__}>"
    try:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"\nat {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    except Exception:
        place = ""
    return clean_text(text) + clean_text(place, limit=500)
