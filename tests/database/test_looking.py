"""What tools read: the server's own state and the end of a log."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import make_conninfo

from sqlstreams import AsyncClient, Client, RawPayload
from tests.support import Note


def test_the_server_tells_of_itself_on_an_empty_database(empty_database_url: str) -> None:
    with Client(empty_database_url) as client, psycopg.connect(empty_database_url) as other:
        status = client.system.server()

        assert status.settings.version_number == other.info.server_version
        assert status.settings.database == other.info.dbname
        assert status.settings.role == other.info.user
        assert not status.settings.in_recovery
        assert status.settings.connections >= 2
        assert status.settings.connection_limit < int(str(_show(other, "max_connections")))
        assert status.privileges is None


def test_the_server_tells_what_a_role_lacks(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("drop role if exists sqlstreams_reader")
        owner.execute("create role sqlstreams_reader login")
        owner.execute("grant usage on schema sqlstreams to sqlstreams_reader")
        try:
            with Client(make_conninfo(database_url, user="sqlstreams_reader")) as client:
                status = client.system.server()
        finally:
            owner.execute("drop owned by sqlstreams_reader")
            owner.execute("drop role sqlstreams_reader")

    assert not status.settings.may_see_sessions
    assert status.privileges is not None
    assert status.privileges.may_use
    assert not status.privileges.may_create
    assert not status.privileges.may_register
    assert not status.privileges.may_consume


async def test_the_last_messages_are_those_with_the_highest_ids_whatever_was_rolled_back(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        producer = stream.producer()
        receipts = [await producer.produce(Note("first"))]
        with psycopg.connect(database_url) as undone:
            undone.execute("insert into sqlstreams.message_log_1 (payload) select '{}' from generate_series(1, 50)")
            undone.rollback()
        receipts += await producer.produce_many([Note("second"), Note("third")])

        last = await stream.last(limit=2)
        assert [each.id for each in last] == [receipt.id for receipt in receipts[1:]]
        assert last[1].payload == RawPayload(b'{"text":"third"}')
        assert [each.id for each in await stream.last()] == [receipt.id for receipt in receipts]


def _show(connection: psycopg.Connection[tuple[object, ...]], setting: str) -> object:
    row = connection.execute(f"show {setting}").fetchone()
    assert row is not None
    return row[0]
