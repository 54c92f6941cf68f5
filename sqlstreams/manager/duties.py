"""Every duty of the manager, listed once."""

from __future__ import annotations

from msgspec import Struct

from sqlstreams import acts
from sqlstreams.database import AsyncDatabase
from sqlstreams.errors import LeaseLost
from sqlstreams.manager.deadlines import DeadlineProducers
from sqlstreams.manager.duty import Duty
from sqlstreams.manager.lease import Lease
from sqlstreams.manager.retention import Retention
from sqlstreams.manager.schedules import ScheduleProducer
from sqlstreams.manager.upkeep import Compaction, IdempotencyKeys, Leases, Partitions, Statistics
from sqlstreams.statements import Act
from sqlstreams.wake import Notifier


class Office(Struct, frozen=True):
    """What a duty may need: the database, who wakes consumers, and the lease under which it is done."""

    database: AsyncDatabase
    lease: Lease
    notifier: Notifier

    def prove_term(self) -> Act[None]:
        """Refuse, within a transaction, to go on when the lease is not ours any more. Raises `LeaseLost`."""
        term = self.lease.term
        if term is None or not (yield from acts.prove_term(self.database.schema, term)):
            raise LeaseLost("this process does not run the manager any more")


def make_duties(office: Office) -> list[Duty]:
    """Return the duties, each with what it keeps between its batches. Their names are in the table duty_status too."""
    return [
        DeadlineProducers(office.database, office.notifier),
        ScheduleProducer(office.database, office.notifier),
        Partitions(office.database),
        Leases(office.database),
        Retention(office.database),
        IdempotencyKeys(office.database),
        Statistics(office.database),
        Compaction(office.database),
    ]
