"""Declaring schedules: what is kept, what is refused, and whose transaction it belongs to."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypedDict

import psycopg
import pytest
from msgspec import Struct

from sqlstreams import AsyncClient, Client, DestroyRefused, InvalidInput, NotFound, PayloadShapeChanged, RawPayload
from tests.schedules.ground import HOUR, MINUTE, Run, back_date, clock, half_past, query, register

DAY = datetime(2027, 1, 1, tzinfo=UTC)


class Other(Struct, frozen=True):
    country: int


class Later(Struct, frozen=True):
    schema_version: ClassVar[int] = 2
    zone: int


class Typed(TypedDict):
    region: str


@dataclass
class Plain:
    region: str


def test_a_schedule_is_kept_as_it_was_declared(database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("runs", Run).register()
        nightly = client.scheduler("nightly")
        assert nightly.get() is None
        assert (
            nightly.register(
                "runs",
                "0 2 * * *",
                Run("eu"),
                timezone="Europe/Berlin",
                concurrency="exclusive",
                timeout=MINUTE,
                catch_up="oldest",
                catch_up_window=HOUR,
                jitter=MINUTE,
                start_at=DAY,
                end_at=DAY + 24 * HOUR,
            )
            is nightly
        )
        info = nightly.get()
        assert info is not None
        assert (info.name, info.stream, info.expression, info.timezone) == (
            "nightly",
            "runs",
            "0 2 * * *",
            "Europe/Berlin",
        )
        assert (info.payload, info.schema_version) == (RawPayload(b'{"region":"eu"}'), 1)
        assert (info.concurrency, info.timeout, info.catch_up) == ("exclusive", MINUTE, "oldest")
        assert (info.catch_up_window, info.jitter) == (HOUR, MINUTE)
        assert (info.start_at, info.end_at, info.compaction) == (DAY, DAY + 24 * HOUR, True)
        assert (info.suspended, info.revision) == (False, 1)
        assert info.next_slot == datetime(2027, 1, 1, 1, tzinfo=UTC)
        assert client.list_schedules() == client.list_schedules("runs") == [info]
        client.stream("others", Run).register()
        assert client.list_schedules("others") == []


def test_the_first_slot_is_the_next_one_after_now(database_url: str) -> None:
    register(database_url, "* * * * *")
    ((slot, due_at, now),) = query(
        database_url, "select next_slot, due_at, clock_timestamp() from sqlstreams.schedule_cursor"
    )
    assert now - MINUTE < slot == due_at <= now + MINUTE


def test_the_zone_may_stand_before_the_expression(database_url: str) -> None:
    register(database_url, "TZ=Europe/Berlin 0  2 * * *")
    with Client(database_url) as client:
        info = client.scheduler("nightly").get()
    assert info is not None
    assert (info.expression, info.timezone) == ("0 2 * * *", "Europe/Berlin")


def test_the_same_declaration_again_writes_nothing(database_url: str) -> None:
    options: dict[str, Any] = {"timezone": "Europe/Berlin", "jitter": 90 * MINUTE, "start_at": DAY}
    register(database_url, "0 2 * * *", **options)
    before = _rows(database_url)
    register(database_url, "0 2 * * *", **options)
    assert _rows(database_url) == before


def test_an_edit_keeps_the_cursor_when_the_slots_stay(database_url: str) -> None:
    register(database_url, "* * * * *")
    slot = clock(database_url).replace(second=0, microsecond=0)
    back_date(database_url, slot)
    register(database_url, "* * * * *", timeout=MINUTE)
    with Client(database_url) as client:
        info = client.scheduler("nightly").get()
        assert info is not None
        assert (info.next_slot, info.timeout, info.revision) == (slot, MINUTE, 2)
        assert client.scheduler("nightly").skips() == []


def test_other_slots_begin_after_now_and_what_was_due_is_recorded(database_url: str) -> None:
    expression, slot = half_past(database_url)
    register(database_url, expression)
    back_date(database_url, slot - 2 * HOUR)
    register(database_url, "@every 60s")
    with Client(database_url) as client:
        info = client.scheduler("nightly").get()
        (skip,) = client.scheduler("nightly").skips()
    assert info is not None
    assert info.next_slot is not None
    assert info.next_slot > skip.recorded_at
    assert (skip.first_slot, skip.last_slot, skip.slots, skip.reason) == (slot - 2 * HOUR, slot, 3, "edited")


def test_every_change_is_in_the_log(database_url: str) -> None:
    register(database_url, "0 2 * * *")
    with Client(database_url, allow_destroy=True) as client:
        nightly = client.scheduler("nightly")
        nightly.register("runs", "0 3 * * *", Run("us"))
        nightly.suspend()
        nightly.suspend()
        nightly.unsuspend()
        nightly.unsuspend()
        nightly.destroy()
        edits = nightly.edits()
    assert [edit.action for edit in reversed(edits)] == [
        "registered",
        "changed",
        "suspended",
        "unsuspended",
        "destroyed",
    ]
    assert [edit.config["revision"] for edit in reversed(edits)] == [1, 2, 3, 4, 4]
    assert edits[-1].config["payload"] == {"region": "eu"}
    assert edits[-2].config["expression"] == "0 3 * * *"
    assert {edit.changed_by for edit in edits} == {query(database_url, "select session_user")[0][0]}


@pytest.mark.parametrize(
    ("payload", "payload_type", "stored"),
    [
        (Plain("eu"), None, '{"region":"eu"}'),
        ({"region": "eu"}, None, '{"region":"eu"}'),
        (Typed(region="eu"), Typed, '{"region":"eu"}'),
        (RawPayload(b'{ "region": "eu" }'), None, '{ "region": "eu" }'),
    ],
)
def test_payloads_of_several_kinds(database_url: str, payload: Any, payload_type: Any, stored: str) -> None:
    with Client(database_url) as client:
        client.stream("runs", Typed if isinstance(payload, dict) else Plain).register()
        client.scheduler("s").register("runs", "0 2 * * *", payload, payload_type=payload_type)
        ((text, fingerprint),) = query(
            database_url, "select payload::text, fingerprint from sqlstreams.schedule_config"
        )
    assert text == stored
    assert fingerprint == query(database_url, "select fingerprint from sqlstreams.payload_schema")[0][0]


def test_a_payload_without_a_type_may_be_of_a_later_version(database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("runs", Run).register()
        client.stream("runs", Later).register()
        nightly = client.scheduler("s")
        with pytest.raises(InvalidInput, match=r"payload\.zone is missing"):
            nightly.register("runs", "0 2 * * *", {"region": "eu"}, schema_version=2)
        nightly.register("runs", "0 2 * * *", {"zone": 5}, schema_version=2)
        nightly.run()
    assert query(database_url, "select schema_version, payload from sqlstreams.message_log_1") == [(2, {"zone": 5})]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"timezone": "Europe/Berlim"}, "timezone", "Europe/Berlin"),
    ({"timezone": "berlin"}, "timezone", "did you mean Europe/Berlin"),
    ({"start_at": datetime(2026, 1, 1)}, "start_at", "naive"),  # noqa: DTZ001  # what is refused
    ({"end_at": datetime(2026, 1, 1)}, "end_at", "naive"),  # noqa: DTZ001  # what is refused
    ({"end_at": datetime.max.replace(tzinfo=UTC)}, "end_at", "1900 to 2200"),
    ({"start_at": DAY, "end_at": DAY - HOUR}, "end_at", "before start_at"),
    ({"expression": "0 0 31 4 *"}, "expression", ""),
    ({"expression": "0 0 * *"}, "expression", ""),
    ({"expression": "0 0 * * *\x00"}, "expression", ""),
    ({"expression": "TZ=Europe/Paris 0 2 * * *", "timezone": "Europe/Berlin"}, "expression", "timezone"),
    ({"expression": 5}, "expression", "str"),
    ({"payload": Run("\x00")}, "payload.region", "NUL"),
    ({"payload": Run("\ud800")}, "payload.region", "surrogate"),
    ({"payload": Run("x" * 2_000_000)}, "payload", "1048576"),
    ({"payload": {"region": float("nan")}}, "payload.region", "finite"),
    ({"payload": object()}, "payload", ""),
    ({"payload": {"region": 1}, "payload_type": Typed}, "payload", "Typed"),
    ({"payload": {"regio": "eu"}}, "payload.region", "is missing"),
    ({"payload": RawPayload(b'{"region": 1}')}, "payload.region", "must be string, got 1"),
    ({"payload": RawPayload(b"[]")}, "payload", "must be object"),
    ({"payload": RawPayload(b"{")}, "payload", "valid JSON"),
    ({"payload": {"region": "eu"}, "schema_version": 0}, "schema_version", "between 1 and"),
    ({"payload": {"region": "eu"}, "schema_version": True}, "schema_version", "int"),
    ({"schema_version": 1}, "schema_version", "is said by Run itself"),
    ({"stream": "Runs"}, "stream", "must match"),
    ({"concurrency": "one"}, "concurrency", "must be one of"),
    ({"concurrency": "ordered"}, "concurrency", "compaction=False"),
    ({"catch_up": "none"}, "catch_up", "must be one of"),
    ({"catch_up_window": timedelta(-1)}, "catch_up_window", "between"),
    ({"timeout": timedelta(0)}, "timeout", "between"),
    ({"timeout": 30}, "timeout", "timedelta"),
    ({"jitter": timedelta(0)}, "jitter", "between"),
    ({"compaction": None}, "compaction", "bool"),
]


def test_bad_input_is_refused_at_the_call_and_nothing_is_written(database_url: str) -> None:
    with Client(database_url) as client:
        client.stream("runs", Run).register()
        for given, field, problem in REFUSED:
            arguments: dict[str, Any] = {"stream": "runs", "expression": "0 2 * * *", "payload": Run("eu")} | given
            with pytest.raises(InvalidInput) as refused:
                client.scheduler("s").register(**arguments)
            assert problem in str(refused.value)
            assert refused.value.field.startswith(field), given
        with pytest.raises(PayloadShapeChanged):
            client.scheduler("s").register("runs", "0 2 * * *", Other(1))
        with pytest.raises(NotFound, match="'nobody'"):
            client.scheduler("s").register("nobody", "0 2 * * *", Run("eu"))
        for name in ("sqlstreams", "sqlstreams.upkeep", "Nightly", "a\x00", "", 5):
            with pytest.raises(InvalidInput) as refused:
                client.scheduler(name)  # type: ignore[arg-type]  # what is refused
            assert refused.value.field == "schedule"
        assert client.list_schedules() == []
    assert query(database_url, "select count(*) from sqlstreams.schedule_config_log") == [(0,)]


def test_ordered_goes_without_compaction(database_url: str) -> None:
    register(database_url, "0 2 * * *", concurrency="ordered", compaction=False)
    assert query(database_url, "select keyed from sqlstreams.stream_config") == [(True,)]


def test_verbs_on_an_absent_schedule(database_url: str) -> None:
    with Client(database_url, allow_destroy=True) as client:
        client.stream("runs", Run).register()
        absent = client.scheduler("absent")
        assert absent.get() is None
        assert absent.edits() == []
        verbs: list[Any] = [
            absent.status,
            absent.fires,
            absent.skips,
            absent.messages,
            absent.suspend,
            absent.unsuspend,
        ]
        for verb in [*verbs, absent.run, absent.destroy, absent.next, lambda: absent.backfill(DAY - 9 * HOUR, DAY)]:
            with pytest.raises(NotFound, match="no schedule named 'absent'"):
                verb()


def test_destroying_has_to_be_allowed(database_url: str) -> None:
    register(database_url, "0 2 * * *")
    with Client(database_url) as client, pytest.raises(DestroyRefused):
        client.scheduler("nightly").destroy()
    with Client(database_url, allow_destroy=True) as client:
        client.scheduler("nightly").destroy()
        assert client.list_schedules() == []
    assert query(database_url, "select count(*) from sqlstreams.schedule_cursor") == [(0,)]


def test_a_stream_takes_its_schedules_with_it(database_url: str) -> None:
    register(database_url, "0 2 * * *")
    with Client(database_url, allow_destroy=True) as client:
        client.stream("runs").destroy()
        assert client.list_schedules() == []
        assert [edit.action for edit in client.scheduler("nightly").edits()] == ["destroyed", "registered"]


def test_many_may_register_the_same_at_once(database_url: str) -> None:
    register(database_url, "0 2 * * *", "other")
    with Client(database_url) as client, ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda _: client.scheduler("s").register("runs", "0 2 * * *", Run("eu")), range(16)):
            pass
    assert query(database_url, "select count(*) from sqlstreams.schedule_config where name = 's'") == [(1,)]
    assert query(database_url, "select count(*) from sqlstreams.schedule_config_log where name = 's'") == [(1,)]


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_a_schedule_can_belong_to_the_callers_transaction(database_url: str, autocommit: bool, commit: bool) -> None:
    with Client(database_url) as client:
        client.stream("runs", Run).register()
        nightly = client.scheduler("nightly")
        with psycopg.connect(database_url, autocommit=autocommit) as connection:
            if autocommit:
                connection.execute("begin")
            nightly.register("runs", "0 2 * * *", Run("eu"), connection=connection)
            with pytest.raises(NotFound):
                nightly.register("nobody", "0 2 * * *", Run("eu"), connection=connection)
            assert nightly.get() is None
            (connection.commit if commit else connection.rollback)()
        assert (nightly.get() is not None) == commit


async def test_a_schedule_can_belong_to_the_callers_transaction_on_asyncio(database_url: str) -> None:
    async with AsyncClient(database_url, manager=False) as client:
        await client.stream("runs", Run).register()
        nightly = client.scheduler("nightly")
        async with client.transaction() as connection:
            await nightly.register("runs", "0 2 * * *", Run("eu"), connection=connection)
            assert await nightly.get() is None
        assert await nightly.get() is not None
        with psycopg.connect(database_url) as blocking, pytest.raises(InvalidInput, match="AsyncConnection"):
            await nightly.register("runs", "0 3 * * *", Run("eu"), connection=blocking)


def test_a_change_is_announced_when_it_commits(database_url: str) -> None:
    register(database_url, "0 2 * * *")
    with psycopg.connect(database_url, autocommit=True) as listening, Client(database_url) as client:
        listening.execute('listen "sqlstreams:sqlstreams"')
        with psycopg.connect(database_url) as connection:
            client.scheduler("nightly").register("runs", "0 3 * * *", Run("eu"), connection=connection)
            assert list(listening.notifies(timeout=0.05)) == []
            connection.commit()
        assert [told.payload for told in listening.notifies(timeout=5, stop_after=1)] == ["schedules"]


def test_nobody_keeping_successes_is_told_once(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sqlstreams"):
        register(database_url, "0 2 * * *")
        register(database_url, "0 2 * * *")
    assert [record.getMessage()[:7] for record in caplog.records] == ["SQL0058"]


def test_a_group_that_keeps_successes_leaves_nothing_to_tell(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(database_url) as client:
        runs = client.stream("runs", Run).register()
        runs.consumer("forgets").register()
        runs.consumer("keeps").register(delivery_log="all")
    with caplog.at_level(logging.WARNING, "sqlstreams"):
        register(database_url, "0 2 * * *")
    assert caplog.records == []


def _rows(url: str) -> list[Any]:
    return [
        query(url, f"select xmin, t.* from sqlstreams.{table} t order by 2")
        for table in ("schedule_config", "schedule_cursor", "schedule_config_log", "stream_config")
    ]
