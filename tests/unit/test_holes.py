"""The reasoning about missing ids, against a model of transactions that begin, prepare and end in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
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


class Transaction(Struct):
    """An open transaction that holds the lock. `began` says when, as a count of transactions."""

    holder: Holder
    began: int
    ids: list[int]


class Server(RuleBasedStateMachine):
    """A log, transactions that write to it, and one reader that passes holes by the rule."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.next_id = 1
        self.head = 0
        self.open: list[Transaction] = []
        self.head_read: int | None = None
        self.barrier: Barrier | None = None
        self.raised_at = 0
        self.settled = 0

    @rule()
    def begin(self) -> None:
        self.count += 1
        self.open.append(Transaction(session(f"1/{self.count}"), self.count, []))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def take_an_id(self, data: st.DataObject) -> None:
        transaction = self._choose(data, prepared=False)
        if transaction is not None:
            transaction.ids.append(self.next_id)
            self.next_id += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        transaction = self._choose(data, prepared=False)
        if transaction is not None:
            transaction.holder = prepared(str(700 + transaction.began))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        transaction = data.draw(st.sampled_from(self.open))
        self.open.remove(transaction)
        assert all(each > self.settled for each in transaction.ids), "an id appeared that the reader has passed"
        self.head = max([self.head, *transaction.ids])

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        self.open.remove(data.draw(st.sampled_from(self.open)))

    @precondition(lambda self: self.barrier is None)
    @rule()
    def read_head(self) -> None:
        """Take a snapshot. Anything may happen before the locks are read."""
        self.head_read = self.head

    @precondition(lambda self: self.barrier is None and self.head_read is not None)
    @rule()
    def read_locks(self) -> None:
        assert self.head_read is not None
        self.raised_at = self.count
        self._stand_at(raise_barrier(seen(*self._holders(), head=self.head_read)))
        self.head_read = None

    @precondition(lambda self: self.barrier is not None)
    @rule()
    def look_again(self) -> None:
        assert self.barrier is not None
        self._stand_at(lower_barrier(self.barrier, seen(*self._holders(), head=self.head)))
        if not any(each.began <= self.raised_at or each.holder.prepared for each in self.open):
            assert self.barrier is None, "the reader waits for transactions that began later"

    def _stand_at(self, barrier: Barrier) -> None:
        self.barrier = None if barrier.is_settled else barrier
        if barrier.is_settled:
            self.settled = max(self.settled, barrier.head)

    def _holders(self) -> list[Holder]:
        return [each.holder for each in self.open]

    def _choose(self, data: st.DataObject, *, prepared: bool) -> Transaction | None:
        choice = [each for each in self.open if each.holder.prepared == prepared]
        return data.draw(st.sampled_from(choice)) if choice else None


TestServer = Server.TestCase
TestServer.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
