"""Observing, activating a part, suspending, replaying, status and destroying."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from sqlstreams import AsyncClient, DestroyRefused, InvalidInput, meta
from tests.deadlines.ground import COLUMNS, Reservation, duty, hold, keys, messages, move_all, query, register, states
from tests.support import consuming, eventually

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
FAR_OFF = datetime(2100, 1, 1, tzinfo=UTC)


async def test_observing_counts_and_changes_nothing(url: str, client: AsyncClient) -> None:
    hold(url, 3)
    hold(url, due="1 hour")
    before = query(url, "select id, state, xmin::text from reservations order by id")
    await register(client, mode="observe")
    assert await move_all(client) == 0
    assert query(url, "select id, state, xmin::text from reservations order by id") == before
    assert keys(url) == []
    assert query(url, "select observed_due from sqlstreams.deadline_status") == [(3,)]


async def test_a_part_is_activated_before_all(url: str, client: AsyncClient) -> None:
    hold(url, 2, region="eu")
    hold(url, 3, region="us")
    await register(client, mode="observe")
    expiry = client.deadline("expiry")
    await expiry.activate(only={"region": "us"})
    assert (await expiry.status()).due == 3
    assert await move_all(client) == 3
    assert list(states(url).values()) == ["held", "held", "expired", "expired", "expired"]
    await expiry.activate()
    assert await move_all(client) == 2
    with pytest.raises(InvalidInput, match="names no column"):
        await expiry.activate(only={"nothing": 1})


async def test_what_comes_due_while_suspended_is_moved_afterwards(url: str, client: AsyncClient) -> None:
    hold(url, 2)
    await register(client)
    expiry = client.deadline("expiry")
    await expiry.suspend()
    await expiry.suspend()
    assert await move_all(client) == 0
    info = await expiry.get()
    assert info is not None
    assert info.suspended
    await expiry.unsuspend()
    assert await move_all(client) == 2
    assert [edit.action for edit in await expiry.edits()] == ["unsuspended", "suspended", "registered"]


async def test_a_change_is_seen_by_a_manager_at_once(url: str, client: AsyncClient) -> None:
    await register(client, mode="observe")
    hold(url)
    seen: list[str | None] = []

    async def handle(row: Reservation) -> None:
        seen.append(meta().key)

    consumer = await client.stream("expired", Reservation).consumer("g").register()
    async with consuming(consumer, handle):
        await eventually(lambda: query(url, "select observed_due from sqlstreams.deadline_status") == [(1,)])
        await client.deadline("expiry").activate()
        await eventually(lambda: bool(seen), within=3)  # long before it would look by itself


async def test_a_batch_planned_before_a_change_moves_nothing(url: str, client: AsyncClient) -> None:
    hold(url)
    await register(client)
    one = duty(client)
    look = one._next_due

    async def suspended_meanwhile(deadline: object) -> float | None:
        await client.deadline("expiry").suspend()
        return await look(deadline)  # type: ignore[arg-type]  # passed through

    one._next_due = suspended_meanwhile  # type: ignore[method-assign]  # between the look and the move
    assert (await one.run_once()).done == 0
    assert states(url) == {1: "held"}


# Status


async def test_status_tells_what_is_due_and_what_was_settled_before(url: str, client: AsyncClient) -> None:
    hold(url, 3)
    hold(url, due="1 hour")
    hold(url, 2, state="confirmed")
    hold(url, due="1 hour", state="confirmed")
    await register(client)
    status = await client.deadline("expiry").status()
    now = datetime.now(UTC)
    assert (status.due, status.already_final, status.moved) == (3, 2, 0)
    assert status.oldest_due is not None
    assert status.next_deadline is not None
    assert timedelta(seconds=50) < now - status.oldest_due < timedelta(minutes=3)
    assert timedelta(minutes=50) < status.next_deadline - now < timedelta(minutes=70)
    assert (status.index, status.warning) == ("reservations_state_expires_at_idx", None)
    assert status.scan_cost is not None
    assert await move_all(client) == 3
    status = await client.deadline("expiry").status()
    assert (status.due, status.oldest_due, status.already_final, status.moved) == (0, None, 2, 3)
    assert status.last_moved_at is not None


INDEXES = [
    ("(expires_at)", False),
    ("(expires_at, state)", False),
    ("(state)", False),
    ("(state, expires_at, id)", True),
    ("(expires_at) where state = 'held'", True),
    ("(expires_at) where state = 'expired'", False),
    ("using hash (state)", False),
]


async def test_a_missing_index_is_told(url: str, client: AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    query(url, "drop index reservations_state_expires_at_idx")
    for number, (index, is_good) in enumerate(INDEXES):
        query(url, f"create index one on reservations {index}")
        caplog.clear()
        await register(client, batch=number + 1)
        status = await client.deadline("expiry").status()
        assert (status.warning is None, "SQL0144" in caplog.text) == (is_good, not is_good), index
        query(url, "drop index one")


async def test_times_that_no_client_can_hold_do_no_harm(url: str, client: AsyncClient) -> None:
    query(
        url,
        "insert into reservations (expires_at) values ('-infinity'), ('infinity'), ('0044-03-15 BC'), ('20000-01-01')",
    )
    await client.stream("raw").register()
    expiry = await client.deadline("expiry").register("raw", **COLUMNS)
    assert (await expiry.status()).due == 2
    assert await move_all(client) == 2
    assert [at for _, _, at in messages(url, "raw")] == [None, None]
    assert (await expiry.status()).next_deadline is None


# Replays


async def test_a_replay_produces_a_range_again_and_says_so(url: str, client: AsyncClient) -> None:
    hold(url, 3)
    query(url, "update reservations set expires_at = timestamptz '2026-01-01 10:00Z' + id * interval '1 minute'")
    await register(client)
    await move_all(client)
    at = datetime(2026, 1, 1, 10, 2, tzinfo=UTC)
    replayed = await client.deadline("expiry").replay(at, at + timedelta(minutes=1))
    assert replayed.messages == 2
    assert keys(url) == ["1", "2", "3", "2", "3"]
    seen: list[tuple[str | None, datetime | None, str | None]] = []

    async def handle(row: Reservation) -> None:
        seen.append((meta().key, meta().scheduled_at, meta().headers.get("sqlstreams-replay")))

    consumer = await client.stream("expired", Reservation).consumer("g").register()
    async with consuming(consumer, handle):
        await eventually(lambda: len(seen) == 5)
    assert ("2", at, replayed.replay) in seen
    assert ("2", at, None) in seen
    assert (await client.deadline("expiry").status()).replayed == 2


async def test_a_replay_beyond_its_limit_produces_nothing(url: str, client: AsyncClient) -> None:
    hold(url, 3)
    await register(client)
    await move_all(client)
    with pytest.raises(InvalidInput, match="more than 2 rows"):
        await client.deadline("expiry").replay(LONG_AGO, FAR_OFF, limit=2)
    for start, until in ((FAR_OFF, LONG_AGO), (datetime(2026, 1, 1), FAR_OFF)):  # noqa: DTZ001  # what is refused
        with pytest.raises(InvalidInput):
            await client.deadline("expiry").replay(start, until)
    assert len(keys(url)) == 3
    assert (await client.deadline("expiry").replay(LONG_AGO, FAR_OFF, limit=3)).messages == 3


# The end


async def test_a_destroyed_deadline_leaves_rows_and_messages(url: str, client: AsyncClient) -> None:
    hold(url)
    await register(client)
    await move_all(client)
    hold(url)
    async with AsyncClient(url) as careful:
        with pytest.raises(DestroyRefused):
            await careful.deadline("expiry").destroy()
    await client.deadline("expiry").destroy()
    assert await move_all(client) == 0
    assert (states(url), keys(url)) == ({1: "expired", 2: "held"}, ["1"])
    assert (await client.deadline("expiry").edits())[0].action == "destroyed"


async def test_a_stream_takes_its_deadlines_with_it(url: str, client: AsyncClient) -> None:
    hold(url)
    await register(client)
    await client.stream("expired").destroy()
    assert await client.list_deadlines() == []
    assert await move_all(client) == 0
    assert [edit.action for edit in await client.deadline("expiry").edits()] == ["destroyed", "registered"]


async def test_failures_are_told_once_with_their_code(
    url: str, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await register(client)
    query(url, "drop table reservations")
    with caplog.at_level(logging.INFO, logger="sqlstreams.deadlines"):
        await move_all(client)
    assert [record.getMessage()[:27] for record in caplog.records] == ["SQL0142 deadline expiry fai"]
