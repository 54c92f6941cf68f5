"""Handlers within a transaction, in processes that die and freeze: each effect is there exactly once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from sqlstreams import AsyncClient, AsyncConsumer
from tests.chaos.conftest import Start, all_is_done, produce
from tests.chaos.processes import Process
from tests.delivery.effects import effects, seen
from tests.support import Note, eventually


@pytest.fixture
def effect(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with effects(database_url) as connection:
        yield connection


async def test_processes_killed_one_after_the_other_let_each_effect_be_there_once(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start, effect: psycopg.Connection[Any]
) -> None:
    ids = await produce(client, 200)
    for enough in (30, 60):
        victim = start(handler="effect", seconds=0.01, prefetch=60, lease=0.5)
        await eventually(partial(_has, effect, enough))
        victim.send(signal.SIGKILL)
        await eventually(partial(_is_over, victim))
    start(handler="effect", seconds=0, concurrency=10, lease=0.5)
    await all_is_done(group)
    assert seen(effect) == ids


async def test_a_process_that_froze_within_its_handlers_and_wakes_up_has_no_effect(
    client: AsyncClient, group: AsyncConsumer[Note], start: Start, effect: psycopg.Connection[Any]
) -> None:
    ids = await produce(client, 20)
    sleeper = start(handler="effect_thread", seconds=0.3, concurrency=5, prefetch=20)
    await eventually(lambda: len(sleeper.deliveries("start")) >= 8)
    sleeper.send(signal.SIGSTOP)
    start(handler="effect", seconds=0, concurrency=10)
    await all_is_done(group)
    assert seen(effect) == ids

    sleeper.send(signal.SIGCONT)
    await eventually(lambda: len(sleeper.ids()) >= 8 and sleeper.logged("SQL0040"))
    sleeper.send(signal.SIGTERM)
    await eventually(partial(_is_over, sleeper))
    assert sleeper.exit_code == 0
    assert seen(effect) == ids
    await all_is_done(group)


def _has(effect: psycopg.Connection[Any], count: int) -> bool:
    return len(seen(effect)) >= count


def _is_over(process: Process) -> bool:
    return not process.runs
