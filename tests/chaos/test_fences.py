"""Every statement that changes leased work proves the lease: with a token that was taken over it changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from sqlstreams import Client, statements
from sqlstreams.database import execute, prepare_adapters
from sqlstreams.statements import Failures, Family
from tests.support import Note

SCHEMA = "sqlstreams"
WAITING = b"select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


class World:
    """A group whose range of ids 1 to 10 was taken over from one process by another, and two retries likewise."""

    def __init__(self, old: psycopg.Connection[Any], new: psycopg.Connection[Any], family: Family, url: str) -> None:
        self.url = url
        self.old, self.new, self.family, self.group_id = old, new, family, 1
        self.old_token, self.new_token = uuid4(), uuid4()
        self.old_retry, self.new_retry = uuid4(), uuid4()
        self.old_id, self.new_id = self._enter(old), self._enter(new)
        self._give_to_the_old_process()
        self._take_over()

    def _enter(self, connection: psycopg.Connection[Any]) -> int:
        entered = statements.insert_instance(SCHEMA, token=uuid4(), hostname="h", pid=1, library="0", ttl=60)
        return execute(connection, entered)[0].id

    def _give_to_the_old_process(self) -> None:
        execute(self.old, self.claim(self.old, token=self.old_token))
        execute(self.old, self.record_exceptions(self.old_token, self.old_id, [1, 2]))
        self.old.execute("update sqlstreams.exception_queue_1 set can_run_after = now()")
        taken = self.claim_exceptions(self.old_id, self.old_retry)
        assert len(execute(self.old, taken)) == 2

    def _take_over(self) -> None:
        self.new.execute("update sqlstreams.consumer_instance set expires_at = now() where id = %s", [self.old_id])
        assert len(execute(self.new, self.take_over(self.new_id, self.new_token))) == 8
        assert len(execute(self.new, self.free_exceptions(self.new_id))) == 2
        self.new.execute("update sqlstreams.exception_queue_1 set can_run_after = now()")
        assert len(execute(self.new, self.claim_exceptions(self.new_id, self.new_retry))) == 2
        self.old.execute("update sqlstreams.consumer_instance set expires_at = now() + interval '1 minute'")

    def claim(
        self, connection: psycopg.Connection[Any], *, token: UUID, finished: list[UUID] | None = None
    ) -> statements.Statement[tuple[Any, ...]]:
        return statements.claim(
            self.family,
            group_id=self.group_id,
            instance_id=self.old_id if connection is self.old else self.new_id,
            token=token,
            limit=10,
            settled=0,
            finished=finished or [],
            gated=False,
        )

    def claim_exceptions(self, instance_id: int, token: UUID) -> statements.Statement[tuple[Any, ...]]:
        return statements.claim_exceptions(
            self.family,
            group_id=self.group_id,
            instance_id=instance_id,
            token=token,
            limit=10,
            waited=10,
            free=10,
            followers=100,
            versions=[],
        )

    def take_over(self, instance_id: int, token: UUID) -> statements.Statement[tuple[Any, ...]]:
        return statements.take_over(
            self.family, group_id=self.group_id, instance_id=instance_id, token=token, gated=False
        )

    def free_exceptions(self, instance_id: int) -> statements.Statement[statements.Recorded]:
        return statements.free_exceptions(self.family, group_id=self.group_id, instance_id=instance_id)

    def record_exceptions(
        self, token: UUID, instance_id: int, message_ids: list[int]
    ) -> statements.Statement[statements.Recorded]:
        return statements.record_exceptions(
            self.family,
            group_id=self.group_id,
            instance_id=instance_id,
            tokens=[token] * len(message_ids),
            failures=failures(message_ids),
            schema_versions=[1] * len(message_ids),
            message_keys=[None] * len(message_ids),
            concurrencies=[None] * len(message_ids),
        )

    def rows(self) -> list[Any]:
        """Return every lease and exception row."""
        leases = self.new.execute("select * from sqlstreams.claim_lease order by low").fetchall()
        return leases + self.new.execute("select * from sqlstreams.exception_queue_1 order by message_id").fetchall()


def failures(message_ids: list[int]) -> Failures:
    count = len(message_ids)
    return Failures(
        message_ids, ["failed"] * count, ["ready"] * count, [0.0] * count, ["ValueError"] * count, ["late"] * count
    )


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        stream.consumer("g").register()
        stream.producer().produce_many([Note(str(number)) for number in range(20)])
    with (
        psycopg.connect(database_url, autocommit=True) as old,
        psycopg.connect(database_url, autocommit=True) as new,
    ):
        prepare_adapters(old.adapters)
        prepare_adapters(new.adapters)
        yield World(old, new, Family(SCHEMA, 1), database_url)


@pytest.fixture
def before(world: World) -> list[Any]:
    return world.rows()


def test_a_checkpoint_with_an_old_token_changes_nothing(world: World, before: list[Any]) -> None:
    late = statements.checkpoint(SCHEMA, instance_id=world.old_id, tokens=[world.old_token], resolved=[9], done=[[10]])
    assert execute(world.old, late) == []
    assert world.rows() == before


def test_finishing_with_an_old_token_changes_nothing(world: World, before: list[Any]) -> None:
    assert execute(world.old, statements.finish(SCHEMA, instance_id=world.old_id, finished=[world.old_token])) == []
    assert world.rows() == before


def test_finishing_an_old_token_within_a_claim_only_claims(world: World, before: list[Any]) -> None:
    claimed = execute(world.old, world.claim(world.old, token=uuid4(), finished=[world.old_token]))
    assert [row[0] for row in claimed] == list(range(11, 21))
    assert [row for row in world.rows() if row in before] == before


def test_failures_with_an_old_token_are_not_recorded(world: World, before: list[Any]) -> None:
    assert execute(world.old, world.record_exceptions(world.old_token, world.old_id, [3, 4])) == []
    assert world.rows() == before


def test_a_retry_is_not_completed_with_an_old_token(world: World, before: list[Any]) -> None:
    late = statements.complete_exceptions(
        world.family, group_id=world.group_id, instance_id=world.old_id, token=world.old_retry, message_ids=[1, 2]
    )
    assert execute(world.old, late) == []
    assert world.rows() == before


def test_a_retry_is_not_charged_with_an_old_token(world: World, before: list[Any]) -> None:
    late = statements.return_exceptions(
        world.family,
        group_id=world.group_id,
        instance_id=world.old_id,
        token=world.old_retry,
        failures=failures([1, 2]),
    )
    assert execute(world.old, late) == []
    assert world.rows() == before


def test_a_range_is_not_released_with_an_old_token(world: World, before: list[Any]) -> None:
    late = statements.release_leases(
        SCHEMA, instance_id=world.old_id, tokens=[world.old_token], resolved=[9], done=[[10]]
    )
    assert execute(world.old, late) == []
    assert world.rows() == before


def test_a_message_is_not_noted_as_running_with_an_old_token(world: World, before: list[Any]) -> None:
    # Else the message that another process runs would be charged, should that one die.
    for token, instance_id in ((world.old_token, world.old_id), (world.new_token, world.old_id)):
        late = statements.note_running(SCHEMA, token=token, instance_id=instance_id, message_id=3, resolved=2)
        assert execute(world.old, late) == []
    late_start = statements.start_exception(world.family, group_id=1, token=world.old_retry, message_id=1)
    assert execute(world.old, late_start) == []
    assert world.rows() == before


def test_a_lease_is_not_renewed_with_another_token(world: World) -> None:
    def expiry() -> Any:
        return world.new.execute("select id, expires_at from sqlstreams.consumer_instance order by id").fetchall()

    before = expiry()
    late = statements.renew_instance(SCHEMA, instance_id=world.old_id, token=uuid4(), ttl=600)
    assert execute(world.old, late) == []
    assert expiry() == before


def test_a_key_that_another_process_has_by_now_is_not_given_up(world: World) -> None:
    def holders() -> Any:
        return world.new.execute("select message_key, instance_id from sqlstreams.message_key_lease").fetchall()

    # Given a key that the old process had, which the new one took
    world.new.execute("insert into sqlstreams.message_key_lease values (1, 'k', %s)", [world.new_id])
    # When the old one gives it up, then it stays; when the new one does, it goes
    for instance_id, left in ((world.old_id, [("k", world.new_id)]), (world.new_id, [])):
        release = statements.release_keys(SCHEMA, group_id=1, instance_id=instance_id, keys=["k"])
        disown = statements.disown_keys(SCHEMA, group_id=1, instance_id=world.old_id, known=[])
        execute(world.old, disown)
        execute(world.old, release)
        assert holders() == left


def test_retries_of_another_process_are_not_released(world: World, before: list[Any]) -> None:
    late = statements.release_exceptions(world.family, group_id=world.group_id, instance_id=world.old_id, known=[])
    assert execute(world.old, late) == []
    assert world.rows() == before


def test_ranges_of_another_process_are_not_disowned(world: World, before: list[Any]) -> None:
    late = statements.disown(SCHEMA, group_id=world.group_id, instance_id=world.old_id, known=[])
    assert execute(world.old, late) == []
    assert world.rows() == before


@pytest.mark.parametrize("act", ["checkpoint", "finish", "record", "release"])
def test_the_token_of_another_process_proves_nothing(world: World, before: list[Any], act: str) -> None:
    tokens = [world.new_token]
    stolen: dict[str, statements.Statement[Any]] = {
        "checkpoint": statements.checkpoint(SCHEMA, instance_id=world.old_id, tokens=tokens, resolved=[9], done=[[10]]),
        "finish": statements.finish(SCHEMA, instance_id=world.old_id, finished=tokens),
        "record": world.record_exceptions(world.new_token, world.old_id, [3]),
        "release": statements.release_leases(
            SCHEMA, instance_id=world.old_id, tokens=tokens, resolved=[9], done=[[10]]
        ),
    }
    assert execute(world.old, stolen[act]) == []
    assert world.rows() == before


def test_with_the_token_that_holds_every_statement_takes_effect(world: World) -> None:
    # The other tests would pass if these statements never did anything.
    new, family, group_id = world.new, world.family, world.group_id
    tokens = [world.new_token]
    assert execute(
        new, statements.checkpoint(SCHEMA, instance_id=world.new_id, tokens=tokens, resolved=[5], done=[[7]])
    )
    assert execute(new, world.record_exceptions(world.new_token, world.new_id, [6]))
    running = statements.note_running(SCHEMA, token=world.new_token, instance_id=world.new_id, message_id=8, resolved=5)
    assert execute(new, running)
    assert execute(new, statements.start_exception(family, group_id=group_id, token=world.new_retry, message_id=1))
    assert execute(
        new,
        statements.complete_exceptions(
            family, group_id=group_id, instance_id=world.new_id, token=world.new_retry, message_ids=[1]
        ),
    )
    assert execute(
        new,
        statements.return_exceptions(
            family, group_id=group_id, instance_id=world.new_id, token=world.new_retry, failures=failures([2])
        ),
    )
    assert execute(
        new, statements.release_leases(SCHEMA, instance_id=world.new_id, tokens=tokens, resolved=[8], done=[[]])
    )
    new.execute("update sqlstreams.claim_lease set instance_id = %s", [world.new_id])
    assert execute(new, statements.finish(SCHEMA, instance_id=world.new_id, finished=tokens))


def test_a_failure_that_was_recorded_once_is_not_recorded_again(world: World) -> None:
    # The answer was lost, and until the repetition another process handled the message.
    record = world.record_exceptions(world.new_token, world.new_id, [5])
    assert len(execute(world.new, record)) == 1
    world.new.execute("delete from sqlstreams.exception_queue_1 where message_id = 5")
    assert execute(world.new, record) == []
    world.new.execute("update sqlstreams.claim_lease set resolved = 6, done = '{}'")
    assert execute(world.new, record) == []


def test_a_process_that_is_late_to_renew_takes_nothing_over_from_itself(world: World) -> None:
    world.new.execute("update sqlstreams.consumer_instance set expires_at = now()")
    before = world.rows()
    assert execute(world.new, world.take_over(world.new_id, uuid4())) == []
    assert execute(world.new, world.free_exceptions(world.new_id)) == []
    assert world.rows() == before


# In the transaction of a handler


def complete(world: World, token: UUID, instance_id: int, *message_ids: int) -> statements.Statement[Any]:
    return statements.complete_in_transaction(
        world.family, instance_id=instance_id, token=token, message_ids=list(message_ids), resolved=2
    )


def complete_retries(world: World, token: UUID, *message_ids: int) -> statements.Statement[Any]:
    return statements.complete_exceptions_in_transaction(
        world.family,
        group_id=world.group_id,
        instance_id=world.new_id,
        token=token,
        message_ids=list(message_ids),
    )


def test_the_transaction_of_a_handler_fails_without_the_lease(world: World, before: list[Any]) -> None:
    for late in (
        complete(world, world.old_token, world.old_id, 3),
        complete(world, world.new_token, world.old_id, 3),
        complete(world, world.old_token, world.new_id, 3),
        complete_retries(world, world.old_retry, 1),
        complete_retries(world, world.new_retry, 1, 3),
    ):
        with pytest.raises(psycopg.Error, match="the lease on this delivery was lost") as lost:
            execute(world.old, late)
        assert lost.value.sqlstate == "SQ040"
        assert world.rows() == before


def test_the_transaction_of_a_handler_completes_what_is_its_own_once(world: World) -> None:
    for held in (complete(world, world.new_token, world.new_id, 4, 5), complete_retries(world, world.new_retry, 1, 2)):
        execute(world.new, held)
        with pytest.raises(psycopg.Error, match="lost"):
            execute(world.new, held)
    leases = world.new.execute("select resolved, done from sqlstreams.claim_lease").fetchall()
    assert leases == [(2, [4, 5])]
    assert world.new.execute("select count(*) from sqlstreams.exception_queue_1").fetchone() == (0,)


def test_what_was_recorded_as_failed_cannot_be_completed_any_more(world: World) -> None:
    execute(world.new, world.record_exceptions(world.new_token, world.new_id, [3]))
    with pytest.raises(psycopg.Error, match="lost"):
        execute(world.new, complete(world, world.new_token, world.new_id, 3))


@pytest.mark.parametrize("meets", ["checkpoint", "failure", "take over", "another"])
def test_what_meets_the_commit_of_a_handler_waits_for_it_and_loses_nothing(world: World, meets: str) -> None:
    # Given a transaction that has completed message 5 and not committed
    holder = world.old
    holder.execute("begin")
    execute(holder, complete(world, world.new_token, world.new_id, 5))
    # When another statement comes, then it waits, or passes by
    tokens = [world.new_token]
    meeting: dict[str, statements.Statement[Any]] = {
        "checkpoint": statements.checkpoint(SCHEMA, instance_id=world.new_id, tokens=tokens, resolved=[3], done=[[7]]),
        "failure": world.record_exceptions(world.new_token, world.new_id, [5]),
        "take over": world.take_over(world.new_id, uuid4()),
        "another": complete(world, world.new_token, world.new_id, 6),
    }
    with ThreadPoolExecutor(1) as thread:
        met = thread.submit(execute, world.new, meeting[meets])
        with psycopg.connect(world.url, autocommit=True) as looker:
            until = time.monotonic() + 10
            while not met.done() and not looker.execute(WAITING).fetchall():
                assert time.monotonic() < until
        holder.execute("commit")
        rows = met.result(10)
    # And afterwards the message is done, whatever was said of it
    assert meets in ("checkpoint", "another") or rows == []
    ((done,),) = world.new.execute("select done from sqlstreams.claim_lease").fetchall()
    assert sorted(done) == {"checkpoint": [5, 7], "another": [5, 6]}.get(meets, [5])
    assert world.new.execute("select from sqlstreams.exception_queue_1 where message_id = 5").fetchall() == []


# The history


def test_a_row_whose_process_died_is_kept_with_that_process(world: World) -> None:
    # Given rows 1 and 2, taken from an old process and in flight in a new one that stops renewing
    new = world.new
    new.execute("update sqlstreams.consumer_group_config set max_retries = 3")
    new.execute("update sqlstreams.exception_queue_1 set failures = 3 where message_id = 2")
    new.execute(
        "update sqlstreams.consumer_instance set expires_at = now(), hostname = 'gone', pid = 7 where id = %s",
        [world.new_id],
    )
    before = new.execute("select max(id) from sqlstreams.delivery_log_1").fetchone()
    # When another finds that
    assert len(execute(new, world.free_exceptions(world.old_id))) == 2
    # Then each is charged to the one that died
    kept = new.execute(
        "select message_id, outcome, error_type, hostname, pid from sqlstreams.delivery_log_1 where id > %s"
        " order by message_id",
        before,
    ).fetchall()
    assert kept == [(1, "died", "ProcessDied", "gone", 7), (2, "died", "ProcessDied", "gone", 7)]


def test_what_a_process_says_that_lost_its_lease_leaves_no_trace(world: World) -> None:
    count = "select count(*) from sqlstreams.delivery_log_1"
    before = world.new.execute(count).fetchone()
    execute(world.old, world.record_exceptions(world.old_token, world.old_id, [3]))
    execute(
        world.old,
        statements.return_exceptions(
            world.family,
            group_id=1,
            instance_id=world.old_id,
            token=world.old_retry,
            failures=failures([1, 2]),
        ),
    )
    assert world.new.execute(count).fetchone() == before


def test_a_success_is_kept_once_and_only_with_the_lease(world: World) -> None:
    world.new.execute("update sqlstreams.consumer_group_config set delivery_log = 'all'")
    for token, instance_id in ((world.old_token, world.old_id), (world.new_token, world.old_id)) + (
        (world.new_token, world.new_id),
    ) * 2:
        execute(
            world.new,
            statements.record_successes(
                world.family, group_id=1, instance_id=instance_id, tokens=[token], message_ids=[6]
            ),
        )
    kept = world.new.execute("select attempt, outcome from sqlstreams.delivery_log_1 where message_id = 6").fetchall()
    assert kept == [(1, "succeeded")]


def test_a_failure_told_twice_is_kept_once(world: World) -> None:
    for _ in range(2):
        execute(world.new, world.record_exceptions(world.new_token, world.new_id, [6]))
    kept = world.new.execute("select attempt, outcome from sqlstreams.delivery_log_1 where message_id = 6").fetchall()
    assert kept == [(1, "failed")]
