"""Ranges of a process that is gone are taken over from the lowest on, before anything later, and it gets none back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from sqlstreams import Client, statements
from sqlstreams.database import execute, prepare_adapters
from sqlstreams.statements import Columns, Family, Statement
from tests.support import Note

FAMILY = Family("sqlstreams", 1)


class Two:
    """A process that holds ids 1 to 5 and 6 to 10 and is silent for too long, and another one."""

    def __init__(self, old: psycopg.Connection[Any], new: psycopg.Connection[Any]) -> None:
        self.old, self.new = old, new
        self.old_token = uuid4()
        self.old_id = self._enter(old, self.old_token)
        self.new_id = self._enter(new, uuid4())
        self.ranges = [uuid4(), uuid4()]
        for token in self.ranges:
            assert len(execute(old, self.claim(self.old_id, token))) == 5
        old.execute("update sqlstreams.consumer_instance set expires_at = now() where id = %s", [self.old_id])

    def _enter(self, connection: psycopg.Connection[Any], token: UUID) -> int:
        prepare_adapters(connection.adapters)
        entered = statements.insert_instance("sqlstreams", token=token, hostname="h", pid=1, library="1", ttl=60.0)
        return execute(connection, entered)[0].id

    def claim(self, instance_id: int, token: UUID) -> Statement[Columns]:
        return statements.claim(
            FAMILY, group_id=1, instance_id=instance_id, token=token, limit=5, settled=0, finished=[], gated=True
        )

    def renew(self) -> Statement[Columns]:
        return statements.renew_instance("sqlstreams", instance_id=self.old_id, token=self.old_token, ttl=60.0)

    def take_over(self) -> list[int]:
        """Take a range over as a process does where keys matter; return its ids."""
        with self.new.transaction():
            execute(self.new, statements.lock_cursor("sqlstreams", group_id=1))
            execute(self.new, statements.lock_loose_leases("sqlstreams", group_id=1, instance_id=self.new_id))
            taking = statements.take_over(FAMILY, group_id=1, instance_id=self.new_id, token=uuid4(), gated=True)
            return [row[5] for row in execute(self.new, taking)]


@pytest.fixture
def two(database_url: str) -> Iterator[Two]:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        stream.consumer("g").register(concurrency="ordered")
        stream.producer().produce_many([Note(str(number)) for number in range(20)])
    with ExitStack() as stack:
        old, new = (stack.enter_context(psycopg.connect(database_url, autocommit=True)) for _ in range(2))
        yield Two(old, new)


def test_a_process_that_was_late_goes_on_when_nobody_took_anything(two: Two) -> None:
    assert execute(two.old, two.renew())
    assert two.take_over() == []


def test_a_process_that_lost_one_range_gets_none_back(two: Two) -> None:
    assert two.take_over() == [1, 2, 3, 4, 5]
    assert execute(two.old, two.renew()) == []
    assert two.take_over() == [6, 7, 8, 9, 10]


def test_nothing_later_is_claimed_while_a_range_waits_to_be_taken_over(two: Two) -> None:
    at_hole = [(None,) * len(execute(two.new, two.claim(two.new_id, uuid4()))[0])]
    assert execute(two.new, two.claim(two.new_id, uuid4())) == at_hole
    two.take_over()
    assert execute(two.new, two.claim(two.new_id, uuid4())) == at_hole
    two.take_over()
    assert [row[0] for row in execute(two.new, two.claim(two.new_id, uuid4()))] == [11, 12, 13, 14, 15]


def test_a_range_that_is_being_written_to_is_waited_for_and_not_passed(two: Two) -> None:
    taken: list[int] = []
    taking = threading.Thread(target=lambda: taken.extend(two.take_over()))
    with two.old.transaction():
        checkpoint = statements.checkpoint(
            "sqlstreams", instance_id=two.old_id, tokens=two.ranges[:1], resolved=[2], done=[[]]
        )
        assert len(execute(two.old, checkpoint)) == 1
        taking.start()
        taking.join(0.2)
        assert taking.is_alive()
    taking.join(10)
    assert taken == [3, 4, 5]


def test_a_process_that_renews_at_the_very_moment_keeps_its_ranges(two: Two) -> None:
    taken: list[int] = []
    taking = threading.Thread(target=lambda: taken.extend(two.take_over()))
    with two.old.transaction():
        assert execute(two.old, two.renew())
        taking.start()
        taking.join(0.2)
        assert taking.is_alive()
    taking.join(10)
    assert taken == []
    assert execute(two.old, two.renew())
