"""Messages produced for later: delivered when they are due and not before, or cancelled before that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sqlstreams
from sqlstreams import (
    AsyncClient,
    AsyncConsumer,
    AsyncStream,
    Cancellation,
    Client,
    InvalidInput,
    Message,
    NotFound,
    RawPayload,
    Terminal,
    statements,
)
from sqlstreams.codec import encode_options
from sqlstreams.statements import Family
from tests.database.databases import database_of_a_module
from tests.support import Note, consuming, eventually

HOUR = timedelta(hours=1)
FAMILY = Family("sqlstreams", 1)


async def _stream(client: AsyncClient, **options: Any) -> tuple[AsyncStream[Note], AsyncConsumer[Note]]:
    stream = await client.stream("notes", Note).register()
    return stream, await stream.consumer("g").register(retry_base=timedelta(milliseconds=20), **options)


async def _produce(stream: AsyncStream[Note], text: str, **options: Any) -> int:
    return (await stream.producer().produce(Note(text), **options)).id


def _ask(url: str, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def _come_due(url: str, *message_ids: int) -> None:
    """Make time pass for messages that wait."""
    moved = (
        "set can_run_after = clock_timestamp() - interval '1 s' where state = 'waiting' and message_id = any(%(ids)s)"
    )
    _ask(url, f"update sqlstreams.exception_queue_1 {moved}", ids=list(message_ids))


def _states(url: str) -> list[tuple[Any, ...]]:
    return _ask(url, "select message_id, state from sqlstreams.exception_queue_1 order by group_id, message_id")


class Handled:
    """A handler that keeps what it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def __call__(self, note: Note) -> None:
        self.texts.append(note.text)

    def has(self, *texts: str) -> Callable[[], bool]:
        return lambda: self.texts == list(texts)


def _waiting(consumer: AsyncConsumer[Note], count: int) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return (await consumer.status()).waiting == count

    return is_so


@pytest.mark.parametrize("options", [{}, {"concurrency": "exclusive"}, {"concurrency": "ordered"}, {"bindings": ["*"]}])
async def test_a_message_for_later_waits_uncharged_while_the_others_go_on(
    database_url: str, options: dict[str, Any]
) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client, **options)
        later = await _produce(stream, "later", key="a", routing_key="r", delay=HOUR)
        await _produce(stream, "now", key="b", routing_key="r")
        handle = Handled()
        async with consuming(consumer, handle):
            await eventually(handle.has("now"))
            await eventually(_waiting(consumer, 1))
            await eventually(lambda: _is_committed(consumer))
            (waiting,) = await consumer.waiting()
            status = await consumer.status()
            assert (waiting.id, waiting.key, waiting.group) == (later, "a", "g")
            assert waiting.created_at is not None
            assert waiting.due_at - waiting.created_at == HOUR
            assert (status.next_due_at, status.ready, status.inflight) == (waiting.due_at, 0, 0)
            assert await stream.waiting() == [waiting]
            _come_due(database_url, later)
            await eventually(handle.has("now", "later"))
            await eventually(_waiting(consumer, 0))
        assert await consumer.deliveries(later) == []
        assert (consumer.stats.waiting, consumer.stats.failed, consumer.stats.delayed) == (1, 0, 0)


async def _is_committed(consumer: AsyncConsumer[Note]) -> bool:
    status = await consumer.status()
    return (status.lag, status.leases) == (0, 0)


async def test_what_is_due_is_delivered_by_a_timer_and_by_the_clock_of_the_server(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3_600)
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        seen: list[sqlstreams.Meta] = []

        async def handle(_: Note) -> None:
            seen.append(sqlstreams.meta())
            (late,) = _ask(database_url, "select clock_timestamp() - %(at)s", at=sqlstreams.meta().created_at)[0]
            assert late >= timedelta(milliseconds=300)

        async with consuming(consumer, handle):
            await _produce(stream, "soon", delay=timedelta(milliseconds=300))
            await eventually(lambda: len(seen) == 1, within=5)
        assert (seen[0].attempt, consumer.stats.handled, consumer.stats.waiting) == (1, 1, 1)


@pytest.mark.parametrize("options", [{"deliver_at": datetime(2020, 1, 1, tzinfo=UTC)}, {"delay": timedelta(0)}])
async def test_a_time_that_has_passed_means_at_once(database_url: str, options: dict[str, Any]) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        await _produce(stream, "now", **options)
        handle = Handled()
        async with consuming(consumer, handle):
            await eventually(handle.has("now"))
        assert consumer.stats.waiting == 0
        assert _states(database_url) == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": HOUR}, "delay"),
        ({"deliver_at": datetime(2030, 1, 1)}, "deliver_at"),  # noqa: DTZ001  # naive
        ({"deliver_at": datetime.max.replace(tzinfo=datetime.strptime("-0800", "%z").tzinfo)}, "deliver_at"),
        ({"deliver_at": "2030-01-01T00:00Z"}, "deliver_at"),
        ({"delay": timedelta(microseconds=-1)}, "delay"),
        ({"delay": timedelta.max}, "delay"),
        ({"delay": 60}, "delay"),
    ],
)
def test_other_times_are_refused(database_url: str, options: dict[str, Any], field: str) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        with pytest.raises(InvalidInput) as refused:
            stream.producer().produce(Note("x"), **options)
        assert refused.value.field == field
        with pytest.raises(InvalidInput, match=rf"messages\[0\]\.{field}"):
            stream.producer().produce_many([Message(Note("x"), **options)])
        assert stream.status().head == 0


def test_a_producer_has_a_delay_for_all_that_say_nothing_else(database_url: str) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        at = datetime(2031, 1, 1, tzinfo=UTC)
        items: list[Note | Message[Note]] = [
            Note("a"),
            Message(Note("b"), delay=timedelta(0)),
            Message(Note("c"), deliver_at=at),
        ]
        stream.producer(delay=HOUR).produce_many(items)
        with pytest.raises(InvalidInput, match="delay"):
            stream.producer(delay=timedelta(seconds=-1))
    due = "sqlstreams.due_at(options, created_at)"
    found = _ask(database_url, f"select {due} - created_at, {due} from sqlstreams.message_log_1 order by id")
    assert (found[0][0], found[1][1], found[2][1]) == (HOUR, None, at)


def test_sql_produces_for_later_too(database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("notes", Note).register()
    _ask(database_url, "select sqlstreams.produce('notes', '{}', delay => '2 hours')")
    _ask(database_url, "select sqlstreams.produce('notes', '{}', deliver_at => '2031-01-01 02:00+02')")
    _ask(database_url, "select sqlstreams.produce('notes', '{}', delay => '0')")
    found = _ask(
        database_url, "select sqlstreams.due_at(options, created_at), created_at from sqlstreams.message_log_1"
    )
    assert found[0][0] - found[0][1] == 2 * HOUR
    assert found[1][0] == datetime(2031, 1, 1, tzinfo=UTC)
    assert found[2][0] is None
    for given_ in (
        "delay => '1 hour', deliver_at => now()",
        "delay => '-1 s'",
        "delay => '11 years'",
        "deliver_at => 'infinity'",
    ):
        with pytest.raises(psycopg.Error, match=r"deliver_at|delay") as refused:
            _ask(database_url, f"select sqlstreams.produce('notes', '{{}}', {given_})")
        assert refused.value.sqlstate == "SS010"


def test_sql_produces_many_for_later(database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("notes", Note).register()
    options = ('"delay": "PT2H"', '"deliver_at": "2031-01-01T02:00+02:00"', '"delay": "0"')
    messages = ", ".join(f'{{"payload": 1, "message_key": "k", "compaction_rank": 0, {each}}}' for each in options)
    produced = _ask(
        database_url, "select sqlstreams.produce_many('notes', %(messages)s::json)", messages=f"[{messages}]"
    )
    assert produced == [(1,), (2,), (3,)]
    found = _ask(
        database_url, "select sqlstreams.due_at(options, created_at), created_at from sqlstreams.message_log_1"
    )
    assert [found[0][0] - found[0][1], found[1][0], found[2][0]] == [2 * HOUR, datetime(2031, 1, 1, tzinfo=UTC), None]
    assert _ask(database_url, "select id from sqlstreams.compaction_head_1") == [(3,)]
    for odd in ('"deliver_at": "2031-01-01T02:00"', '"deliver_at": "2031-01-01Z", "delay": "1 h"', '"delay": "-1 s"'):
        with pytest.raises(psycopg.Error, match=r"messages\[0\]\.(deliver_at|delay)") as refused:
            _ask(database_url, f"select sqlstreams.produce_many('notes', '[{{\"payload\": 1, {odd}}}]')")
        assert refused.value.sqlstate == "SS010"


@pytest.fixture(scope="module")
def berlin(server_url: str, template: str) -> Iterator[psycopg.Connection]:
    """A connection that lives in a zone whose days differ in length."""
    for url in database_of_a_module(server_url, template, "delays"):
        with psycopg.connect(url, autocommit=True) as connected:
            connected.execute("set time zone 'Europe/Berlin'")
            yield connected


@settings(max_examples=100, deadline=None)
@given(
    created_at=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    delay=st.timedeltas(timedelta(microseconds=1), timedelta(days=3650)),
)
def test_a_delay_is_elapsed_time_to_the_microsecond(
    berlin: psycopg.Connection, created_at: datetime, delay: timedelta
) -> None:
    options = encode_options(headers=None, delay=delay)
    assert options is not None
    row = berlin.execute("select sqlstreams.due_at(%s::json, %s)", [options.decode(), created_at]).fetchone()
    assert row is not None
    # In Python an instant of a repeated hour equals no instant of another zone.
    assert row[0].astimezone(UTC) == created_at + delay


@pytest.mark.parametrize("options", ['{"deliver_at": "soon"}', '{"delay": "x"}', '{"delay": 1e300}', "[]", "3"])
def test_options_of_nobody_we_know_mean_at_once(berlin: psycopg.Connection, options: str) -> None:
    assert berlin.execute("select sqlstreams.due_at(%s::json, now())", [options]).fetchone() == (None,)


async def test_what_waits_outlives_its_process(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        later = await _produce(stream, "later", delay=HOUR)
        async with consuming(consumer, Handled()):
            await eventually(_waiting(consumer, 1))
    _come_due(database_url, later)
    async with AsyncClient(database_url) as client:
        handle = Handled()
        async with consuming(client.stream("notes", Note).consumer("g"), handle):
            await eventually(handle.has("later"))


async def test_a_range_of_a_dead_process_is_sorted_out_again(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        await _produce(stream, "later", delay=HOUR)
        await _produce(stream, "now")
        lease = "(token, group_id, low, high, resolved) values (gen_random_uuid(), 1, 1, 2, 0)"
        _ask(database_url, f"insert into sqlstreams.claim_lease {lease}")
        _ask(database_url, "update sqlstreams.consumer_group_cursor set claimed = 2")
        handle = Handled()
        async with consuming(consumer, handle):
            await eventually(handle.has("now"))
            await eventually(_waiting(consumer, 1))


async def test_a_failure_of_a_message_for_later_is_one_like_any_other(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        later = await _produce(stream, "later", delay=HOUR)

        async def handle(_: Note) -> None:
            if sqlstreams.meta().attempt == 1:
                raise ValueError
            raise Terminal

        async with consuming(consumer, handle):
            await eventually(_waiting(consumer, 1))
            before = _ask(database_url, "select first_failed_at from sqlstreams.exception_queue_1")
            _come_due(database_url, later)
            await eventually(lambda: _states(database_url) == [(later, "dead")])
            assert _ask(database_url, "select first_failed_at from sqlstreams.exception_queue_1") > before
        assert [each.outcome for each in await consumer.deliveries(later)] == ["failed", "dead"]


async def test_batches_take_what_is_due_together(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        ids = [each.id for each in await stream.producer(delay=HOUR).produce_many([Note(str(n)) for n in range(250)])]
        batches: list[int] = []

        async def handle(notes: Sequence[Note]) -> None:
            batches.append(len(notes))

        async with consuming(consumer, handle, batch=50, concurrency=1):
            await eventually(_waiting(consumer, 250))
            _come_due(database_url, *ids)
            await eventually(lambda: sum(batches) == 250)
        assert len(batches) < 20


async def test_thousands_that_are_due_in_one_second_are_delivered_once_each(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        texts = [str(number) for number in range(3_000)]
        await stream.producer(delay=HOUR).produce_many([Note(text) for text in texts])
        handle = Handled()
        async with consuming(consumer, handle):
            await eventually(_waiting(consumer, 3_000))
            _ask(
                database_url,
                "update sqlstreams.exception_queue_1 set can_run_after = now() + random() * interval '1 s'",
            )
            await eventually(lambda: len(handle.texts) >= 3_000, within=10)
            await eventually(lambda: _states(database_url) == [])
    assert sorted(handle.texts, key=int) == texts


async def test_in_order_a_message_for_later_keeps_its_key_waiting_and_no_other(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client, concurrency="ordered")
        await _produce(stream, "first", key="k")
        later = await _produce(stream, "later", key="k", delay=HOUR)
        await _produce(stream, "behind", key="k")
        await _produce(stream, "other", key="o")
        handle = Handled()
        async with consuming(consumer, handle):
            await eventually(lambda: sorted(handle.texts) == ["first", "other"])
            await _produce(stream, "last", key="k")
            await eventually(lambda: _count_deferred(consumer, 2))
            (blocked,) = await consumer.blocked_keys()
            assert (blocked.key, blocked.blocked_by, blocked.state) == ("k", later, "waiting")
            _come_due(database_url, later)
            await eventually(lambda: handle.texts[2:] == ["later", "behind", "last"])


async def _count_deferred(consumer: AsyncConsumer[Note], count: int) -> bool:
    return (await consumer.status()).deferred == count


async def test_an_exclusive_key_does_not_wait_for_what_is_not_due(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client, concurrency="exclusive")
        later = await _produce(stream, "later", key="k", delay=HOUR)
        await _produce(stream, "now", key="k")
        handle = Handled()
        async with consuming(consumer, handle):
            await eventually(handle.has("now"))
            _come_due(database_url, later)
            await eventually(handle.has("now", "later"))


# Compaction


async def test_what_is_not_due_supersedes_nothing_until_then(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        later = await _produce(stream, "later", key="k", compaction_rank=5, delay=HOUR)
        now = await _produce(stream, "now", key="k", compaction_rank=1)
        handle = Handled()
        async with consuming(consumer, handle):
            await eventually(handle.has("now"))
            head = await stream.head("k")
            assert head is not None
            assert head.id == now
            await eventually(_waiting(consumer, 1))
            _come_due(database_url, later)
            await eventually(handle.has("now", "later"))
            head = await stream.head("k")
            assert head is not None
            assert head.id == later
            await _produce(stream, "old", key="k", compaction_rank=1)
            await eventually(lambda: consumer.stats.superseded == 1)
        assert handle.texts == ["now", "later"]


async def test_what_waits_is_superseded_by_a_greater_one_that_came_before_its_time(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        later = await _produce(stream, "later", key="k", compaction_rank=1, delay=HOUR)
        await _produce(stream, "now", key="k", compaction_rank=1)
        handle = Handled()
        async with consuming(consumer, handle):
            await eventually(handle.has("now"))
            await eventually(_waiting(consumer, 1))
            _come_due(database_url, later)
            await eventually(lambda: _states(database_url) == [(later, "superseded")])
        assert handle.texts == ["now"]


async def test_compaction_lets_go_of_what_waits_in_vain(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        await _produce(stream, "later", key="k", compaction_rank=1, delay=HOUR)
        await _produce(stream, "now", key="k", compaction_rank=1)
        async with consuming(consumer, Handled()):
            await eventually(_waiting(consumer, 1))
            await eventually(lambda: _is_committed(consumer))
        assert await stream.compact(older_than=timedelta(0)) == 0
        assert await stream.compact(older_than=timedelta(0)) == 1
        assert [each.id for each in await stream.read()] == [2]


async def test_a_head_that_is_locked_does_not_hold_up_what_is_due(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        await _produce(stream, "now", key="k", compaction_rank=1)
        later = await _produce(stream, "later", key="k", compaction_rank=1, delay=HOUR)
        handle = Handled()
        async with consuming(consumer, handle):
            await eventually(_waiting(consumer, 1))
            with psycopg.connect(database_url) as other:
                other.execute("select from sqlstreams.compaction_head_1 for update")
                _come_due(database_url, later)
                await eventually(handle.has("now", "later"), within=10)


# Cancelling


@pytest.mark.parametrize("claimed", [True, False])
async def test_a_cancelled_message_is_never_delivered(database_url: str, claimed: bool) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        later = await _produce(stream, "later", key="k", headers={"a": "b"}, delay=HOUR)
        handle = Handled()
        if claimed:
            async with consuming(consumer, handle):
                await eventually(_waiting(consumer, 1))
        assert await stream.cancel(later) == await stream.cancel(later) == [Cancellation("g", "cancelled")]
        await stream.consumer("new").register()
        await consumer.rewind("beginning")
        await _produce(stream, "now")
        _ask(database_url, "update sqlstreams.message_log_1 set created_at = created_at - interval '2 hours'")
        async with consuming(consumer, handle), consuming(stream.consumer("new"), handle):
            await eventually(handle.has("now", "now"))
            await eventually(lambda: _states(database_url) == [(later, "cancelled")] * 2)
        assert [each.outcome for each in await stream.cancel(later)] == ["cancelled", "cancelled"]
        assert (await stream.read())[0].headers == {"a": "b"}


async def test_cancelling_says_in_which_groups_it_came_too_late(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client)
        await stream.consumer("other").register()
        await stream.consumer("unbound").register(bindings=["nothing"])
        later = await _produce(stream, "later", delay=HOUR)
        begun, finish = asyncio.Event(), asyncio.Event()

        async def handle(_: Note) -> None:
            begun.set()
            await finish.wait()

        async with consuming(consumer, handle):
            await eventually(_waiting(consumer, 1))
            _come_due(database_url, later)
            await asyncio.wait_for(begun.wait(), 10)
            assert await stream.cancel(later) == [Cancellation("g", "inflight"), Cancellation("other", "cancelled")]
            finish.set()
            await eventually(lambda: _states(database_url) == [])
        assert await stream.cancel(later) == [Cancellation("g", "done"), Cancellation("other", "cancelled")]


def test_only_a_message_for_later_can_be_cancelled(database_url: str) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        now = stream.producer().produce(Note("now")).id
        with pytest.raises(InvalidInput, match=r"message_id.*deliver_at or delay"):
            stream.cancel(now)
        with pytest.raises(NotFound, match="message"):
            stream.cancel(now + 1)
        for wrong in (0, "1", 2**63):
            with pytest.raises(InvalidInput):
                stream.cancel(wrong)  # type: ignore[arg-type]


async def test_a_key_goes_on_when_what_kept_it_waiting_is_cancelled(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream, consumer = await _stream(client, concurrency="ordered")
        later = await _produce(stream, "later", key="k", delay=HOUR)
        await _produce(stream, "behind", key="k")
        handle = Handled()
        async with consuming(consumer, handle):
            await eventually(lambda: _count_deferred(consumer, 1))
            await stream.cancel(later)
            await eventually(handle.has("behind"), within=5)


class Ground:
    """A message for later in one group, and two connections."""

    def __init__(self, url: str) -> None:
        with Client(url) as client:
            self.stream = client.stream("notes", RawPayload).register()
            self.stream.consumer("g").register()
            self.message_id = self.stream.producer().produce(RawPayload(b"{}"), delay=HOUR).id
        self.token = uuid4()
        row = "values (default, gen_random_uuid(), 'h', 1, 'l', now(), now(), now() + interval '1 hour')"
        _ask(url, f"insert into sqlstreams.consumer_instance {row}")

    def claim(self, connection: psycopg.Connection) -> list[str]:
        """Claim the range of the message, and return what state it has then."""
        claim = statements.claim(
            FAMILY, group_id=1, instance_id=1, token=self.token, limit=10, settled=0, finished=[], gated=False
        )
        connection.execute(claim.query, claim.parameters, binary=True)
        wait = statements.wait_until_due(FAMILY, group_id=1, token=self.token)
        return [row[1] for row in connection.execute(wait.query, wait.parameters, binary=True).fetchall()]

    def take(self, connection: psycopg.Connection) -> list[int]:
        """Take what is due, and return the ids."""
        taken = statements.claim_exceptions(
            FAMILY, group_id=1, instance_id=1, token=uuid4(), limit=10, waited=10, free=10, followers=0, versions=[]
        )
        return [row[0] for row in connection.execute(taken.query, taken.parameters, binary=True).fetchall()]

    def cancel(self, connection: psycopg.Connection) -> list[str]:
        """Cancel the message, and return the outcomes."""
        mark = statements.mark_cancelled(FAMILY, message_id=self.message_id)
        connection.execute(mark.query, mark.parameters, binary=True)
        cancel = statements.cancel_deliveries(FAMILY, message_id=self.message_id)
        return [row[3] for row in connection.execute(cancel.query, cancel.parameters, binary=True).fetchall()]


async def _beside(first: psycopg.Connection, act: Callable[[], Any]) -> Any:
    """Begin an act that has to wait for a transaction, and commit that."""
    task = asyncio.create_task(asyncio.to_thread(act))
    with psycopg.connect(first.info.dsn, password=first.info.password, autocommit=True) as observer:
        blocked = "select count(*) from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
        await eventually(lambda: observer.execute(blocked, [first.info.backend_pid]).fetchone() == (1,))
    first.commit()
    return await task


async def test_a_claim_that_is_not_committed_is_waited_for(database_url: str) -> None:
    ground = Ground(database_url)
    with psycopg.connect(database_url) as claiming, psycopg.connect(database_url) as cancelling:
        assert ground.claim(claiming) == ["waiting"]
        assert await _beside(claiming, lambda: ground.cancel(cancelling)) == ["cancelled"]
        cancelling.commit()
    assert _states(database_url) == [(ground.message_id, "cancelled")]


async def test_a_claim_waits_for_a_cancellation_that_is_not_committed(database_url: str) -> None:
    ground = Ground(database_url)
    with psycopg.connect(database_url) as claiming, psycopg.connect(database_url) as cancelling:
        assert ground.cancel(cancelling) == ["cancelled"]
        assert await _beside(cancelling, lambda: ground.claim(claiming)) == ["cancelled"]
        claiming.commit()
    assert _states(database_url) == [(ground.message_id, "cancelled")]


async def test_a_delivery_that_begins_in_this_moment_is_not_called_cancelled(database_url: str) -> None:
    ground = Ground(database_url)
    with psycopg.connect(database_url) as taking, psycopg.connect(database_url) as cancelling:
        ground.claim(taking)
        taking.commit()
        _come_due(database_url, ground.message_id)
        assert ground.take(taking) == [ground.message_id]
        assert await _beside(taking, lambda: ground.cancel(cancelling)) == ["inflight"]
        cancelling.commit()
    assert _states(database_url) == [(ground.message_id, "inflight")]


def test_what_is_being_cancelled_is_not_taken(database_url: str) -> None:
    ground = Ground(database_url)
    with psycopg.connect(database_url) as taking, psycopg.connect(database_url) as cancelling:
        ground.claim(taking)
        taking.commit()
        _come_due(database_url, ground.message_id)
        assert ground.cancel(cancelling) == ["cancelled"]
        assert ground.take(taking) == []
        cancelling.commit()
        assert ground.take(taking) == []
