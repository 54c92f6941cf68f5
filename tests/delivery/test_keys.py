"""Keys: one delivery at a time, and in order across failure, delay, death and any number of processes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from sqlstreams import AsyncClient, AsyncConsumer, Delay, InvalidInput, Message, Terminal, meta
from tests.support import Note, consuming, eventually


async def _stream_with(
    client: AsyncClient, notes: Sequence[tuple[str | None, str]], *, concurrency: str, max_retries: int = 5
) -> AsyncConsumer[Note]:
    stream = await client.stream("notes", Note).register()
    consumer = await stream.consumer("g").register(
        concurrency=concurrency, retry_base=timedelta(milliseconds=20), max_retries=max_retries
    )
    await stream.producer().produce_many([Message(Note(text), key=key) for key, text in notes])
    return consumer


async def test_messages_of_an_ordered_key_run_in_order_and_others_beside_them(database_url: str) -> None:
    notes = [(f"k{number % 10}", str(number)) for number in range(500)]
    async with AsyncClient(database_url) as client:
        consumer = await _stream_with(client, notes, concurrency="ordered")
        seen: dict[str, list[int]] = defaultdict(list)
        running: set[str] = set()
        most = 0

        async def handle(note: Note) -> None:
            nonlocal most
            key = meta().key or ""
            assert key not in running
            running.add(key)
            most = max(most, len(running))
            await asyncio.sleep(0.001)
            running.discard(key)
            seen[key].append(meta().id)

        async with consuming(consumer, handle):
            await eventually(lambda: sum(map(len, seen.values())) == 500)
            await eventually(lambda: _no_keys_held(client))
        assert all(ids == sorted(ids) for ids in seen.values())
        assert most > 1


async def _no_keys_held(client: AsyncClient) -> bool:
    async with client._database.connection() as connection:
        found = await (await connection.execute("select count(*) from sqlstreams.message_key_lease")).fetchone()
    return found == (0,)


@pytest.mark.parametrize("trouble", [ValueError("no"), Delay(timedelta(milliseconds=30))])
async def test_an_ordered_key_waits_for_its_failed_message_while_other_keys_go_on(
    database_url: str, trouble: Exception
) -> None:
    notes = [(key, f"{key}{number}") for number in range(5) for key in ("a", "b", "c")]
    async with AsyncClient(database_url) as client:
        consumer = await _stream_with(client, notes, concurrency="ordered")
        handled: list[str] = []
        tries = 0

        async def handle(note: Note) -> None:
            nonlocal tries
            if note.text == "a1" and tries < 3:
                tries += 1
                raise trouble
            handled.append(note.text)

        async with consuming(consumer, handle):
            await eventually(lambda: len(handled) == 15)
        for key in ("a", "b", "c"):
            assert [text for text in handled if text[0] == key] == [f"{key}{number}" for number in range(5)]
        assert handled.index("c4") < handled.index("a1")


async def test_a_dead_message_of_an_ordered_key_lets_the_next_one_run(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        consumer = await _stream_with(
            client, [("a", str(number)) for number in range(4)], concurrency="ordered", max_retries=2
        )
        handled: list[str] = []

        async def handle(note: Note) -> None:
            if note.text == "1":
                raise ValueError("never")
            if note.text == "2":
                raise Terminal("never")
            handled.append(note.text)

        async with consuming(consumer, handle):
            await eventually(lambda: handled == ["0", "3"])
            await eventually(lambda: consumer.stats.dead == 2)
        status = await consumer.status()
        assert (status.dead, status.ready, status.inflight) == (2, 0, 0)


async def test_an_exclusive_key_goes_on_past_a_failure_but_never_twice_at_a_time(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        consumer = await _stream_with(client, [("a", str(number)) for number in range(20)], concurrency="exclusive")
        handled: list[str] = []
        running = 0

        async def handle(note: Note) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0.001)
            running -= 1
            if note.text == "3" and meta().failures == 0:
                raise ValueError("once")
            handled.append(note.text)

        async with consuming(consumer, handle):
            await eventually(lambda: len(handled) == 20)
        assert handled.index("3") > handled.index("4")


async def test_order_holds_across_processes_that_come_and_go_and_fail(database_url: str) -> None:
    notes = [(f"k{number % 7}", str(number)) for number in range(700)]
    async with AsyncClient(database_url) as client, AsyncExitStack() as others:
        await _stream_with(client, notes, concurrency="ordered")
        seen: dict[str, list[int]] = defaultdict(list)
        running: set[str] = set()

        async def handle(note: Note) -> None:
            key, message_id = meta().key or "", meta().id
            assert key not in running
            running.add(key)
            try:
                await asyncio.sleep(0.0005)
                if message_id % 50 == 0 and meta().failures < 2:
                    raise ValueError("now and then")
                seen[key].append(message_id)
            finally:
                running.discard(key)

        for number in range(12):
            own = await others.enter_async_context(AsyncClient(database_url))
            group = own.stream("notes", Note).consumer("g")
            task = asyncio.create_task(group.consume(handle, signals=False, prefetch=20, concurrency=4))
            if number % 3 == 0:
                await asyncio.sleep(0.1)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            else:
                others.callback(task.cancel)
        await eventually(lambda: sum(map(len, seen.values())) >= 700)
        await eventually(lambda: _no_keys_held(client))
        for key, ids in seen.items():
            assert ids == sorted(set(ids)), (key, ids)
        assert sum(map(len, seen.values())) == 700


async def test_a_process_that_stops_still_lets_the_next_message_of_its_key_go(database_url: str) -> None:
    async with AsyncClient(database_url) as client, AsyncClient(database_url) as other:
        # Given a key whose first message runs here, while its second waits, claimed by another process
        consumer = await _stream_with(client, [("k", "first"), ("other", "filler")], concurrency="ordered")
        began, may_end = asyncio.Event(), asyncio.Event()

        async def handle(note: Note) -> None:
            began.set()
            await may_end.wait()

        task = asyncio.create_task(consumer.consume(handle, signals=False, concurrency=1, prefetch=1))
        await asyncio.wait_for(began.wait(), 10)
        await eventually(lambda: consumer.stats.claimed == 2)
        await client.stream("notes", Note).producer().produce(Note("second"), key="k")
        waiting = other.stream("notes", Note).consumer("g")
        async with consuming(waiting, handle):
            await eventually(lambda: waiting.stats.deferred == 1)
        async with client._database.connection() as holder:
            # When this process ends while its word that the key is free is still on the way
            async with holder.transaction():
                await holder.execute("select from sqlstreams.exception_queue_1 for update")
                may_end.set()
                await eventually(lambda: _somebody_waits_for_a_lock(other))
                task.cancel()
                await asyncio.wait([task], timeout=0.5)
            await asyncio.wait([task])
            # Then the second message may go
            row = await (await holder.execute("select state from sqlstreams.exception_queue_1")).fetchone()
        assert row == ("ready",)


async def _somebody_waits_for_a_lock(client: AsyncClient) -> bool:
    async with client._database.connection() as connection:
        cursor = await connection.execute(
            "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        return await cursor.fetchone() is not None


async def test_a_message_can_ask_for_order_in_a_group_that_does_not(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register(retry_base=timedelta(milliseconds=20))
        handled: list[str] = []

        async def handle(note: Note) -> None:
            if note.text == "0" and meta().failures < 2:
                raise ValueError("twice")
            handled.append(note.text)

        async with consuming(consumer, handle):
            await stream.producer().produce(Note("before"), key="k")
            await eventually(lambda: handled == ["before"])
            await stream.producer().produce_many(
                [Message(Note(str(number)), key="k", concurrency="ordered") for number in range(10)]
            )
            await eventually(lambda: len(handled) == 11)
        assert handled[1:] == [str(number) for number in range(10)]


async def test_a_concurrency_of_its_own_needs_a_key(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        with pytest.raises(InvalidInput, match="concurrency of 'ordered' needs a key"):
            await stream.producer().produce(Note("x"), concurrency="ordered")
        with pytest.raises(InvalidInput, match="concurrency must be one of"):
            await stream.producer().produce(Note("x"), key="k", concurrency="sideways")
        assert await stream.read() == []


async def test_a_blocked_key_is_listed_with_what_blocks_it(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        consumer = await stream.consumer("g").register(concurrency="ordered", retry_base=timedelta(minutes=5))
        await stream.producer().produce_many([Message(Note(str(number)), key="k") for number in range(6)])

        async def handle(note: Note) -> None:
            raise ValueError("stuck")

        async with consuming(consumer, handle):
            await eventually(lambda: consumer.stats.deferred == 5)
            blocked = await consumer.blocked_keys()
        assert [(each.key, each.waiting, each.first_id, each.blocked_by, each.state) for each in blocked] == [
            ("k", 5, 2, 1, "ready")
        ]
        assert "stuck" in (blocked[0].error or "")


async def test_a_hot_key_holds_up_no_other_key(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        notes = [("hot", str(number)) for number in range(20_000)]
        consumer = await _stream_with(client, notes, concurrency="ordered")
        release = asyncio.Event()
        cool: list[str] = []

        async def handle(note: Note) -> None:
            if meta().key == "hot":
                await release.wait()
            else:
                cool.append(note.text)

        async with consuming(consumer, handle, concurrency=4):
            await consumer._stream.producer().produce_many(
                [Message(Note(str(number)), key=f"cool{number}") for number in range(10)]
            )
            await eventually(lambda: len(cool) == 10, within=30)
            release.set()


async def test_nothing_of_a_key_passes_a_range_that_was_lost(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncClient(database_url) as client:
        consumer = await _stream_with(client, [("k", str(number)) for number in range(6)], concurrency="ordered")
        began, go_on, feeder_waits, feeder_may = (asyncio.Event() for _ in range(4))
        seen: list[str] = []

        async def handle(note: Note) -> None:
            seen.append(note.text)
            began.set()
            await go_on.wait()

        async def wait() -> None:
            feeder_waits.set()
            await feeder_may.wait()

        async with consuming(consumer, handle, concurrency=2, prefetch=2):
            await began.wait()
            (member,) = client._presence._members
            await eventually(lambda: len(member.tokens()) >= 2)
            # The feeder is in the middle of something else when the loss is heard of.
            monkeypatch.setattr(member, "_hold_bindings", wait)
            member.doubt()
            await feeder_waits.wait()
            member.lost(member.tokens()[0])
            go_on.set()
            for _ in range(100):
                await asyncio.sleep(0)
            assert seen == ["0"]
            feeder_may.set()
            await eventually(lambda: len(set(seen)) == 6)
    assert list(dict.fromkeys(seen)) == ["0", "1", "2", "3", "4", "5"]
