"""Processes that freeze past their lease and wake up: what they do to the old work changes nothing."""

from __future__ import annotations

import signal

from sqlstreams import AsyncClient, AsyncConsumer
from tests.chaos.conftest import Start, all_is_done, produce
from tests.chaos.processes import explained, finished, twice_delivered
from tests.support import Note, eventually


async def test_a_process_that_wakes_up_loses_its_range_and_goes_on_with_later_messages(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 60)
    sleeper = start(seconds=0.05, prefetch=60)
    await eventually(lambda: len(sleeper.ids()) >= 10)
    sleeper.send(signal.SIGSTOP)
    heir = start(concurrency=20)
    await eventually(lambda: set(ids) <= set(sleeper.ids()) | set(heir.ids()))
    await all_is_done(group)

    sleeper.send(signal.SIGCONT)
    await eventually(lambda: sleeper.logged("SQL0040"))
    heir.send(signal.SIGTERM)
    await eventually(lambda: not heir.runs)
    later = await produce(client, 20)
    await eventually(lambda: set(later) <= set(sleeper.ids()))
    assert len(await group.reclaims()) == 1
    assert twice_delivered([sleeper, heir]) <= explained(await group.reclaims())
    assert {count for message_id, count in finished([sleeper, heir]).items() if message_id in later} == {1}
    await all_is_done(group)


async def test_failures_of_a_process_that_woke_up_are_not_recorded(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 10)
    sleeper = start(handler="failing", seconds=0.3, prefetch=10)
    await eventually(lambda: len(sleeper.deliveries("start")) == 5)
    sleeper.send(signal.SIGSTOP)
    heir = start()
    await eventually(lambda: sorted(heir.ids()) == ids)
    await all_is_done(group)

    sleeper.send(signal.SIGCONT)
    await eventually(lambda: len(sleeper.deliveries("ValueError")) >= 5 and sleeper.logged("SQL0040"))
    sleeper.send(signal.SIGTERM)
    await eventually(lambda: not sleeper.runs)
    assert sleeper.exit_code == 0
    await all_is_done(group)


async def test_a_retry_of_a_process_that_woke_up_is_neither_completed_nor_charged_again(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    await produce(client, 1)
    sleeper = start(handler="failing", seconds=0.2)
    await eventually(lambda: len(sleeper.deliveries("start")) == 2)
    sleeper.send(signal.SIGSTOP)
    heir = start(seconds=600)
    await eventually(lambda: len(heir.deliveries("start")) == 1)

    sleeper.send(signal.SIGCONT)
    await eventually(lambda: len(sleeper.deliveries("ValueError")) == 2)
    sleeper.send(signal.SIGTERM)
    await eventually(lambda: not sleeper.runs)
    assert [each.attempt for each in heir.deliveries("start")] == [3]
    status = await group.status()
    assert (status.inflight, status.ready, status.dead) == (1, 0, 0)


async def test_a_process_that_wakes_up_alone_goes_on_without_repeating_anything(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 60)
    sleeper = start(handler="flaky", seconds=0.05, prefetch=60)
    await eventually(lambda: len(sleeper.ids()) >= 10)
    sleeper.send(signal.SIGSTOP)
    instances = await group.instances()

    async def is_past_its_lease() -> bool:
        async with client._database.connection() as connection:
            cursor = await connection.execute(
                "select expires_at < now() from sqlstreams.consumer_instance where id = %s", [instances[0].id]
            )
            row = await cursor.fetchone()
        return row is not None and bool(row[0])

    await eventually(is_past_its_lease)
    sleeper.send(signal.SIGCONT)
    await all_is_done(group)
    assert finished([sleeper]) == dict.fromkeys(ids, 1)
    assert await group.reclaims() == []
