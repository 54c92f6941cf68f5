"""Every duty of the manager, listed once."""

from __future__ import annotations

from msgspec import Struct

from sqlstreams.database import AsyncDatabase
from sqlstreams.manager.duty import Duty
from sqlstreams.manager.lease import Lease
from sqlstreams.manager.retention import Retention
from sqlstreams.manager.upkeep import Leases, Partitions, Statistics


class Office(Struct, frozen=True):
    """What a duty may need: the database, and the lease whose term it can prove in its transactions."""

    database: AsyncDatabase
    lease: Lease


def make_duties(office: Office) -> list[Duty]:
    """Return the duties, each with what it keeps between its batches. Their names are in the table duty_status too."""
    return [
        Partitions(office.database),
        Leases(office.database),
        Retention(office.database),
        Statistics(office.database),
    ]
