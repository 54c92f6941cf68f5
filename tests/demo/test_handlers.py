"""The demo's handlers count what they were given, and the audit finds what went wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sqlstreams import AsyncClient
from sqlstreams_cli.demo.handlers import Audit, Flaky, PerZone, Verdict
from sqlstreams_cli.demo.make_zone_changes import ZoneChange
from sqlstreams_cli.demo.report import Rank, find
from tests.support import consuming, eventually

HOUR, DAY = 3_600, 86_400


def change(zone: str, year: int, before: int, after: int) -> ZoneChange:
    return ZoneChange(datetime(year, 3, 1, tzinfo=UTC), zone, before, after, abbreviation="X", is_dst=False)


TO_SUMMER, TO_WINTER = change("A", 2000, 0, HOUR), change("A", 2001, HOUR, 0)
ELSEWHERE = change("B", 2001, 0, HOUR)


async def audited(url: str, changes: list[ZoneChange], *, groups: int = 1) -> tuple[Audit, list[int]]:
    audit = Audit()
    async with AsyncClient(url) as client:
        stream = await client.stream("changes", ZoneChange).register()
        receipts = await stream.producer().produce_many(changes)
        for number in range(groups):
            consumer = await stream.consumer(f"audit-{number}").register()
            async with consuming(consumer, audit.handle, concurrency=1):
                await eventually(lambda consumer=consumer: consumer.stats.handled == len(changes))  # type: ignore[misc]
    return audit, [receipt.id for receipt in receipts]


async def test_the_audit_passes_when_all_came_once_and_in_order(database_url: str) -> None:
    audit, produced = await audited(database_url, [TO_SUMMER, ELSEWHERE, TO_WINTER])

    verdict = audit.verdict(produced)

    assert verdict == Verdict(produced=3, seen=3, twice=0, foreign=0, breaks=0)
    assert verdict.passed


async def test_the_audit_fails_when_a_message_was_lost(database_url: str) -> None:
    audit, produced = await audited(database_url, [TO_SUMMER, TO_WINTER])

    verdict = audit.verdict([*produced, max(produced) + 1])

    assert (verdict.produced, verdict.seen, verdict.lost) == (3, 2, 1)
    assert not verdict.passed


async def test_the_audit_fails_when_a_message_came_twice(database_url: str) -> None:
    audit, produced = await audited(database_url, [ELSEWHERE], groups=2)

    verdict = audit.verdict(produced)

    assert (verdict.seen, verdict.twice) == (1, 1)
    assert not verdict.passed


async def test_the_audit_fails_when_a_message_came_that_nobody_produced(database_url: str) -> None:
    audit, produced = await audited(database_url, [TO_SUMMER, ELSEWHERE])

    verdict = audit.verdict(produced[:1])

    assert (verdict.seen, verdict.lost, verdict.foreign) == (1, 0, 1)
    assert not verdict.passed


async def test_the_audit_fails_when_a_zone_s_changes_came_in_another_order(database_url: str) -> None:
    audit, produced = await audited(database_url, [TO_WINTER, ELSEWHERE, TO_SUMMER, TO_SUMMER])

    verdict = audit.verdict(produced)

    assert (verdict.lost, verdict.twice, verdict.breaks) == (0, 0, 1)
    assert not verdict.passed


async def test_flaky_fails_the_first_attempt_of_one_message_in_200_only(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("changes", ZoneChange).register()
        await stream.producer().produce_many([ELSEWHERE] * 401)
        consumer = await stream.consumer("flaky").register(retry_base=timedelta(milliseconds=10))
        async with consuming(consumer, Flaky().handle):
            await eventually(lambda: consumer.stats.handled == 401)

    assert (consumer.stats.failed, consumer.stats.retried, consumer.stats.dead) == (2, 2, 0)


async def test_per_zone_counts_zones_years_and_whole_days() -> None:
    counted = PerZone()
    for each in (TO_SUMMER, TO_WINTER, ELSEWHERE, change("C", 2002, -HOUR, DAY - HOUR), change("C", 2003, 0, -DAY)):
        await counted.handle(each)

    findings = find(counted)

    assert findings.zones == 3
    assert findings.most_changes == [Rank(changes=2, zones=["A", "C"]), Rank(changes=1, zones=["B"])]
    assert (findings.busiest_years, findings.busiest_year_changes) == ([2001], 2)
    assert (findings.whole_days, findings.last_whole_day) == (2, "C on 2003-03-01")


async def test_years_with_equally_many_changes_are_all_named() -> None:
    counted = PerZone()
    for each in (TO_WINTER, TO_SUMMER):
        await counted.handle(each)

    assert find(counted).busiest_years == [2000, 2001]


@pytest.mark.parametrize("field", ["lost", "twice", "foreign", "breaks"])
def test_any_one_finding_fails_the_audit(field: str) -> None:
    counts = {"produced": 9, "seen": 9, "twice": 0, "foreign": 0, "breaks": 0}
    counts |= {"seen": 8} if field == "lost" else {field: 1}

    assert not Verdict(**counts).passed
