"""A network that is cut: consumers recover soon after it heals, and what they lost meanwhile is fenced."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sqlstreams import AsyncClient, AsyncConsumer
from tests.chaos.conftest import Start, all_is_done, produce
from tests.chaos.processes import explained, finished, twice_delivered
from tests.chaos.proxy import Network, network
from tests.support import Note, eventually

SILENCE = pytest.mark.skipif(
    not psycopg.capabilities.has_cancel_safe(),
    reason="before libpq 17 cancelling a statement blocks for as long as the network is silent",
)


@pytest.fixture
async def net(database_url: str) -> AsyncIterator[Network]:
    async with network(database_url) as net:
        yield net


async def test_a_consumer_recovers_within_two_seconds_of_an_outage(
    client: AsyncClient, group: AsyncConsumer[Note], net: Network, start: Start
) -> None:
    await produce(client, 10)
    process = start(url=net.url, lease=60)
    await eventually(lambda: len(process.ids()) == 10)
    net.refuse()
    began = time.monotonic()
    await produce(client, 10)
    # Pauses that double would be at 1, 3 and 7 s.
    await eventually(lambda: time.monotonic() - began > 4)
    net.heal()
    await eventually(lambda: len(process.ids()) == 20, within=2.5)
    await all_is_done(group)
    assert await group.reclaims() == []


async def test_what_is_lost_while_connections_are_cut_is_fenced(
    client: AsyncClient, group: AsyncConsumer[Note], net: Network, start: Start
) -> None:
    ids = await produce(client, 60)
    cut_off = start(url=net.url, handler="flaky", seconds=0.1, concurrency=3, prefetch=60)
    await eventually(lambda: len(cut_off.ids()) >= 6)
    net.refuse()
    heir = start(concurrency=20)
    await eventually(lambda: set(ids) <= set(cut_off.ids()) | set(heir.ids()))
    net.heal()
    await eventually(lambda: cut_off.logged("SQL0040"))
    heir.send(signal.SIGTERM)
    await eventually(lambda: not heir.runs)
    later = await produce(client, 20)
    await eventually(lambda: set(later) <= set(cut_off.ids()))
    await all_is_done(group)
    assert twice_delivered([cut_off, heir]) <= explained(await group.reclaims())
    assert {finished([cut_off, heir])[each] for each in later} == {1}


@SILENCE
async def test_a_silent_network_is_noticed_and_what_is_lost_meanwhile_is_fenced(
    client: AsyncClient, group: AsyncConsumer[Note], net: Network, start: Start
) -> None:
    ids = await produce(client, 60)
    url = make_conninfo(net.url, connect_timeout=2)
    cut_off = start(url=url, seconds=0.5, concurrency=3, prefetch=60, timeout=1)
    await eventually(lambda: len(cut_off.ids()) >= 3)
    net.fall_silent()
    heir = start(concurrency=20)
    await eventually(lambda: set(ids) <= set(cut_off.ids()) | set(heir.ids()))
    # What stood is never answered, as behind a firewall that forgot it; only new connections work.
    net.forget()
    await eventually(lambda: cut_off.logged("SQL0040"), within=15)
    heir.send(signal.SIGTERM)
    await eventually(lambda: not heir.runs)
    later = await produce(client, 20)
    await eventually(lambda: set(later) <= set(cut_off.ids()), within=15)
    await all_is_done(group)
    assert twice_delivered([cut_off, heir]) <= explained(await group.reclaims())


@pytest.mark.parametrize("how", ["refuse", pytest.param("fall_silent", marks=SILENCE)])
async def test_a_process_stops_in_good_time_without_a_network(
    client: AsyncClient, group: AsyncConsumer[Note], net: Network, start: Start, how: str
) -> None:
    await produce(client, 10)
    process = start(url=net.url, seconds=0.5, timeout=1)
    await eventually(lambda: len(process.ids()) >= 2)
    getattr(net, how)()
    process.send(signal.SIGTERM)
    await eventually(lambda: not process.runs, within=25)
    assert process.exit_code == 0
    heir = start()
    await eventually(lambda: set(process.ids()) | set(heir.ids()) == set(range(1, 11)))
    await all_is_done(group)
