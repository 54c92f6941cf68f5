"""Processes that are killed: nothing is lost, and the reclaim log explains every message that came twice."""

from __future__ import annotations

import signal

from sqlstreams import AsyncClient, AsyncConsumer
from tests.chaos.conftest import Start, all_is_done, produce
from tests.chaos.processes import explained, finished, twice_delivered
from tests.support import Note, eventually


async def test_a_killed_process_loses_nothing_and_repeats_only_what_was_not_checkpointed(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 300)
    victim = start(handler="flaky", prefetch=100)
    await eventually(lambda: len(victim.ids()) >= 30)
    victim.send(signal.SIGKILL)
    heir = start(handler="flaky", concurrency=20, prefetch=100)
    await eventually(lambda: set(ids) <= set(victim.ids()) | set(heir.ids()))

    reclaims = await group.reclaims()
    assert {each.from_pid for each in reclaims} == {victim.pid}
    assert twice_delivered([victim, heir]) <= explained(reclaims)
    counts = finished([victim, heir])
    assert all(counts[each] == 1 for each in ids if each not in explained(reclaims))
    await eventually(lambda: heir.logged("SQL0104"))
    await all_is_done(group)


async def test_the_heartbeat_checkpoints_so_that_a_kill_repeats_little(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 200)
    victim = start(seconds=0.05, concurrency=4, prefetch=200)
    # A lease and a half of work: at least three checkpoints have happened.
    await eventually(lambda: len(victim.ids()) >= 120)
    victim.send(signal.SIGKILL)
    heir = start(concurrency=20, prefetch=200)
    await eventually(lambda: set(ids) <= set(victim.ids()) | set(heir.ids()))

    (reclaim,) = await group.reclaims()
    assert reclaim.resolved >= 40
    # 4 handlers of 50 ms do 27 messages between two beats, and on a loaded machine a beat may come late.
    assert len(twice_delivered([victim, heir])) <= 80
    await all_is_done(group)


async def test_killing_one_process_after_the_other_loses_nothing(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 240)
    processes = [start(seconds=0.03, concurrency=4, prefetch=20)]
    for _ in range(3):
        before = len(processes[-1].ids())
        processes.append(start(seconds=0.03, concurrency=4, prefetch=20))
        victim = processes[-2]
        await eventually(lambda victim=victim, before=before: len(victim.ids()) >= before + 15)  # type: ignore[misc]
        victim.send(signal.SIGKILL)
    await eventually(lambda: set(ids) <= finished(processes).keys())

    reclaims = await group.reclaims()
    assert twice_delivered(processes) <= explained(reclaims)
    await all_is_done(group)


async def test_a_message_whose_process_died_in_its_retry_is_charged_once(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    (message_id,) = await produce(client, 1)
    victim = start(handler="hanging_in_its_retry")
    await eventually(lambda: len(victim.deliveries("start")) == 2)
    victim.send(signal.SIGKILL)
    heirs = [start(), start()]
    await eventually(lambda: finished(heirs)[message_id] == 1)

    attempts = [each.attempt for heir in heirs for each in heir.deliveries("start")]
    assert attempts == [3]  # one failure of its own, and one for the death
    (reclaim,) = await group.reclaims()
    assert (reclaim.low, reclaim.high, reclaim.from_pid) == (message_id, message_id, victim.pid)
    await all_is_done(group)


async def test_a_fresh_message_whose_process_died_is_not_charged(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    ids = await produce(client, 10)
    victim = start(seconds=600, concurrency=3, prefetch=10)
    await eventually(lambda: len(victim.deliveries("start")) == 3)
    victim.send(signal.SIGKILL)
    heir = start()
    await eventually(lambda: len(heir.ids()) == 10)
    assert sorted(heir.ids()) == ids
    assert {each.attempt for each in heir.deliveries("start")} == {1}
    await all_is_done(group)


async def test_a_history_of_successes_has_each_message_once_whoever_was_killed(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start
) -> None:
    await group.register(delivery_log="all")
    ids = await produce(client, 150)
    victim = start(prefetch=100)
    await eventually(lambda: len(victim.ids()) >= 40)
    victim.send(signal.SIGKILL)
    start(concurrency=20, prefetch=100)
    await all_is_done(group)
    history = [await group.deliveries(each) for each in ids]
    assert [[(each.outcome, each.attempt) for each in entries] for entries in history] == [[("succeeded", 1)]] * 150
