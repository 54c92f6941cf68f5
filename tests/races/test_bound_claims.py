"""Claims of groups with bindings: no match is missed, and each range keeps the bindings it was claimed with."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from sqlstreams import Client, Message, RawPayload
from sqlstreams.consume.claiming import Claimed, read_bound_claim
from sqlstreams.consume.holes import Barrier, lower_barrier, raise_barrier
from sqlstreams.database import execute
from sqlstreams.statements import (
    Family,
    claim,
    claim_bound,
    insert_instance,
    read_settled_head,
    settled_head,
    take_over,
)

MESSAGES, CLAIMERS = 12_000, 4
FAMILY = Family("sqlstreams", 1)
Connection = psycopg.Connection[Any]


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """The first stream's only group takes what is routed to eu."""
    with Client(database_url) as client:
        client.stream("notes", RawPayload).register().consumer("group").register(bindings=["eu.*"])
        yield client


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def _produce(client: Client, *routing_keys: str | None) -> None:
    messages = [Message(RawPayload(b"1"), routing_key=each) for each in routing_keys]
    client.stream("notes", RawPayload).producer().produce_many(messages)


class _Claimer:
    """One process's claims, without the rest of a consumer."""

    def __init__(self, connection: Connection, seed: int = 0) -> None:
        self._connection = connection
        self._random = random.Random(seed)
        self._settled = 0
        self._barrier: Barrier | None = None
        entering = insert_instance("sqlstreams", token=uuid4(), hostname="here", pid=1, library="0", ttl=60)
        self.instance_id = execute(connection, entering)[0].id

    def claim(self, *, limit: int, scan: int, token: UUID | None = None) -> Claimed:
        statement = claim_bound(
            FAMILY,
            group_id=1,
            instance_id=self.instance_id,
            token=token or uuid4(),
            limit=limit,
            scan=scan,
            settled=self._settled,
            finished=[],
            gated=False,
        )
        return read_bound_claim(execute(self._connection, statement))

    def run(self, written: threading.Event) -> list[int]:
        ids: list[int] = []
        while True:
            at_end = written.is_set()
            claimed = self.claim(limit=self._random.randint(1, 20), scan=self._random.randint(20, 200))
            ids += [row[0] for row in claimed.rows]
            if claimed.at_hole:
                self._look_at_hole()
            elif claimed.high is None and at_end:
                return ids

    def _look_at_hole(self) -> None:
        now = settled_head(execute(self._connection, read_settled_head(FAMILY)))
        barrier = raise_barrier(now) if self._barrier is None else lower_barrier(self._barrier, now)
        self._barrier = None if barrier.is_settled else barrier
        if barrier.is_settled:
            self._settled = barrier.head


def test_no_match_is_missed_or_taken_twice_while_a_log_is_written_with_holes(
    database_url: str, client: Client, connection: Connection
) -> None:
    written = threading.Event()
    with ThreadPoolExecutor(CLAIMERS + 3) as threads:
        producers = [threads.submit(_write, database_url, seed, MESSAGES // 3) for seed in range(3)]
        claimers = [threads.submit(_run_claimer, database_url, seed, written) for seed in range(CLAIMERS)]
        for producer in producers:
            producer.result()
        written.set()
        claimed = [message_id for claimer in claimers for message_id in claimer.result()]
    matching = connection.execute(
        "select id from sqlstreams.message_log_1 where routing_key like 'eu.%' order by id"
    ).fetchall()
    assert len(matching) > MESSAGES / 10
    assert sorted(claimed) == [message_id for (message_id,) in matching]
    last = connection.execute("select max(id) from sqlstreams.message_log_1").fetchone()
    assert connection.execute("select claimed from sqlstreams.consumer_group_cursor").fetchone() == last
    leases = connection.execute("select low, high from sqlstreams.claim_lease order by low").fetchall()
    assert all(low > high for (_, high), (low, _) in itertools.pairwise(leases))


def _run_claimer(url: str, seed: int, written: threading.Event) -> list[int]:
    with psycopg.connect(url, autocommit=True) as connection:
        return _Claimer(connection, seed).run(written)


def _write(url: str, seed: int, count: int) -> None:
    dice = random.Random(seed)
    with psycopg.connect(url) as connection:
        while count > 0:
            size = dice.randint(1, 300)
            for part in (size // 2, size - size // 2):
                connection.execute(
                    """insert into sqlstreams.message_log_1 (payload, routing_key)
                       select '1', (array['eu.paid', 'us.paid', 'us.new', null])[1 + floor(random() * 4)]
                         from generate_series(1, %s)""",
                    (part,),
                )
                time.sleep(dice.choice((0, 0.001, 0.005)))
            if dice.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                count -= size


def test_a_range_without_a_match_needs_no_lease_and_is_passed(client: Client, connection: Connection) -> None:
    _produce(client, *["us.paid"] * 50, "eu.paid", None)
    claimer = _Claimer(connection)
    first = claimer.claim(limit=10, scan=30)
    assert (first.low, first.high, first.rows, first.is_full) == (1, 30, [], True)
    assert connection.execute("select count(*) from sqlstreams.claim_lease").fetchone() == (0,)
    second = claimer.claim(limit=10, scan=30)
    assert (second.low, second.high, [row[0] for row in second.rows], second.is_full) == (31, 52, [51], False)
    assert claimer.claim(limit=10, scan=30) == Claimed(53, None, [], at_hole=False, is_full=False)


def test_a_match_behind_a_hole_waits_for_whoever_may_fill_it(
    database_url: str, client: Client, connection: Connection
) -> None:
    claimer = _Claimer(connection)
    with psycopg.connect(database_url) as slow:
        slow.execute("insert into sqlstreams.message_log_1 (payload, routing_key) values ('1', 'eu.late')")
        _produce(client, "eu.paid")
        waiting = claimer.claim(limit=10, scan=100)
        assert (waiting.at_hole, waiting.high, waiting.rows) == (True, None, [])
        slow.commit()
    assert [row[0] for row in claimer.claim(limit=10, scan=100).rows] == [1, 2]


def test_a_range_taken_over_keeps_the_bindings_that_it_was_claimed_with(client: Client, connection: Connection) -> None:
    # given: a range claimed for eu by a process that died, and a group that takes us since
    _produce(client, "eu.paid", "us.paid", "eu.new", None, "eu.paid")
    dead, heir = _Claimer(connection), _Claimer(connection)
    assert [row[0] for row in dead.claim(limit=10, scan=100).rows] == [1, 3, 5]
    client.stream("notes", RawPayload).consumer("group").register(bindings=["us.*"])
    connection.execute("update sqlstreams.consumer_instance set expires_at = now() where id = %s", (dead.instance_id,))
    # when: it is taken over
    rows = execute(connection, take_over(FAMILY, group_id=1, instance_id=heir.instance_id, token=uuid4(), gated=False))
    # then: what the claim gave is delivered again, and no more
    assert [row[5] for row in rows] == [1, 3, 5]
    _produce(client, "eu.paid", "us.paid")
    assert [row[0] for row in heir.claim(limit=10, scan=100).rows] == [7]


@pytest.mark.parametrize("bindings", [["us.*"], None])
def test_a_claim_that_waited_for_a_declaration_goes_by_it(
    database_url: str, client: Client, connection: Connection, bindings: list[str] | None
) -> None:
    _produce(client, "eu.paid", "us.paid", None)
    claimer = _Claimer(connection)
    with psycopg.connect(database_url) as declaring, ThreadPoolExecutor(1) as threads:
        declaring.execute("update sqlstreams.consumer_group_cursor set bindings = %s", (bindings and ["us.%"],))
        waiting = threads.submit(claimer.claim, limit=10, scan=100)
        _until_waiting(database_url, connection.info.backend_pid)
        declaring.commit()
        assert [row[0] for row in waiting.result(timeout=10).rows] == ([2] if bindings else [1, 2, 3])


def test_a_claim_that_knows_nothing_of_bindings_takes_nothing_of_a_group_that_has_some(
    database_url: str, client: Client, connection: Connection
) -> None:
    client.stream("notes", RawPayload).consumer("group").register()
    _produce(client, "eu.paid", "us.paid")
    plain = claim(
        FAMILY,
        group_id=1,
        instance_id=_Claimer(connection).instance_id,
        token=uuid4(),
        limit=1,
        settled=0,
        finished=[],
        gated=False,
    )
    assert [row[0] for row in execute(connection, plain)] == [1]
    with psycopg.connect(database_url) as declaring, ThreadPoolExecutor(1) as threads:
        declaring.execute("update sqlstreams.consumer_group_cursor set bindings = '{eu.%}'")
        waiting = threads.submit(execute, connection, plain)
        _until_waiting(database_url, connection.info.backend_pid)
        declaring.commit()
        assert waiting.result(timeout=10) == []


def _until_waiting(url: str, pid: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(1_000):
            row = connection.execute(
                "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'", (pid,)
            ).fetchone()
            if row is not None:
                return
            connection.execute("select pg_sleep(0.01)")
    raise AssertionError(f"session {pid} waited for no lock")
