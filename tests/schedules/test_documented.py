"""What docs/ tell of schedules: the hard days of a year, and one night row by row."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec import Struct

from sqlstreams import AsyncClient, Client, cron
from sqlstreams.zones import zone
from tests.schedules.ground import duty, query
from tests.support import consuming, eventually

SPRING, AUTUMN = date(2026, 3, 29), date(2026, 10, 25)


class InvoiceRun(Struct, frozen=True):
    region: str


def local_slots(expression: str, timezone: str, day: date) -> list[str]:
    start, end = (datetime.combine(each, time(), zone(timezone)) for each in (day, day + timedelta(days=1)))
    slots = cron.between(expression, timezone, start - timedelta(seconds=1), end - timedelta(seconds=1))
    return [f"{slot.astimezone(zone(timezone)):%H:%M%z}" for slot in slots]


@pytest.mark.parametrize(
    ("expression", "spring", "autumn"),
    [
        ("30 2 * * *", ["03:00+0200"], ["02:30+0200"]),
        ("0 2 * * *", ["03:00+0200"], ["02:00+0200"]),
        ("15 1-3 * * *", ["01:15+0100", "03:00+0200", "03:15+0200"], ["01:15+0200", "02:15+0200", "03:15+0100"]),
        ("0,30 2,3 * * *", ["03:00+0200", "03:30+0200"], ["02:00+0200", "02:30+0200", "03:00+0100", "03:30+0100"]),
        ("0 * * * *", 23, 25),
        ("*/15 * * * *", 92, 100),
        ("30 */2 * * *", 11, 13),
        ("@every 15m", 92, 100),
    ],
)
def test_the_table_of_the_hard_days(expression: str, spring: Any, autumn: Any) -> None:
    for day, expected in ((SPRING, spring), (AUTUMN, autumn)):
        slots = local_slots(expression, "Europe/Paris", day)
        assert (len(slots) if isinstance(expected, int) else slots) == expected


def test_nine_on_weekdays_in_new_york_stays_at_nine_over_both_changes() -> None:
    year = datetime(2026, 1, 1, tzinfo=UTC)
    slots = list(cron.between("0 9 * * 1-5", "America/New_York", year, year + timedelta(days=365)))
    local = [slot.astimezone(zone("America/New_York")) for slot in slots]
    assert {each.time() for each in local} == {time(9)}
    assert [each.date() for each in local] == [
        day for day in (date(2026, 1, 1) + timedelta(days=number) for number in range(365)) if day.isoweekday() <= 5
    ]
    changes = [late.date() for early, late in pairwise(local) if early.utcoffset() != late.utcoffset()]
    assert changes == [date(2026, 3, 9), date(2026, 11, 2)]


def test_midnight_may_be_skipped() -> None:
    assert local_slots("0 0 * * *", "America/Santiago", date(2026, 9, 6)) == ["01:00-0300"]


async def test_one_night_row_by_row(database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("invoices", InvoiceRun).register()
        for group in ("invoice-runner", "audit"):
            client.stream("invoices", InvoiceRun).consumer(group).register()
        client.scheduler("invoices.nightly").register(
            "invoices", "0 2 * * *", InvoiceRun("eu"), timezone="Europe/Berlin"
        )
    assert query(
        database_url,
        "select name, stream_id, expression, timezone, payload::text, schema_version, concurrency, timeout_ns,"
        " catch_up, revision from sqlstreams.schedule_config",
    ) == [
        (
            "invoices.nightly",
            1,
            "0 2 * * *",
            "Europe/Berlin",
            '{"region":"eu"}',
            1,
            "parallel",
            30_000_000_000,
            "newest",
            1,
        )
    ]
    ((tonight, due_at, last_slot, last_message, failures),) = _cursor(database_url)
    assert (tonight, last_slot, last_message, failures) == (due_at, None, None, 0)
    assert tonight.astimezone(zone("Europe/Berlin")).time() == time(2)

    slot = tonight.astimezone(zone("Europe/Berlin")) - timedelta(days=1)  # the same wall time, yesterday
    query(database_url, "update sqlstreams.schedule_cursor set next_slot = %(slot)s, due_at = %(slot)s", {"slot": slot})
    async with AsyncClient(database_url, manager=False) as manager:
        await duty(manager).run_once()

        assert query(database_url, "select id, message_key, payload::text, options from sqlstreams.message_log_1") == [
            (
                1,
                "invoices.nightly",
                '{"region":"eu"}',
                {"timeout": "PT30S", "scheduled_at": f"{slot.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"},
            )
        ]
        ((fired, message),) = query(database_url, "select scheduled_for, message_id from sqlstreams.schedule_fire")
        assert (fired, message) == (slot, 1)
        assert _cursor(database_url) == [(tonight, tonight, slot, 1, 0)]

        async def fail(run: InvoiceRun) -> None:
            raise ValueError(run.region)

        stream = manager.stream("invoices", InvoiceRun)

        async def outcomes() -> dict[str, str]:
            status = await manager.scheduler("invoices.nightly").status()
            return {each.group: each.outcome for each in status.groups}

        async def is_so() -> bool:
            return await outcomes() == {"invoice-runner": "succeeded", "audit": "ready"}

        async with (
            consuming(stream.consumer("invoice-runner"), lambda run: None),
            consuming(stream.consumer("audit"), fail),
        ):
            await eventually(is_so)


def _cursor(url: str) -> list[Any]:
    return query(
        url,
        "select next_slot, due_at, last_slot, last_message_id, consecutive_failures from sqlstreams.schedule_cursor",
    )
