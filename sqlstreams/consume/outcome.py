"""What became of one delivery, decided in one place."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import Final

from msgspec import Struct

from sqlstreams.codec import DecodeFailed
from sqlstreams.errors import Delay, Terminal
from sqlstreams.names import clean_text

_LONGEST: Final = timedelta(days=3650)


class Outcome(Struct, frozen=True):
    """A delivery that did not succeed: `failed` (again later), `delayed` (again after `pause` seconds) or `dead`."""

    kind: str
    error_type: str
    error: str
    pause: float = 0.0


SPENT = Outcome("spent", "", "")
"""Not a delivery's end: the message failed more often than it may, and is dead with the error that it has."""

DEFERRED = Outcome("deferred", "", "")
"""Not a delivery's end: the message waits in the exception queue until an earlier one of its key is done or dead."""

SUPERSEDED = Outcome("superseded", "", "")
"""Not a delivery: the message takes part in compaction, and a greater one of its key came before a handler began it."""

UNREAD = Outcome("unread", "", "")
"""Not a delivery: the message waits in the exception queue for a process that can read its schema version."""

UNDONE = Outcome("undone", "", "", pause=0.5)
"""Not a delivery: the connection of the handler's transaction broke, and the message comes again uncharged."""


def decide(error: BaseException) -> Outcome:
    """Return what a handler's exception means for its message. Never fails, whatever the exception does."""
    match error:
        case Delay() if (pause := _pause(error)) is not None:
            return Outcome("delayed", "Delay", describe(error), pause=pause)
        case Terminal():
            return Outcome("dead", "Terminal", describe(error))
        case DecodeFailed():
            return Outcome("dead", "DecodeFailed", describe(error))
        case _:
            return Outcome("failed", clean_text(type(error).__name__, limit=200), describe(error))


def _pause(error: Delay) -> float | None:
    # A subclass may have gone past the constructor of Delay; without a length of time it is a failure like any other.
    try:
        return error.by.total_seconds() if timedelta(0) <= error.by <= _LONGEST else None
    except Exception:
        return None


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
