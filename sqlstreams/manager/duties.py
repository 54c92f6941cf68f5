"""Every duty of the manager, listed once."""

from __future__ import annotations

from sqlstreams.database import AsyncDatabase
from sqlstreams.manager.deadlines import DeadlineProducers
from sqlstreams.manager.duty import Duty
from sqlstreams.manager.retention import Retention
from sqlstreams.manager.schedules import ScheduleProducer
from sqlstreams.manager.upkeep import Compaction, IdempotencyKeys, Leases, Partitions, Statistics
from sqlstreams.wake import Notifier


def make_duties(database: AsyncDatabase, notifier: Notifier) -> list[Duty]:
    """Return the duties, each with what it keeps between its batches. Their names are in the table duty_status too."""
    return [
        DeadlineProducers(database, notifier),
        ScheduleProducer(database, notifier),
        Partitions(database),
        Leases(database),
        Retention(database),
        IdempotencyKeys(database),
        Statistics(database),
        Compaction(database),
    ]
