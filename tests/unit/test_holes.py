"""The reasoning about missing ids, against a model of transactions that begin, prepare and end in any order."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sqlstreams.consume.holes import Barrier, lower_barrier, raise_barrier
from sqlstreams.model import Holder
from sqlstreams.statements import SettledHead


def session(name: str) -> Holder:
    return Holder(transaction=name, pid=1, application=None, state=None, age=None)


def prepared(name: str) -> Holder:
    return Holder(transaction=name, pid=None, application=None, state=None, age=None, gid=name)


def seen(*holders: Holder, head: int = 10) -> SettledHead:
    return SettledHead(head=head, holders=holders)


def test_without_holders_everything_up_to_the_head_is_settled() -> None:
    barrier = raise_barrier(seen())
    assert barrier.is_settled
    assert barrier.head == 10


def test_a_barrier_is_settled_when_its_last_holder_ended() -> None:
    barrier = raise_barrier(seen(session("1/1"), session("2/1")))
    barrier = lower_barrier(barrier, seen(session("2/1")))
    assert not barrier.is_settled
    assert lower_barrier(barrier, seen()).is_settled


def test_a_barrier_keeps_its_head_however_far_the_log_grows() -> None:
    barrier = raise_barrier(seen(session("1/1"), head=10))
    assert lower_barrier(barrier, seen(head=99)).head == 10


def test_sessions_that_came_later_do_not_count() -> None:
    barrier = raise_barrier(seen(session("1/1")))
    assert lower_barrier(barrier, seen(session("1/2"), session("3/1"))).is_settled


def test_a_new_prepared_transaction_may_be_a_session_that_was_waited_for() -> None:
    barrier = raise_barrier(seen(session("1/1")))
    barrier = lower_barrier(barrier, seen(prepared("700")))
    assert barrier.holders == (prepared("700"),)
    assert lower_barrier(barrier, seen()).is_settled


def test_a_new_prepared_transaction_is_none_of_the_prepared_ones_that_were_waited_for() -> None:
    barrier = raise_barrier(seen(prepared("700")))
    assert lower_barrier(barrier, seen(prepared("701"))).is_settled


@settings(max_examples=1_000, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_id_appears_that_was_passed_and_nobody_waits_for_transactions_that_began_later(seed: int) -> None:
    server = Server(random.Random(seed))
    for _ in range(60):
        server.step()


class Transaction(Struct, eq=False):
    """An open transaction that holds the lock; `number` counts them in the order of their beginning."""

    holder: Holder
    number: int
    ids: list[int]


class Server:
    """A log, transactions that write to it at random, and one reader that passes holes by the rule."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.begun = 0
        self.last_id = 0
        self.head = 0
        self.open: list[Transaction] = []
        self.head_read: int | None = None
        self.barrier: Barrier | None = None
        self.begun_before_barrier = 0
        self.settled = 0

    def step(self) -> None:
        self.dice.choice((self.begin, self.take_an_id, self.prepare, self.end, self.look, self.look))()

    def begin(self) -> None:
        if len(self.open) < 4:
            self.begun += 1
            self.open.append(Transaction(session(f"1/{self.begun}"), self.begun, []))

    def take_an_id(self) -> None:
        if writing := [each for each in self.open if not each.holder.prepared]:
            self.last_id += 1
            self.dice.choice(writing).ids.append(self.last_id)

    def prepare(self) -> None:
        if writing := [each for each in self.open if each.ids and not each.holder.prepared]:
            transaction = self.dice.choice(writing)
            transaction.holder = prepared(str(700 + transaction.number))

    def end(self) -> None:
        if self.open:
            transaction = self.open.pop(self.dice.randrange(len(self.open)))
            if self.dice.random() < 0.7:
                assert all(each > self.settled for each in transaction.ids), "an id appeared that was passed"
                self.head = max([self.head, *transaction.ids])

    def look(self) -> None:
        """Read the head, or the locks: anything may happen in between."""
        if self.barrier is not None:
            self._stand_at(lower_barrier(self.barrier, seen(*self._holders(), head=self.head)))
            self._check_patience()
        elif self.head_read is None:
            self.head_read = self.head
        else:
            self.begun_before_barrier = self.begun
            self._stand_at(raise_barrier(seen(*self._holders(), head=self.head_read)))
            self.head_read = None

    def _stand_at(self, barrier: Barrier) -> None:
        self.barrier = None if barrier.is_settled else barrier
        if barrier.is_settled:
            self.settled = max(self.settled, barrier.head)

    def _check_patience(self) -> None:
        older = [each for each in self.open if each.number <= self.begun_before_barrier]
        if not older and not any(each.holder.prepared for each in self.open):
            assert self.barrier is None, "the reader waits for transactions that began later"

    def _holders(self) -> list[Holder]:
        return [each.holder for each in self.open]
