"""What one consumption is about: the group it delivers for, and what it shares with its parts."""

from __future__ import annotations

from msgspec import Struct

from sqlstreams.consume.budget import Budgets
from sqlstreams.consume.presence import Presence
from sqlstreams.database import AsyncDatabase
from sqlstreams.model import ConsumerStats
from sqlstreams.statements import Family


class Subject(Struct, frozen=True):
    """One consumer group of one stream, as one process works for it."""

    database: AsyncDatabase
    presence: Presence
    family: Family
    group_id: int
    stream: str
    group: str
    stats: ConsumerStats
    budgets: Budgets

    def __str__(self) -> str:
        return f"group {self.group} of stream {self.stream}"
