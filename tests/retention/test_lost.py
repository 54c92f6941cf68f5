"""Where age alone decides: what a group loses by it is counted, told and visible, and it goes on behind that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sqlstreams import AsyncClient, Expiry, LostMessages, meta
from tests.produce.log import ask
from tests.retention.logs import consume_all, stream_of, tables
from tests.support import Note, consuming, eventually


async def test_a_lagging_group_goes_on_behind_what_it_lost(
    client: AsyncClient, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await stream_of(client, database_url, old=2_500, new=10, keep_unread=False)
    group = await stream.consumer("slow").register(start=200)
    preview = await stream.preview_expire()
    assert (await group.status()).claimed == 200
    expiry = await stream.expire()
    lost = (LostMessages("slow", 2_300, 201, 2_500),)
    assert expiry == preview == Expiry(kept_from=2_501, partitions=2, messages=501, lost=lost)
    assert (
        caplog.messages.count(
            "SQL0120 retention of notes removed 2300 messages from 201 to 2500 before group slow had done them"
        )
        == 1
    )
    status = await group.status()
    assert (status.claimed, status.committed, status.lost) == (2_500, 2_500, 2_300)
    (change,) = await group.positions()
    assert (change.action, change.claimed, change.position) == ("lost", 200, 2_500)
    assert (change.messages, change.first_id, change.last_id) == (2_300, 201, 2_500)
    seen: list[int] = []
    async with consuming(group, lambda note: seen.append(meta().id)):
        await eventually(lambda: len(seen) == 10)
    assert sorted(seen) == list(range(2_501, 2_511))
    assert (await stream.expire()).lost == ()


async def test_what_a_group_has_done_of_its_ranges_is_not_lost(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=2_500, new=10, keep_unread=False)
    group = await stream.consumer("g").register(start=2_505)
    ask(
        database_url,
        "insert into sqlstreams.claim_lease (token, group_id, low, high, resolved, done)"
        " values (gen_random_uuid(), 1, 101, 200, 150, '{160}'),"
        "        (gen_random_uuid(), 1, 2491, 2505, 2495, '{2499,2502}')",
    )
    expiry = await stream.expire()
    # 151 to 200 but for 160, and 2496 to 2500 but for 2499
    assert expiry.lost == (LostMessages("g", 49 + 4, 151, 2_500),)
    leases = "select low, resolved, done from sqlstreams.claim_lease"
    assert ask(database_url, leases) == [(2_491, 2_500, [2_502])]
    status = await group.status()
    assert (status.claimed, status.committed) == (2_505, 2_500)
    (change,) = await group.positions()
    assert (change.claimed, change.position, change.leases) == (2_505, 2_505, 1)


async def test_a_group_with_bindings_loses_what_it_would_have_got(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=100, keep_unread=False)
    await stream.consumer("g").register(bindings=["eu.*"])
    await stream.consumer("h").register(bindings=["us.*"])
    ask(database_url, "update sqlstreams.message_log_1 set routing_key = 'eu.paid' where id between 11 and 20")
    assert (await stream.expire()).lost == (LostMessages("g", 10, 11, 20),)
    assert [claimed for (claimed,) in ask(database_url, "select claimed from sqlstreams.consumer_group_cursor")] == [
        100
    ] * 2


async def test_messages_that_wait_for_a_delivery_are_lost_too(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=1_200, new=2, keep_unread=False)
    group = await stream.consumer("g").register(start=1_202, concurrency="exclusive")
    ask(
        database_url,
        "insert into sqlstreams.exception_queue_1"
        " (group_id, message_id, state, can_run_after, message_key, concurrency)"
        " values (1, 7, 'ready', now() + interval '1 hour', 'k', 'exclusive'), (1, 8, 'dead', now(), null, null),"
        "        (1, 1201, 'deferred', now(), 'k', 'exclusive')",
    )
    expiry = await stream.expire()
    assert (expiry.lost, expiry.exceptions) == ((LostMessages("g", 1, 7, 7),), 2)
    assert (await group.positions())[0].exceptions == 1
    # What waited for the key of a lost message does so no longer.
    seen: list[int] = []
    async with consuming(group, lambda note: seen.append(meta().id)):
        await eventually(lambda: seen == [1_201])


async def test_a_running_process_notices_and_goes_on(
    client: AsyncClient, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await stream_of(client, database_url, old=1_500, new=20, keep_unread=False)
    group = await stream.consumer("g").register()
    started, gate = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def handle(note: Note) -> None:
        seen.append(meta().id)
        started.set()
        await gate.wait()

    async with consuming(group, handle, concurrency=5, prefetch=20):
        await started.wait()
        expiry = await stream.expire()
        assert tables(database_url)[0] == "1000"
        gate.set()
        await eventually(lambda: 1_520 in seen)
        await eventually(lambda: _is_done(group))
    assert expiry.lost[0].last_id == 1_500
    assert set(range(1_501, 1_521)) <= set(seen)
    assert (await group.status()).lost == expiry.lost[0].messages


async def test_a_group_that_is_quick_enough_loses_nothing(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=1_500, keep_unread=False)
    group = await stream.consumer("g").register()
    await consume_all(group)
    assert (await stream.expire()).lost == ()
    assert ((await group.status()).lost, await group.positions()) == (0, [])


async def _is_done(group: Any) -> bool:
    status = await group.status()
    return bool(status.committed == status.head)
