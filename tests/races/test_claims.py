"""Many connections claim for one group at once: their ranges tile the log."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from sqlstreams import Client, RawPayload
from sqlstreams.consume.holes import Barrier, lower_barrier, raise_barrier
from sqlstreams.database import execute
from sqlstreams.statements import Family, SettledHead, claim, insert_instance, read_settled_head, settled_head

MESSAGES = 20_000
CLAIMERS = 8
FAMILY = Family("sqlstreams", 1)


@pytest.fixture
def group_id(database_url: str) -> int:
    """The first stream's only group."""
    with Client(database_url) as client:
        stream = client.stream("notes", RawPayload).register()
        stream.consumer("group").register()
        info = stream.consumer("group").get()
        assert info is not None
        return info.id


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def test_concurrent_claims_tile_a_log_that_is_being_written(
    database_url: str, group_id: int, connection: psycopg.Connection[Any]
) -> None:
    # given: producers that commit out of order and roll back now and then
    written = threading.Event()
    with ThreadPoolExecutor(CLAIMERS + 4) as threads:
        producers = [threads.submit(_produce, database_url, seed, MESSAGES // 4) for seed in range(4)]
        # when: every claimer takes ranges of random size until everything is claimed
        claimers = [threads.submit(_Claimer(database_url, group_id, seed).run, written) for seed in range(CLAIMERS)]
        for producer in producers:
            producer.result()
        written.set()
        claimed = [message_id for claimer in claimers for message_id in claimer.result()]
    # then: each visible id was handed out once, and the leases lie end to end without a gap or an overlap
    visible = [row[0] for row in connection.execute("select id from sqlstreams.message_log_1 order by id")]
    assert len(visible) >= MESSAGES
    assert sorted(claimed) == visible
    leases = connection.execute("select low, high from sqlstreams.claim_lease order by low").fetchall()
    assert leases[0][0] == 1
    assert leases[-1][1] == visible[-1]
    assert [low for low, _ in leases[1:]] == [high + 1 for _, high in leases[:-1]]
    assert connection.execute("select claimed from sqlstreams.consumer_group_cursor").fetchone() == (visible[-1],)


def test_a_claim_that_waited_for_another_goes_on_where_that_one_ended(
    database_url: str, group_id: int, connection: psycopg.Connection[Any]
) -> None:
    with Client(database_url) as client:
        client.stream("notes", RawPayload).producer().produce_many([RawPayload(b"1")] * 10)
    first, second = _Claimer(database_url, group_id, 1), _Claimer(database_url, group_id, 2)
    with first.connect() as one, second.connect() as two, ThreadPoolExecutor(1) as threads:
        # given: a claim whose transaction is still open
        one.execute("begin")
        assert [row[0] for row in first.claim(one, limit=4)] == [1, 2, 3, 4]
        # when: the other one waits for it with a snapshot that does not show it
        waiting = threads.submit(second.claim, two, limit=4)
        _until_waiting(connection, two.info.backend_pid)
        one.execute("commit")
        # then: the cursor that counts is the newest, not that of the snapshot
        assert [row[0] for row in waiting.result(timeout=10)] == [5, 6, 7, 8]


def test_a_claim_that_waited_for_another_takes_over_when_that_one_was_undone(
    database_url: str, group_id: int, connection: psycopg.Connection[Any]
) -> None:
    with Client(database_url) as client:
        client.stream("notes", RawPayload).producer().produce_many([RawPayload(b"1")] * 10)
    first, second = _Claimer(database_url, group_id, 1), _Claimer(database_url, group_id, 2)
    with first.connect() as one, second.connect() as two, ThreadPoolExecutor(1) as threads:
        one.execute("begin")
        assert [row[0] for row in first.claim(one, limit=4)] == [1, 2, 3, 4]
        waiting = threads.submit(second.claim, two, limit=4)
        _until_waiting(connection, two.info.backend_pid)
        one.execute("rollback")
        assert [row[0] for row in waiting.result(timeout=10)] == [1, 2, 3, 4]


class _Claimer:
    """One process's claims, without the rest of a consumer."""

    def __init__(self, url: str, group_id: int, seed: int) -> None:
        self._url = url
        self._group_id = group_id
        self._random = random.Random(seed)
        self._instance_id = 0
        self._settled = 0
        self._barrier: Barrier | None = None

    def connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self._url, autocommit=True)
        entering = insert_instance(
            "sqlstreams", token=uuid4(), hostname="here", pid=connection.info.backend_pid, library="0", ttl=60
        )
        self._instance_id = execute(connection, entering)[0].id
        return connection

    def claim(self, connection: psycopg.Connection[Any], *, limit: int) -> list[tuple[Any, ...]]:
        statement = claim(
            FAMILY,
            group_id=self._group_id,
            instance_id=self._instance_id,
            token=uuid4(),
            limit=limit,
            settled=self._settled,
            finished=[],
            gated=False,
        )
        return execute(connection, statement)

    def run(self, written: threading.Event) -> list[int]:
        claimed: list[int] = []
        with self.connect() as connection:
            while True:
                at_end = written.is_set()
                rows = self.claim(connection, limit=self._random.randint(1, 60))
                if rows and rows[0][0] is None:
                    self._look_at_hole(_settled_head(connection))
                elif rows:
                    claimed += [row[0] for row in rows]
                elif at_end:
                    return claimed

    def _look_at_hole(self, now: SettledHead) -> None:
        barrier = raise_barrier(now) if self._barrier is None else lower_barrier(self._barrier, now)
        self._barrier = None if barrier.is_settled else barrier
        if barrier.is_settled:
            self._settled = barrier.head


def _settled_head(connection: psycopg.Connection[Any]) -> SettledHead:
    return settled_head(execute(connection, read_settled_head(FAMILY)))


def _produce(url: str, seed: int, count: int) -> None:
    dice = random.Random(seed)
    with psycopg.connect(url) as connection:
        while count > 0:
            size = dice.randint(1, 100)
            for part in (size // 2, size - size // 2):
                connection.execute(
                    "insert into sqlstreams.message_log_1 (payload) select '1' from generate_series(1, %s)", (part,)
                )
                time.sleep(dice.choice((0, 0.001, 0.005)))
            if dice.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                count -= size


def _until_waiting(connection: psycopg.Connection[Any], pid: int) -> None:
    for _ in range(1_000):
        row = connection.execute(
            "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'", (pid,)
        ).fetchone()
        if row is not None:
            return
        connection.execute("select pg_sleep(0.01)")
    raise AssertionError(f"session {pid} waited for no lock")
