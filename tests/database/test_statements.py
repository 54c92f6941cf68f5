"""Every statement fits the migrated schema, and the hot ones touch no more rows than they are asked for.

The plans are looked at on a log of 100,000 messages in ten partitions, nearly all of them claimed, with 50 groups and
50,000 dead and 10,000 unread messages, and 5,000 that take part in compaction; before and after ANALYZE; planned for
their parameters and for any.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.adapt import PyFormat, Transformer

from sqlstreams import Client, statements
from sqlstreams.options import DeadFilter, GroupOptions, ScheduleOptions, StreamOptions
from sqlstreams.produce.batch import JsonArray, prepare_adapters
from sqlstreams.slots import Rule
from sqlstreams.sql import statement_texts
from sqlstreams.statements import Declared, DeclaredDeadline, DutyReport, Failures, Family, Rows, Statement
from tests.database.databases import database_of_a_module
from tests.support import Note

FAMILY = Family("sqlstreams", 1)
TOKEN = UUID(int=1)
# A table of ours stands for one of a user's.
ROWS = Rows(
    table_schema="sqlstreams",
    table_name="consumer_group_config",
    key="name",
    key_type="pg_catalog.text",
    deadline="created_at",
    state="start_at",
    from_state="head",
    to_state="beginning",
    columns=("id",),
    only=(("stream_id", "1"),),
)
DECLARED = Declared(1, Rule("* * * * *", "UTC"), b"{}", 1, None, ScheduleOptions())
ARGUMENTS: dict[str, Any] = {
    "above": 0,
    "action": "registered",
    "after": 0,
    "after_id": 0,
    "after_key": "",
    "ahead": 0,
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "below": 0,
    "bindings": ["eu.*"],
    "breaking": False,
    "chain": ["k"],
    "channel": "sqlstreams",
    "checksum": "x",
    "claimed": 0,
    "compaction_ranks": [None, 1],
    "concurrencies": ["ordered", None],
    "config": b"{}",
    "count": 1,
    "deadline_id": 1,
    "done": [[1, 2], []],
    "failures": Failures([1], ["failed"], ["ready"], [0.0], ["ValueError"], ["no"]),
    "family": FAMILY,
    "exceptions": 0,
    "error": "no",
    "errors": ["no"],
    "expired_before": datetime(2026, 1, 1, tzinfo=UTC),
    "fingerprint": "x",
    "fingerprints": [b"x"],
    "first_id": 1,
    "finished": [TOKEN],
    "followers": 10,
    "free": 5,
    "from_id": 1,
    "gated": True,
    "group_id": 1,
    "groups": {1: [1]},
    "streams": [1],
    "head": 10,
    "held_for": timedelta(seconds=1),
    "hostname": "here",
    "ids": [1],
    "instance_id": 1,
    "json_schema": b"{}",
    "kept_from": 10,
    "key": "k",
    "keys": ["k"],
    "kind": "producer",
    "known": [TOKEN],
    "last": 10,
    "last_id": 10,
    "leases": 0,
    "library": "1.0",
    "limit": 10,
    "message_id": 1,
    "message_ids": [1],
    "meant": DeadFilter(message_ids=(1, 2), error="no", key="k"),
    "message_keys": ["k", None],
    "messages": 1,
    "mode": "active",
    "name": "notes",
    "new_name": "letters",
    "only": {},
    "observed_due": 1,
    "older_than": timedelta(days=1),
    "of_group": 1,
    "partitions": 32,
    "patterns": ["eu.%"],
    "payloads": JsonArray([b"{}", b"[]"]),
    "pid": 1,
    "position": 1,
    "ranks": [0],
    "rate": 100.0,
    "counts": [1],
    "declared": DECLARED,
    "due_at": datetime(2026, 1, 1, tzinfo=UTC),
    "due_ats": [datetime(2026, 1, 1, tzinfo=UTC), None],
    "fired_by": "here 1",
    "first_slots": [datetime(2026, 1, 1, tzinfo=UTC)],
    "kinds": ["slot"],
    "known_slots": [datetime(2026, 1, 1, tzinfo=UTC), None],
    "last_slots": [datetime(2026, 1, 1, tzinfo=UTC)],
    "next_slot": None,
    "next_slots": [datetime(2026, 1, 1, tzinfo=UTC), None],
    "reasons": ["edited"],
    "retimed": [True],
    "revisions": [1],
    "schedule_id": 1,
    "schedule_ids": [1, 2],
    "slots": [datetime(2026, 1, 1, tzinfo=UTC)],
    "within": 60.0,
    "zone_data": "2026.5",
    "reports": [DutyReport("leases", 1, 2, 0.5, 0.1, 2, None, 60.0, 0, None, None)],
    "reason": "no",
    "resolved": [1, 2],
    "revision": 1,
    "rows": ROWS,
    "role": "postgres",
    "routing_keys": None,
    "scan": 100,
    "schema": "sqlstreams",
    "schema_version": 1,
    "schema_versions": [1, 2],
    "scope": "system",
    "settled": 0,
    "start_at": "head",
    "steal": True,
    "suspended": True,
    "stream_id": 1,
    "start": datetime(2026, 1, 1, tzinfo=UTC),
    "stream_ids": [1],
    "table_id": 1,
    "table": '"x"',
    "through": 10,
    "token": TOKEN,
    "tokens": [TOKEN, UUID(int=2)],
    "ttl": 15.0,
    "until": datetime(2026, 1, 2, tzinfo=UTC),
    "types": ["pg_catalog.int8"],
    "version": 99,
    "waited": 20,
    "values": ["1"],
    "versions": [2],
    "xact": 3,
}
DDL = {"create_schema", "create_migration_log", "drop_family", "analyze_log", "explain_claim"}
NOT_IN_A_TRANSACTION = {"detach_partition", "finish_detaching"}


def _sample(name: str) -> Statement[Any]:
    ask = getattr(statements, name)
    arguments: dict[str, Any] = {}
    for parameter in inspect.signature(ask).parameters.values():
        match parameter.name, parameter.annotation:
            case "declared", "DeclaredDeadline":
                arguments["declared"] = DeclaredDeadline(1, 1, None, ROWS, 200)
            case "options", "StreamOptions":
                arguments["options"] = StreamOptions()
            case "options", "GroupOptions":
                arguments["options"] = GroupOptions()
            case "resolved", "int":
                arguments["resolved"] = 1
            case "options", _:
                arguments["options"] = None
            case _:
                arguments[parameter.name] = ARGUMENTS[parameter.name]
    made: Statement[Any] = ask(**arguments)
    return made


@pytest.fixture(scope="module")
def plain_url(server_url: str, template: str) -> Iterator[str]:
    """A database with one stream and one group, for tests that change nothing."""
    for url in database_of_a_module(server_url, template, "plain"):
        with Client(url) as client:
            client.stream("notes", Note).register().consumer("g").register()
        yield url


@pytest.mark.parametrize("name", sorted(statement_texts().keys() - NOT_IN_A_TRANSACTION))
def test_every_statement_fits_the_schema(plain_url: str, name: str) -> None:
    statement = _sample(name)
    assert statement.name == name
    prefix = b"" if name in DDL else b"explain "
    with psycopg.connect(plain_url) as connection:
        prepare_adapters(connection.adapters)
        connection.execute(prefix + statement.query, statement.parameters, binary=True)
        connection.rollback()


@pytest.mark.parametrize("name", statement_texts())
def test_every_statement_uses_all_its_parameters_and_puts_none_into_quotes(name: str) -> None:
    statement = _sample(name)
    assert statement.parameters is not None
    assert set(re.findall(r"%\((\w+)\)s", statement.query.decode())) == statement.parameters.keys()
    quoted = re.findall(r"'(?:[^']|'')*'", statement.query.decode())
    assert [text for text in quoted if "%(" in text] == []


@pytest.mark.parametrize("bound", [statements.bound_moving, statements.bound_waiting, statements.wait_briefly])
def test_a_process_that_freezes_in_the_middle_keeps_its_locks_for_seconds(
    plain_url: str, bound: Callable[[str], Statement[Any]]
) -> None:
    with psycopg.connect(plain_url) as connection:
        connection.execute(bound("sqlstreams").query)
        shown = connection.execute("show idle_in_transaction_session_timeout").fetchone()
        connection.rollback()
        after = connection.execute("show idle_in_transaction_session_timeout").fetchone()
    assert (shown, after) == (("15s",), ("0",))


@pytest.mark.parametrize("name", statement_texts())
def test_no_statement_selects_whatever_there_is(name: str) -> None:
    assert not re.search(r"select\s+(\w+\.)?\*", statement_texts()[name])


# Plans

MESSAGES, GROUPS, DEAD, IN_FLIGHT, UNREAD, PARTITION = 100_000, 50, 50_000, 100, 10_000, 10_000
CLAIMED = 98_500
BOUND, BOUND_AT = 3, 60_000
PATIENT, WAITING = 6, 5_000
KEYS = 2_500
IDEMPOTENT, EXPIRED = 20_000, 1_000
ORDERED, HOT = 4, 20_000
HOT_AT = CLAIMED - ORDERED * 200 - 200 + 1  # where its second range begins
LAST_PARTITION = {f"message_log_1_from_{MESSAGES}"}  # which holds one message


@pytest.fixture(scope="module", params=["never analyzed", "analyzed"])
def full_url(request: pytest.FixtureRequest, server_url: str, template: str) -> Iterator[str]:
    """A database with much in it."""
    for url in database_of_a_module(server_url, template, "full"):
        with Client(url) as client:
            stream = client.stream("notes", Note).register(partition_rows=PARTITION)
            for number in range(GROUPS):
                stream.consumer(f"g{number}").register()
        with psycopg.connect(url, autocommit=True) as connection:
            _fill(connection)
            if request.param == "analyzed":
                connection.execute("analyze")
        yield url


def _fill(connection: psycopg.Connection) -> None:
    connection.execute("select sqlstreams.extend_log(1, %s)", [MESSAGES])
    tables = connection.execute(
        "select oid::regclass::text from pg_class where relnamespace = 'sqlstreams'::regnamespace and relkind = 'r'"
    ).fetchall()
    for (table,) in tables:  # or PostgreSQL may analyze them when it likes
        connection.execute(f"alter table {table} set (autovacuum_enabled = off)")
    for query in (
        f"""insert into sqlstreams.message_log_1 (payload, routing_key, created_at, message_key, compaction_rank)
            select '{{"text": "a"}}', case when n % 100 = 0 then 'eu.paid' else 'us.paid' end,
                   now() - make_interval(secs => {MESSAGES} - n),
                   case when n % 20 = 0 then 'k' || n / 20 % {KEYS} end, case when n % 20 = 0 then 0 end
              from generate_series(1, {MESSAGES}) as n""",
        """insert into sqlstreams.compaction_head_1 (message_key, schema_version, rank, id)
           select message_key, 1, 0, max(id) from sqlstreams.message_log_1 where compaction_rank = 0 group by 1""",
        f"""insert into sqlstreams.idempotency_key_1 (idempotency_key, fingerprint, message_id, expires_at)
            select 'k' || n, '', n, now() + make_interval(secs => n - {EXPIRED})
              from generate_series(1, {IDEMPOTENT}) as n""",
        f"update sqlstreams.consumer_group_cursor set claimed = {CLAIMED} - group_id * 200",
        f"""update sqlstreams.consumer_group_cursor
               set claimed = {BOUND_AT}, bindings = '{{eu.%}}'
             where group_id = {BOUND}""",
        f"""insert into sqlstreams.exception_queue_1 (group_id, message_id, state, failures, can_run_after)
            select 1, n, 'dead', 3, now() - interval '1 hour' from generate_series(1, {DEAD}) as n""",
        f"""insert into sqlstreams.exception_queue_1 (group_id, message_id, state, can_run_after)
            select 1, {DEAD} + n, 'ready', now() + make_interval(mins => n::int - 500)
              from generate_series(1, 1000) as n""",
        f"""insert into sqlstreams.exception_queue_1 (group_id, message_id, state, token, can_run_after)
            select 1, {DEAD} + 1000 + n, 'inflight', gen_random_uuid(), now()
              from generate_series(1, {IN_FLIGHT}) as n""",
        f"""insert into sqlstreams.delivery_log_1 (group_id, message_id, attempt, outcome)
            select 1, n, attempt, case attempt when 3 then 'dead' else 'failed' end
              from generate_series(1, {DEAD}) as n, generate_series(1, 3) as attempt""",
        f"""insert into sqlstreams.exception_queue_1 (group_id, message_id, state, schema_version, can_run_after)
            select 1, {DEAD} + 2000 + n, 'unread', 4 + n % 2, now() from generate_series(1, {UNREAD}) as n""",
        f"""insert into sqlstreams.exception_queue_1
                   (group_id, message_id, state, can_run_after, message_key, concurrency)
            select {ORDERED}, {DEAD} + 20_000 + n, case n when 1 then 'ready' else 'deferred' end,
                   now() - interval '1 hour', 'hot', 'ordered'
              from generate_series(1, {HOT}) as n""",
        f"""update sqlstreams.consumer_group_config set concurrency = 'ordered' where id in (1, {ORDERED})""",
        f"""update sqlstreams.message_log_1
               set message_key = 'hot'
             where id between {HOT_AT} and {HOT_AT} + 99 and id % 20 = 1""",
        f"""insert into sqlstreams.exception_queue_1 (group_id, message_id, state, can_run_after)
            select {PATIENT}, n, 'waiting', now() + make_interval(secs => n::int - 1000)
              from generate_series(1, {WAITING}) as n""",
        """insert into sqlstreams.consumer_instance (token, hostname, pid, library, expires_at)
           select gen_random_uuid(), 'h', n, '1', now() + interval '1 hour' from generate_series(1, 20) as n""",
        f"""insert into sqlstreams.claim_lease (token, group_id, instance_id, low, high, resolved)
            select ('00000000-0000-0000-0000-' || lpad(to_hex(g * 20 + i), 12, '0'))::uuid, g,
                   nullif(i, 1), {CLAIMED} - g * 200 - i * 100 + 1, {CLAIMED} - g * 200 - i * 100 + 100,
                   {CLAIMED} - g * 200 - i * 100
              from generate_series(1, {GROUPS}) as g, generate_series(1, 10) as i""",
    ):
        connection.execute(query)


class Plan:
    """What EXPLAIN (ANALYZE) says of the log, the heads, the exception queue and the history."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.nodes = [node for node in _walk(plan) if node["Actual Loops"] and _is_big(node)]

    @property
    def scanned_through(self) -> list[str]:
        """Return the tables that were read from end to end."""
        return [node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan"]

    @property
    def rows(self) -> int:
        """Return how many rows were read, also those that were of no use."""
        counts = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
        return sum(round(node["Actual Loops"] * sum(node.get(each, 0) for each in counts)) for node in self.nodes)

    @property
    def partitions(self) -> set[str]:
        """Return the partitions of the log that were read."""
        return {node["Relation Name"] for node in self.nodes if node["Relation Name"].startswith("message_log_1_from")}


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _walk(inner)


def _is_big(node: dict[str, Any]) -> bool:
    name, kind = str(node.get("Relation Name", "")), str(node["Node Type"])
    return kind.endswith("Scan") and name.startswith(
        ("message_log", "exception_queue", "delivery_log", "compaction_head", "idempotency_key")
    )


def _explain(url: str, statement: Statement[Any], *, generic: bool) -> Plan:
    explain: LiteralString = "explain (analyze, format json) "
    with psycopg.connect(url) as connection:
        prepare_adapters(connection.adapters)
        if not generic:
            cursor = connection.execute(explain.encode() + statement.query, statement.parameters, binary=True)
        else:
            connection.execute("set local plan_cache_mode = force_generic_plan")
            _prepare(connection, statement)
            arguments = [sql.Literal(value) for value in (statement.parameters or {}).values()]
            listed = [sql.SQL(" ({})").format(sql.SQL(", ").join(arguments))] if arguments else []
            cursor = connection.execute(sql.Composed([sql.SQL(explain), sql.SQL("execute asked"), *listed]))
        row = cursor.fetchone()
        connection.rollback()
        connection.execute("deallocate all")
    assert row is not None
    return Plan(row[0][0]["Plan"])


def _prepare(connection: psycopg.Connection, statement: Statement[Any]) -> None:
    # With the types that the driver would announce.
    parameters = dict(statement.parameters or {})
    transformer = Transformer(connection)
    transformer.dump_sequence(list(parameters.values()), [PyFormat.BINARY] * len(parameters))
    registry = connection.adapters.types
    types = ", ".join(_type_name(registry.get(oid), oid) for oid in transformer.types or ())
    numbers = {name: number for number, name in enumerate(parameters, start=1)}
    query = re.sub(r"%\((\w+)\)s", lambda match: f"${numbers[match[1]]}", statement.query.decode())
    announced = f" ({types})" if types else ""
    connection.execute(f"prepare asked{announced} as {query.replace('%%', '%')}".encode())


def _type_name(info: Any, oid: int) -> str:
    if info is None:
        return "unknown"
    return f"{info.regtype}[]" if oid == info.array_oid else str(info.regtype)


modes = pytest.mark.parametrize("generic", [False, True], ids=["planned for its parameters", "planned for any"])


@modes
@pytest.mark.parametrize("group_id", [1, 40])
@pytest.mark.parametrize("limit", [10, 500])
def test_a_claim_reads_what_it_takes(full_url: str, generic: bool, group_id: int, limit: int) -> None:
    statement = statements.claim(
        FAMILY, group_id=group_id, instance_id=2, token=TOKEN, limit=limit, settled=0, finished=[], gated=False
    )
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    assert limit <= plan.rows <= 2 * limit + 10
    assert len(plan.partitions) <= 2


@modes
def test_a_claim_across_holes_reads_what_it_takes(full_url: str, generic: bool) -> None:
    statement = statements.claim(
        FAMILY, group_id=1, instance_id=2, token=TOKEN, limit=100, settled=MESSAGES, finished=[TOKEN], gated=False
    )
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    assert 100 <= plan.rows <= 210


@modes
@pytest.mark.parametrize(("limit", "passed"), [(10, 1_000), (100, 10_000), (500, 20_000)])
def test_a_claim_with_bindings_reads_up_to_its_last_match(
    full_url: str, generic: bool, limit: int, passed: int
) -> None:
    statement = statements.claim_bound(
        FAMILY,
        group_id=BOUND,
        instance_id=2,
        token=TOKEN,
        limit=limit,
        scan=20_000,
        settled=0,
        finished=[],
        gated=False,
    )
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    # Once for the matches, once for holes; and of a log never analyzed a long range once more.
    assert 2 * passed <= plan.rows <= 3 * passed + limit + 10
    assert len(plan.partitions) <= 2 + passed // PARTITION


@modes
def test_taking_over_reads_the_range_alone(full_url: str, generic: bool) -> None:
    statement = statements.take_over(FAMILY, group_id=1, instance_id=2, token=TOKEN, gated=False)
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    assert 100 <= plan.rows <= 210
    assert len(plan.partitions) <= 2


@modes
@pytest.mark.parametrize("limit", [1, 100])
def test_claiming_exceptions_reads_no_dead_ones(full_url: str, generic: bool, limit: int) -> None:
    statement = statements.claim_exceptions(
        FAMILY,
        group_id=1,
        instance_id=2,
        token=TOKEN,
        limit=limit,
        waited=limit,
        free=limit,
        followers=100,
        versions=[2, 3],
    )
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    assert limit <= plan.rows <= 4 * limit + 10


@modes
def test_claiming_what_has_waited_reads_what_is_due(full_url: str, generic: bool) -> None:
    statement = statements.claim_exceptions(
        FAMILY, group_id=PATIENT, instance_id=2, token=TOKEN, limit=10, waited=100, free=10, followers=100, versions=[]
    )
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    assert 100 <= plan.rows <= 4 * 100 + 10


@modes
def test_sorting_out_what_is_for_later_reads_the_range(full_url: str, generic: bool) -> None:
    token = UUID(int=7 * 20 + 2)  # of a range of a hundred
    plan = _explain(full_url, statements.wait_until_due(FAMILY, group_id=7, token=token), generic=generic)
    assert plan.scanned_through == []
    assert plan.rows <= 110
    assert len(plan.partitions) <= 2


@modes
def test_cancelling_reads_a_row_of_each_group(full_url: str, generic: bool) -> None:
    plan = _explain(full_url, statements.cancel_deliveries(FAMILY, message_id=100), generic=generic)
    assert plan.scanned_through == []
    assert plan.rows <= 4 * GROUPS


@modes
def test_claiming_of_a_hot_key_reads_what_it_takes(full_url: str, generic: bool) -> None:
    statement = statements.claim_exceptions(
        FAMILY,
        group_id=ORDERED,
        instance_id=2,
        token=TOKEN,
        limit=100,
        waited=100,
        free=10,
        followers=100,
        versions=[1],
    )
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    assert 100 <= plan.rows <= 4 * 101 + 10


@modes
@pytest.mark.parametrize("group_id", [1, ORDERED], ids=["beside dead ones", "behind a hot key"])
def test_taking_the_keys_of_a_range_reads_that_range(full_url: str, generic: bool, group_id: int) -> None:
    token = UUID(int=group_id * 20 + 2)  # of a range of a hundred, every tenth or twentieth with a key
    statement = statements.gate(FAMILY, group_id=group_id, instance_id=2, token=token, chain=["k"], steal=False)
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    assert 100 <= plan.rows <= 100 + 3 * 10
    assert len(plan.partitions) <= 2


@modes
def test_letting_a_hot_key_go_on_reads_its_first_message(full_url: str, generic: bool) -> None:
    plan = _explain(full_url, statements.promote(FAMILY, group_id=ORDERED, keys=["hot", "cold"]), generic=generic)
    assert plan.scanned_through == []
    assert plan.rows <= 3


@modes
def test_claiming_what_was_unread_reads_that_of_the_versions_asked_for(full_url: str, generic: bool) -> None:
    statement = statements.claim_exceptions(
        FAMILY, group_id=1, instance_id=2, token=TOKEN, limit=100, waited=100, free=100, followers=100, versions=[2, 5]
    )
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    assert 200 <= plan.rows <= 8 * 100 + 10


@modes
def test_a_poll_for_fifty_groups_reads_some_rows_of_each(full_url: str, generic: bool) -> None:
    statement = statements.poll("sqlstreams", groups={1: list(range(1, GROUPS + 1))})
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    assert plan.rows <= 4 * GROUPS


@modes
def test_a_checkpoint_reads_no_message(full_url: str, generic: bool) -> None:
    statement = statements.checkpoint(
        "sqlstreams", instance_id=2, tokens=[UUID(int=22)], resolved=[CLAIMED], done=[[1, 2]]
    )
    assert _explain(full_url, statement, generic=generic).nodes == []


@modes
def test_producing_reads_nothing(full_url: str, generic: bool) -> None:
    statement = statements.produce_many(
        FAMILY,
        schema_version=1,
        payloads=["{}"] * 1_000 if generic else JsonArray([b"{}"] * 1_000),
        routing_keys=None,
        message_keys=None,
        options=None,
        compaction_ranks=None,
    )
    assert _explain(full_url, statement, generic=generic).nodes == []


@modes
@pytest.mark.parametrize("rows", [1, 100])
def test_giving_exceptions_back_reads_those_rows_or_all_in_flight(full_url: str, generic: bool, rows: int) -> None:
    ids = [DEAD + number for number in range(1, rows + 1)]
    failures = Failures(ids, ["failed"] * rows, ["ready"] * rows, [0.0] * rows, ["E"] * rows, ["no"] * rows)
    for statement in (
        statements.complete_exceptions(FAMILY, group_id=1, instance_id=2, token=TOKEN, message_ids=ids),
        statements.return_exceptions(FAMILY, group_id=1, instance_id=2, token=TOKEN, failures=failures),
        statements.release_exceptions(FAMILY, group_id=1, instance_id=2, known=[TOKEN]),
    ):
        plan = _explain(full_url, statement, generic=generic)
        assert plan.scanned_through == [], statement.name
        assert plan.rows <= 2 * rows + IN_FLIGHT, statement.name


@modes
def test_freeing_exceptions_reads_the_orphaned_ones(full_url: str, generic: bool) -> None:
    plan = _explain(full_url, statements.free_exceptions(FAMILY, group_id=1, instance_id=2), generic=generic)
    assert plan.scanned_through == []
    assert 100 <= plan.rows <= 210


@modes
@pytest.mark.parametrize("after", [0, 40_000])
def test_a_page_of_dead_letters_is_read_from_their_own_index(full_url: str, generic: bool, after: int) -> None:
    statement = statements.find_dead_letters(FAMILY, group_id=1, meant=DeadFilter(), after=after, limit=100)
    plan = _explain(full_url, statement, generic=generic)
    assert {node.get("Index Name") for node in plan.nodes} == {"exception_queue_1_dead"}
    assert plan.rows == 100


@modes
def test_dead_letters_that_are_named_are_read_alone(full_url: str, generic: bool) -> None:
    meant = DeadFilter(message_ids=tuple(range(25_000, 25_100)))
    for statement, per_letter in (
        (statements.find_dead_letters(FAMILY, group_id=1, meant=meant, after=0, limit=1_000), 1),
        (statements.read_dead_letters(FAMILY, group_id=1, message_ids=list(meant.message_ids or ())), 2),
    ):
        plan = _explain(full_url, statement, generic=generic)
        assert plan.scanned_through == [], statement.name
        assert 100 <= plan.rows <= 100 * per_letter + 10, statement.name


@modes
@pytest.mark.parametrize("rate", [None, 100.0])
def test_moving_dead_letters_reads_those_alone(full_url: str, generic: bool, rate: float | None) -> None:
    ids = list(range(25_000, 25_100))
    for statement in (
        statements.redrive_dead_letters(FAMILY, group_id=1, message_ids=ids, rate=rate),
        statements.discard_dead_letters(FAMILY, group_id=1, message_ids=ids, reason="no"),
    ):
        plan = _explain(full_url, statement, generic=generic)
        assert plan.scanned_through == [], statement.name
        assert 200 <= plan.rows <= 210, statement.name


@modes
def test_the_history_of_a_message_is_read_alone(full_url: str, generic: bool) -> None:
    statement = statements.list_deliveries(FAMILY, group_id=1, message_id=25_000, limit=1_000)
    plan = _explain(full_url, statement, generic=generic)
    assert plan.scanned_through == []
    assert plan.rows == 3


@modes
def test_the_head_of_a_log_is_one_row(full_url: str, generic: bool) -> None:
    plan = _explain(full_url, statements.read_settled_head(FAMILY), generic=generic)
    assert plan.scanned_through == []
    assert plan.rows == 1


@modes
def test_reading_messages_reads_as_many_as_asked(full_url: str, generic: bool) -> None:
    plan = _explain(full_url, statements.read_messages(FAMILY, from_id=55_555, limit=100), generic=generic)
    assert plan.scanned_through == []
    assert plan.rows == 100
    assert len(plan.partitions) == 1


@modes
def test_moving_and_finding_heads_reads_those_alone(full_url: str, generic: bool) -> None:
    keys = [f"k{number}" for number in range(100)]
    moving = statements.move_heads(FAMILY, schema_version=1, keys=keys, ranks=[0] * 100, ids=[MESSAGES + 1] * 100)
    assert _explain(full_url, moving, generic=generic).scanned_through == []
    plan = _explain(full_url, statements.find_heads(FAMILY, keys=keys), generic=generic)
    assert (plan.scanned_through, plan.rows) == ([], 100)


@modes
def test_taking_and_finding_idempotency_keys_reads_those_alone(full_url: str, generic: bool) -> None:
    keys = [f"k{number}" for number in range(5_000, 5_100)]
    prints = [b"x"] * 100
    for statement in (
        statements.take_idempotency_keys(FAMILY, keys=keys, fingerprints=prints),
        statements.renew_idempotency_keys(FAMILY, keys=keys, fingerprints=prints),
        statements.record_idempotent_messages(FAMILY, keys=keys, ids=[1] * 100),
    ):
        assert _explain(full_url, statement, generic=generic).nodes == [], statement.name
    plan = _explain(full_url, statements.find_idempotency_keys(FAMILY, keys=keys), generic=generic)
    assert (plan.scanned_through, plan.rows) == ([], 100)


@modes
def test_forgetting_idempotency_keys_reads_those_alone(full_url: str, generic: bool) -> None:
    plan = _explain(full_url, statements.forget_idempotency_keys(FAMILY, limit=100), generic=generic)
    assert plan.scanned_through == []
    assert 200 <= plan.rows <= 310
    plan = _explain(full_url, statements.list_expired_keys("sqlstreams", streams=[1]), generic=generic)
    assert (plan.scanned_through, plan.rows) == ([], 1)


@modes
def test_the_head_of_a_key_and_its_history_are_read_alone(full_url: str, generic: bool) -> None:
    head = _explain(full_url, statements.read_head(FAMILY, key="k7"), generic=generic)
    assert (head.scanned_through, head.rows) == ([], 2)
    history = _explain(full_url, statements.read_history(FAMILY, key="k7", limit=100), generic=generic)
    assert set(history.scanned_through) <= LAST_PARTITION
    assert 2 <= history.rows <= 3


@modes
def test_the_lowest_head_is_one_look(full_url: str, generic: bool) -> None:
    plan = _explain(full_url, statements.find_lowest_head(FAMILY), generic=generic)
    assert (plan.scanned_through, plan.rows) == ([], 1)


@modes
def test_a_step_of_a_compaction_reads_what_it_looks_at(full_url: str, generic: bool) -> None:
    statement = statements.compact(FAMILY, older_than=timedelta(hours=1), after_key="k1", after_id=0, limit=100)
    plan = _explain(full_url, statement, generic=generic)
    assert set(plan.scanned_through) <= LAST_PARTITION
    # Per partition up to one more, for the merge; then their heads, rows and messages.
    assert 200 <= plan.rows <= 100 + MESSAGES // PARTITION + 1 + 4 * 100


@pytest.mark.parametrize("group_id", [2, 50])
def test_the_status_of_a_group_reads_a_few_rows(full_url: str, group_id: int) -> None:
    scanned, fetched = _touched(full_url, statements.get_group_status("sqlstreams", group_id=group_id))
    assert scanned == []
    assert fetched <= 5


@pytest.mark.parametrize("ago", [0, 10, 50_000, 99_990, 1_000_000])
def test_a_position_in_time_is_found_by_halving(full_url: str, ago: int) -> None:
    # The messages are a second apart, and the last minute before the time is read in order.
    at = datetime.now(UTC) - timedelta(seconds=ago)
    statement = statements.find_position(FAMILY, at=at, head=MESSAGES, held_for=None)
    scanned, fetched = _touched(full_url, statement)
    assert scanned == []
    assert fetched <= 250


@pytest.mark.parametrize("held_for", [0, 1_000])
def test_a_position_below_open_transactions_reads_what_was_produced_meanwhile(full_url: str, held_for: int) -> None:
    # They may have begun long after the messages of this log were produced.
    statement = statements.find_position(FAMILY, at=None, head=MESSAGES, held_for=timedelta(seconds=held_for))
    scanned, fetched = _touched(full_url, statement)
    assert set(scanned) <= LAST_PARTITION
    assert fetched <= held_for + 1_500


def test_what_groups_have_not_done_is_found_among_what_waits(full_url: str) -> None:
    scanned, fetched = _touched(full_url, statements.list_unread(FAMILY))
    assert scanned == []
    assert fetched <= 1_000 + IN_FLIGHT + UNREAD + HOT + WAITING + 4 * GROUPS  # and none of the dead


@modes
@pytest.mark.parametrize("limit", [10, 1_000])
def test_removing_what_is_not_kept_reads_a_batch_of_it(full_url: str, generic: bool, limit: int) -> None:
    for statement, partitions in (
        (statements.delete_expired_exceptions(FAMILY, kept_from=20_001, limit=limit), 0),
        (statements.delete_expired_deliveries(FAMILY, kept_from=20_001, limit=limit), 0),
        (statements.delete_expired_messages(FAMILY, first_id=10_000, kept_from=20_001, limit=limit), 2),
    ):
        plan = _explain(full_url, statement, generic=generic)
        assert plan.scanned_through == [], statement.name
        # A table never analyzed may be sorted, as far as it is not kept.
        most = 4 * limit + 10 if partitions else 3 * 20_000 + 4 * limit + 10
        assert limit <= plan.rows <= most, statement.name
        assert len(plan.partitions) <= partitions, statement.name


def _touched(url: str, statement: Statement[Any]) -> tuple[list[str], int]:
    """Return the tables read from end to end and the rows fetched: inside functions EXPLAIN sees nothing."""
    counted: LiteralString = """
        select relname, seq_scan, coalesce(idx_tup_fetch, 0)
          from pg_stat_xact_user_tables
         where relname ~ '^(message_log|exception_queue)_1'
           and (seq_scan > 0 or idx_tup_fetch > 0)
    """
    with psycopg.connect(url) as connection:
        connection.execute(statement.query, statement.parameters)
        touched = connection.execute(counted).fetchall()
        connection.rollback()
    return [name for name, scans, _ in touched if scans], sum(fetched for _, _, fetched in touched)
