"""Statements of messages that were produced for later: sql/delay.sql."""

from __future__ import annotations

from uuid import UUID

from msgspec import Struct

from sqlstreams.model import WaitingMessage
from sqlstreams.statements.consume import Recorded
from sqlstreams.statements.statement import Family, Identified, Statement, of_family


class CancelledDelivery(Struct, frozen=True):
    """What became of a message in one group when it was cancelled, and the key that it kept from others there."""

    group: str
    group_id: int
    key: str | None
    outcome: str


def wait_until_due(family: Family, *, group_id: int, token: UUID) -> Statement[Recorded]:
    return of_family("wait_until_due", family, Recorded, {"group_id": group_id, "token": token})


def mark_cancelled(family: Family, *, message_id: int) -> Statement[Identified]:
    return of_family("mark_cancelled", family, Identified, {"message_id": message_id})


def cancel_deliveries(family: Family, *, message_id: int) -> Statement[CancelledDelivery]:
    return of_family("cancel_deliveries", family, CancelledDelivery, {"message_id": message_id})


def list_waiting(family: Family, *, of_group: int | None, limit: int) -> Statement[WaitingMessage]:
    return of_family("list_waiting", family, WaitingMessage, {"of_group": of_group, "limit": limit})
