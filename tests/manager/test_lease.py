"""Who runs the manager is decided by the database alone: by token and term, never by a name or a host's clock."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

from sqlstreams import AsyncClient, statements
from sqlstreams.database import AsyncDatabase
from sqlstreams.statements import LeaseAnswer
from tests.manager.support import database, execute, holders


async def _ask(on: AsyncDatabase, token: UUID, *, ttl: float = 15.0) -> LeaseAnswer:
    (answer,) = await on.query_once(
        statements.take_or_renew(
            "sqlstreams", token=token, hostname="the same", pid=1, library="1", ttl=ttl, reports=[]
        )
    )
    return answer


async def _expire(url: str) -> None:
    await execute(url, "update sqlstreams.worker_instance set expires_at = now() - interval '1 ms'")


async def test_of_thirty_starters_as_many_win_as_there_are_places(client: AsyncClient, database_url: str) -> None:
    for places in (1, 3):
        await execute(
            database_url,
            "delete from sqlstreams.worker_instance",
            f"update sqlstreams.worker_config set target_instances = {places}",
        )
        async with database(database_url, pool_size=30) as on:
            answers = await asyncio.gather(*(_ask(on, uuid4()) for _ in range(30)))
        assert sum(answer.id is not None for answer in answers) == places
        assert len(await holders(client)) == places
        assert all(0 < answer.retry_in <= 15 for answer in answers if answer.retry_in is not None)


async def test_starters_that_meet_an_expired_lease_make_one_new_term(client: AsyncClient, database_url: str) -> None:
    async with database(database_url, pool_size=30) as on:
        await _ask(on, uuid4())
        await _expire(database_url)
        answers = await asyncio.gather(*(_ask(on, uuid4()) for _ in range(30)))
    assert [answer.term for answer in answers if answer.term is not None] == [2]
    assert await holders(client) == [2]


async def test_the_same_host_and_pid_are_not_the_same_holder(client: AsyncClient, database_url: str) -> None:
    mine, other = uuid4(), uuid4()
    async with database(database_url) as on:
        first = await _ask(on, mine)
        assert (await _ask(on, other)).id is None
        assert await _ask(on, mine) == first


async def test_a_lease_that_was_taken_over_is_lost_to_its_old_holder(client: AsyncClient, database_url: str) -> None:
    mine, other = uuid4(), uuid4()
    async with database(database_url) as on:
        old = await _ask(on, mine)
        assert old.term is not None
        await _expire(database_url)
        new = await _ask(on, other)

        again = await _ask(on, mine)

        assert (again.id, again.term) == (None, None)
        assert again.retry_in is not None
        assert new.term == old.term + 1
        assert await holders(client) == [new.term]


async def test_a_late_renewal_keeps_a_lease_that_nobody_took(database_url: str) -> None:
    mine = uuid4()
    async with database(database_url) as on:
        first = await _ask(on, mine)
        await _expire(database_url)
        assert await _ask(on, mine) == first
        assert (await _ask(on, uuid4())).id is None


async def test_where_places_become_fewer_those_that_came_first_stay(client: AsyncClient, database_url: str) -> None:
    await execute(database_url, "update sqlstreams.worker_config set target_instances = 2")
    tokens = [uuid4(), uuid4()]
    async with database(database_url) as on:
        first, second = [await _ask(on, token) for token in tokens]
        assert (first.term, second.term) == (1, 2)
        await execute(database_url, "update sqlstreams.worker_config set target_instances = 1")
        assert (await _ask(on, tokens[1])).id is None
        assert await _ask(on, tokens[0]) == first
        await execute(database_url, "update sqlstreams.worker_config set target_instances = 0")
        nobody = await _ask(on, tokens[0])
    assert (nobody.id, nobody.retry_in) == (None, None)
    assert await holders(client) == []
