"""What waits behind a retry of an ordered key comes along with it, but passes nothing that has to run alone."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import psycopg
import pytest

from sqlstreams import Client, statements
from sqlstreams.database import execute
from sqlstreams.statements import Family
from tests.support import Note


@pytest.mark.parametrize(
    ("alone", "taken"),
    [
        ([], [1, 2, 3, 4]),
        ([2], [1]),
        ([3], [1, 2]),
        ([4], [1, 2, 3]),
        ([2, 4], [1]),
        ([1], [1]),  # which has to run alone itself
    ],
)
def test_followers_pass_nothing_that_has_to_run_alone(
    database_url: str, alone: Sequence[int], taken: Sequence[int]
) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        stream.consumer("g").register(concurrency="ordered")
        stream.producer().produce_many([Note(str(number)) for number in range(4)])
    with psycopg.connect(database_url, autocommit=True) as connection:
        # As a process leaves them that dies with the first of a key in its hands.
        connection.execute(
            """insert into sqlstreams.exception_queue_1
                      (group_id, message_id, state, can_run_after, message_key, concurrency, alone)
               select 1, n, case n when 1 then 'ready' else 'deferred' end, now(), 'k', 'ordered', n = any(%s::bigint[])
                 from generate_series(1, 4) as n""",
            [list(alone)],
        )
        token = uuid4()
        entered = statements.insert_instance("sqlstreams", token=token, hostname="h", pid=1, library="1", ttl=60.0)
        claim = statements.claim_exceptions(
            Family("sqlstreams", 1),
            group_id=1,
            instance_id=execute(connection, entered)[0].id,
            token=token,
            limit=10,
            waited=10,
            free=10,
            followers=100,
            versions=[],
        )
        assert [row[0] for row in execute(connection, claim)] == list(taken)
