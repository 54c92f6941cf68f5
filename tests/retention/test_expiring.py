"""What a stream lets go, and what it keeps because somebody has not done it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sqlstreams import AsyncClient, Client, Expiry, InvalidInput, NotFound, Terminal, meta
from tests.produce.log import ask
from tests.retention.logs import MONTH, age, consume_all, ids, stream_of, tables
from tests.support import Note, consuming, eventually


async def test_without_a_retention_everything_stays(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=2_500, retention=None)
    assert await stream.expire() == await stream.preview_expire() == Expiry(kept_from=1)
    assert len(ids(database_url)) == 2_500


async def test_full_partitions_that_are_too_old_are_dropped(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=2_500, new=1_000)
    assert tables(database_url)[:4] == ["0", "1000", "2000", "3000"]
    preview = await stream.preview_expire()
    assert len(ids(database_url)) == 3_500
    assert await stream.expire() == preview == Expiry(kept_from=2_000, partitions=2)
    assert tables(database_url)[:2] == ["2000", "3000"]
    assert ids(database_url) == list(range(2_000, 3_501))
    status = await stream.status()
    assert (status.kept_from, status.head, status.held_back_by) == (2_000, 3_500, None)
    assert status.oldest_at is not None
    assert status.oldest_at < datetime.now(UTC) - MONTH
    assert await stream.expire() == Expiry(kept_from=2_000)


async def test_the_partition_that_is_written_loses_its_old_messages_one_by_one(
    client: AsyncClient, database_url: str
) -> None:
    stream = await stream_of(client, database_url, old=300, new=20)
    assert await stream.expire() == Expiry(kept_from=301, messages=300)
    assert ids(database_url) == list(range(301, 321))


async def test_a_log_that_is_old_from_end_to_end_goes_on_behind_it(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=1_500)
    group = await stream.consumer("g").register()
    await consume_all(group)
    assert await stream.expire() == Expiry(kept_from=1_501, partitions=1, messages=501)
    assert ids(database_url) == []
    status = await group.status()
    assert (status.head, status.claimed, status.committed, status.lag) == (1_500, 1_500, 1_500, 0)
    newcomers = [await stream.consumer(str(start)).register(start=start) for start in ("beginning", "head", 7)]
    assert [(await each.status()).claimed for each in newcomers] == [1_500] * 3
    assert (await stream.producer().produce(Note("next"))).id == 1_501
    seen: list[int] = []
    for each in [group, *newcomers]:
        async with consuming(each, lambda note: seen.append(meta().id)):
            await eventually(lambda: bool(seen))
        assert seen == [1_501]
        seen.clear()


async def test_the_last_partition_stays_even_when_it_is_full(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=1_999, partition_rows=1_000)
    ask(database_url, "drop table sqlstreams.message_log_1_from_2000")
    ask(database_url, "select nextval('sqlstreams.message_log_1_id') from generate_series(1, 5)")
    assert await stream.expire() == Expiry(kept_from=2_000, partitions=1, messages=1_000)
    assert tables(database_url) == ["1000"]
    assert (await stream.producer().produce(Note("next"))).id > 2_000


async def test_what_a_group_has_not_done_stays_and_the_status_says_for_whom(
    client: AsyncClient, database_url: str
) -> None:
    stream = await stream_of(client, database_url, old=3_500)
    quick = await stream.consumer("quick").register()
    await consume_all(quick)
    await stream.consumer("slow").register(start=1_200)
    expiry = await stream.expire()
    assert (expiry.kept_from, expiry.partitions) == (1_000, 1)
    (reason,) = expiry.held_back_by
    assert reason.startswith("group slow has not done message 1201 of 20")
    assert (await stream.status()).held_back_by == reason
    await stream.consumer("slow").destroy()
    assert (await stream.status()).held_back_by is None
    assert await stream.expire() == Expiry(kept_from=3_501, partitions=2, messages=501)


async def test_skipping_frees_what_a_group_held_back(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=1_500)
    group = await stream.consumer("abandoned").register()
    assert (await stream.expire()).kept_from == 1
    await group.skip("head")
    assert (await stream.expire()).kept_from == 1_501


async def test_a_leased_range_is_not_done(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=2_500)
    await stream.consumer("g").register(start=2_500)
    ask(
        database_url,
        "insert into sqlstreams.claim_lease (token, group_id, low, high, resolved)"
        " values (gen_random_uuid(), 1, 1100, 1200, 1150)",
    )
    expiry = await stream.expire()
    assert expiry.kept_from == 1_000
    assert expiry.held_back_by[0].startswith("group g has not done message 1151")


@pytest.mark.parametrize("state", ["waiting", "ready", "inflight", "deferred", "unread"])
async def test_a_message_that_waits_for_another_delivery_is_not_done(
    client: AsyncClient, database_url: str, state: str
) -> None:
    stream = await stream_of(client, database_url, old=2_500)
    await stream.consumer("g").register(start=2_500)
    _put_aside(database_url, 1_010, state)
    expiry = await stream.expire()
    assert (expiry.kept_from, expiry.exceptions) == (1_000, 0)
    assert expiry.held_back_by[0].startswith("group g has not done message 1010")


async def test_dead_letters_and_the_history_go_with_their_messages(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=1_200, new=10)
    group = await stream.consumer("g").register()

    def fail_some(note: Note) -> None:
        if meta().id % 100 == 0:
            raise Terminal("no")

    async with consuming(group, fail_some, concurrency=50):
        await eventually(lambda: _has_dead(group, 12))
    assert (
        await stream.preview_expire()
        == await stream.expire()
        == Expiry(kept_from=1_201, partitions=1, messages=201, exceptions=12, deliveries=12)
    )
    assert await group.dead_letters() == []
    assert await group.deliveries(100) == []
    assert (await group.status()).lost == 0


async def test_a_message_that_counts_for_its_key_stays(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=1_100)
    producer = stream.producer()
    await producer.produce(Note("counts"), key="k", compaction_rank=0)
    await producer.produce_many([Note("old")] * 1_500)
    age(database_url)
    expiry = await stream.expire()
    assert (expiry.kept_from, expiry.held_back_by) == (1_000, ("message 1101 is what counts for key 'k'",))
    head = await stream.head("k")
    assert head is not None
    assert head.id == 1_101
    later = await producer.produce(Note("counts now"), key="k", compaction_rank=0)
    assert (await stream.expire()).kept_from == later.id


async def test_many_rows_go_in_batches(client: AsyncClient, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlstreams.acts.retention.ROWS_AT_A_TIME", 7)
    stream = await stream_of(client, database_url, old=1_040)
    for name in ("a", "b"):
        await stream.consumer(name).register(start=1_040)
    ask(
        database_url,
        "insert into sqlstreams.exception_queue_1 (group_id, message_id, state, can_run_after)"
        " select g, n, 'dead', now() from generate_series(1, 2) as g, generate_series(1, 20) as n;"
        "insert into sqlstreams.delivery_log_1 (group_id, message_id, attempt, outcome)"
        " select g, n, 1, 'dead' from generate_series(1, 2) as g, generate_series(1, 15) as n",
    )
    assert await stream.expire() == Expiry(kept_from=1_041, partitions=1, messages=41, exceptions=40, deliveries=30)


async def test_with_a_blocking_client_it_is_the_same(client: AsyncClient, database_url: str) -> None:
    await stream_of(client, database_url, old=2_500, new=1_000)
    with Client(database_url) as blocking:
        stream = blocking.stream("notes", Note)
        assert stream.preview_expire() == stream.expire() == Expiry(kept_from=2_000, partitions=2)
        with pytest.raises(NotFound):
            blocking.stream("nothing").expire()


async def test_only_a_retention_that_can_work_is_taken(client: AsyncClient) -> None:
    stream = client.stream("notes", Note)
    for wrong in (timedelta(0), timedelta(days=-1), timedelta.max, 30, "30d"):
        with pytest.raises(InvalidInput, match="retention must be"):
            await stream.register(retention=wrong)  # type: ignore[arg-type]  # that is what is wrong
    with pytest.raises(InvalidInput, match="keep_unread must be True or False"):
        await stream.register(keep_unread=None)  # type: ignore[arg-type]  # that as well
    assert await stream.get() is None


async def test_the_newest_declaration_wins_and_is_kept_in_the_history(client: AsyncClient, database_url: str) -> None:
    stream = await client.stream("notes", Note).register(retention=MONTH)
    for _ in range(2):
        await stream.register(retention=timedelta(days=7), keep_unread=False)
    info = await stream.get()
    assert info is not None
    assert (info.retention, info.keep_unread) == (timedelta(days=7), False)
    changes = "select action, config ->> 'retention' from sqlstreams.stream_config_log order by id"
    assert ask(database_url, changes) == [("registered", "P30D"), ("changed", "P7D")]


async def test_a_rewind_goes_back_to_what_is_kept_and_no_further(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=2_500, new=10)
    group = await stream.consumer("g").register(start="head")
    await stream.expire()
    for gone in (0, 1_998, datetime.now(UTC) - 2 * MONTH):
        with pytest.raises(InvalidInput, match="to lies before the first message that is kept, which is 2501"):
            await group.preview_rewind(gone)
        with pytest.raises(InvalidInput, match="to lies before the first message that is kept"):
            await group.rewind(gone)
    preview = await group.preview_rewind("beginning")
    assert (preview.position, preview.kept_from, preview.messages) == (2_500, 2_501, 10)
    # Nothing of a week ago was removed: the messages before were older.
    assert (await group.preview_rewind(datetime.now(UTC) - timedelta(days=7))).position == 2_500
    assert await group.rewind("beginning") == preview
    (change,) = await group.positions()
    assert (change.action, change.first_id, change.last_id) == ("rewound", 2_501, 2_510)


async def test_readers_begin_with_what_is_kept(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=2_500, new=10)
    await stream.expire()
    for start in ("beginning", 3, datetime(2000, 1, 1, tzinfo=UTC)):
        assert [each.id for each in await stream.read(start, limit=2)] == [2_501, 2_502]
        async for message in stream.tail(start):
            assert message.id == 2_501
            break


async def test_a_destroyed_stream_leaves_no_detached_partition(client: AsyncClient, database_url: str) -> None:
    stream = await stream_of(client, database_url, old=1_500)
    ask(database_url, "alter table sqlstreams.message_log_1 detach partition sqlstreams.message_log_1_from_0")
    await stream.destroy()
    assert tables(database_url) == []


def _put_aside(url: str, message_id: int, state: str) -> None:
    token = "gen_random_uuid()" if state == "inflight" else "null"
    concurrency = "'ordered'" if state == "deferred" else "null"
    ask(
        url,
        "insert into sqlstreams.exception_queue_1"
        " (group_id, message_id, state, can_run_after, token, message_key, concurrency)"
        f" values (1, {message_id}, '{state}', now(), {token}, 'k', {concurrency})",
    )


async def _has_dead(group: Any, count: int) -> bool:
    status = await group.status()
    return bool(status.dead == count and status.committed == status.head)
