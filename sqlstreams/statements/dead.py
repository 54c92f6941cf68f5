"""Statements of dead letters: sql/dead.sql."""

from __future__ import annotations

import msgspec

from sqlstreams.model import (
    DeadLetter,
    DeliveryRecord,
    Redriven,
)
from sqlstreams.options import MAX_ID, DeadFilter
from sqlstreams.statements.statement import (
    Family,
    Identified,
    Statement,
    of_family,
)


def find_dead_letters(
    family: Family, *, group_id: int, meant: DeadFilter, after: int, limit: int
) -> Statement[Identified]:
    message_ids = meant.ids_behind(after, limit=limit)
    parameters = {
        **msgspec.structs.asdict(meant),
        "group_id": group_id,
        "message_ids": message_ids,
        # Ids that were named lie close together or not; either way the index is read between the first and the last.
        "after": max(after, message_ids[0] - 1) if message_ids else after,
        "through": message_ids[-1] if message_ids else MAX_ID,
        "limit": limit,
    }
    return of_family("find_dead_letters", family, Identified, parameters)


def read_dead_letters(family: Family, *, group_id: int, message_ids: list[int]) -> Statement[DeadLetter]:
    parameters = {"group_id": group_id, "message_ids": message_ids}
    return of_family("read_dead_letters", family, DeadLetter, parameters)


def list_deliveries(family: Family, *, group_id: int, message_id: int, limit: int) -> Statement[DeliveryRecord]:
    parameters = {"group_id": group_id, "message_id": message_id, "limit": limit}
    return of_family("list_deliveries", family, DeliveryRecord, parameters)


def redrive_dead_letters(
    family: Family, *, group_id: int, message_ids: list[int], rate: float | None
) -> Statement[Redriven]:
    parameters = {"group_id": group_id, "message_ids": message_ids, "rate": rate}
    return of_family("redrive_dead_letters", family, Redriven, parameters)


def discard_dead_letters(
    family: Family, *, group_id: int, message_ids: list[int], reason: str
) -> Statement[Identified]:
    parameters = {"group_id": group_id, "message_ids": message_ids, "reason": reason}
    return of_family("discard_dead_letters", family, Identified, parameters)
