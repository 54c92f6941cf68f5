"""A message that kills the process: it alone is charged, and it dies within its retries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlstreams import AsyncClient, Message
from tests.chaos.conftest import Start
from tests.chaos.processes import Process
from tests.support import Note, eventually


async def _restarted_until(is_so: Callable[[list[Process]], bool], start: Start) -> list[Process]:
    """Start one process after the other, as a supervisor would, until the condition holds."""
    processes: list[Process] = []

    def holds() -> bool:
        _keep_one_running(processes, start)
        return is_so(processes)

    await eventually(holds, within=60)
    return processes


def _keep_one_running(processes: list[Process], start: Start) -> None:
    if not processes or not processes[-1].runs:
        processes.append(start(handler="killed_by_one", seconds=0.002, concurrency=10, prefetch=100))


async def test_the_killer_alone_is_charged_and_dies_within_its_retries(client: AsyncClient, start: Start) -> None:
    stream = await client.stream("notes", Note).register()
    group = await stream.consumer("g").register(max_retries=2, retry_base=timedelta(milliseconds=50), retry_exponent=1)
    texts = ["killer" if number == 50 else str(number) for number in range(100)]
    receipts = await stream.producer().produce_many([Note(text) for text in texts])
    killer = receipts[50].id
    others = {receipt.id for receipt in receipts} - {killer}

    def others_are_done(processes: list[Process]) -> bool:
        return {message_id for process in processes for message_id in process.ids()} >= others

    processes = await _restarted_until(others_are_done, start)

    async def is_dead() -> bool:
        _keep_one_running(processes, start)
        return (await group.status()).dead == 1

    await eventually(is_dead, within=30)
    async with client._database.connection() as connection:
        rows = await (
            await connection.execute("select message_id, state, failures, error_type from sqlstreams.exception_queue_1")
        ).fetchall()
    assert rows == [(killer, "dead", 3, "ProcessDied")]
    kept = await group.deliveries(killer)
    # The last entry is of the process that took it again and found its retries spent.
    assert [each.outcome for each in kept] == ["died", "died", "died", "dead"]
    assert len({each.pid for each in kept[:3]}) == 3
    # Nobody else's delivery was counted as a failure.
    assert {delivery.attempt for process in processes for delivery in process.deliveries("end")} == {1}


async def test_messages_that_wait_behind_a_killer_of_their_key_are_not_charged(
    client: AsyncClient, start: Start
) -> None:
    stream = await client.stream("notes", Note).register()
    group = await stream.consumer("g").register(
        concurrency="ordered", max_retries=2, retry_base=timedelta(milliseconds=50), retry_exponent=1
    )
    texts = ["killer" if number == 3 else str(number) for number in range(8)]
    receipts = await stream.producer().produce_many([Message(Note(text), key="k") for text in texts])
    others = [receipt.id for receipt in receipts if receipt.id != receipts[3].id]
    processes = await _restarted_until(
        lambda processes: {message_id for process in processes for message_id in process.ids()} >= set(others), start
    )
    assert (await group.status()).dead == 1
    ended = sorted((each for process in processes for each in process.deliveries("end")), key=lambda each: each.at)
    assert {each.attempt for each in ended} == {1}
    first_times = list(dict.fromkeys(each.id for each in ended))
    assert first_times == others
