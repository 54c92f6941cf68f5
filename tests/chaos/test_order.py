"""Order of keys when processes are killed or freeze."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from sqlstreams import AsyncClient, AsyncConsumer, Message
from tests.chaos.conftest import Start, all_is_done
from tests.chaos.processes import Process, twice_delivered
from tests.support import Note, eventually


async def _ordered_group(client: AsyncClient, *, messages: int, keys: int) -> AsyncConsumer[Note]:
    stream = await client.stream("notes", Note).register()
    group = await stream.consumer("g").register(concurrency="ordered")
    await stream.producer().produce_many(
        [Message(Note(str(number)), key=f"k{number % keys}") for number in range(messages)]
    )
    return group


def _first_ends(processes: Sequence[Process], keys: int) -> dict[int, list[int]]:
    """Return for each key the ids in the order in which they were first handled to the end."""
    ends = sorted((each for process in processes for each in process.deliveries("end")), key=lambda each: each.at)
    first: dict[int, list[int]] = {}
    seen: set[int] = set()
    for each in ends:
        if each.id not in seen:
            seen.add(each.id)
            first.setdefault((each.id - 1) % keys, []).append(each.id)
    return first


async def test_order_holds_when_processes_are_killed(client: AsyncClient, start: Start) -> None:
    group = await _ordered_group(client, messages=600, keys=8)
    processes = [start(seconds=0.03, concurrency=4, prefetch=25) for _ in range(3)]
    for victim in processes[:2]:
        # One process may have every key, so it is what all have done that counts.
        before = sum(len(process.ids()) for process in processes)
        await eventually(lambda before=before: sum(len(each.ids()) for each in processes) >= before + 40)  # type: ignore[misc]
        victim.send(signal.SIGKILL)
        processes.append(start(seconds=0.03, concurrency=4, prefetch=25))
    await eventually(lambda: {each for process in processes for each in process.ids()} == set(range(1, 601)), within=60)
    await all_is_done(group)
    for ids in _first_ends(processes, 8).values():
        assert ids == sorted(ids)


async def test_order_holds_when_a_process_freezes_and_comes_back(client: AsyncClient, start: Start) -> None:
    group = await _ordered_group(client, messages=300, keys=6)
    # So slow that it is far from the end, however late it is noticed that it has begun.
    frozen = start(handler="flaky", seconds=0.1, concurrency=4, prefetch=25)
    await eventually(lambda: len(frozen.ids()) >= 10)
    frozen.send(signal.SIGSTOP)
    other = start(handler="flaky", seconds=0.01, concurrency=4, prefetch=25)
    await eventually(lambda: other.logged("SQL0104"), within=60)
    frozen.send(signal.SIGCONT)
    await eventually(lambda: set(frozen.ids()) | set(other.ids()) == set(range(1, 301)), within=60)
    await all_is_done(group)
    twice = twice_delivered([frozen, other])
    for ids in _first_ends([frozen, other], 6).values():
        once = [each for each in ids if each not in twice]
        assert once == sorted(once)
