"""Any number of processes may install, upgrade and begin to use a schema at the same moment."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Barrier

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sqlstreams import AsyncClient, Client, acts
from sqlstreams.database import Database, execute
from tests.support import Note, eventually

_PROCESSES, _THREADS = 8, 12
_REGISTER = """
import sys
from sqlstreams import Client
with Client(sys.argv[1], pool_size=2) as client:
    print("ready", flush=True)
    sys.stdin.readline()
    print(len(client.system.register()))
"""


def test_twenty_starters_on_an_empty_database_apply_each_step_once(empty_database_url: str) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _REGISTER, empty_database_url],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(_PROCESSES)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        threads = stack.enter_context(ThreadPoolExecutor(_THREADS))
        barrier = Barrier(_THREADS + 1)
        in_threads = [threads.submit(_register, empty_database_url, barrier) for _ in range(_THREADS)]
        barrier.wait()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        applied = [int(process.communicate(timeout=60)[0]) for process in processes]
        applied += [each.result(timeout=60) for each in in_threads]
        assert [process.returncode for process in processes] == [0] * _PROCESSES
    with Client(empty_database_url) as client:
        status = client.system.status()
    assert sum(applied) == len(status.applied) > 0
    assert status.pending == ()


def _register(url: str, barrier: Barrier) -> int:
    with Client(url, pool_size=2) as client:
        barrier.wait()
        return len(client.system.register())


def _use(url: str, schema: str, barrier: Barrier) -> int:
    with Client(url, schema=schema, pool_size=2) as client:
        barrier.wait()
        stream = client.stream("notes", Note).register()
        stream.consumer("readers").register()
        stream.producer().register().produce(Note("first"))
        return len(client.list_streams())


@pytest.mark.parametrize("attempt", range(3))
def test_twenty_first_users_of_a_fresh_schema_get_one_stream(empty_database_url: str, attempt: int) -> None:
    schema, barrier = f"fresh {attempt}", Barrier(20)
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(lambda _: _use(empty_database_url, schema, barrier), range(20)))
    assert found == [1] * 20
    with Client(empty_database_url, schema=schema) as client:
        stream = client.stream("notes", Note)
        assert len(stream.read(limit=100)) == 20
        assert [group.name for group in client.list_consumers()] == ["readers"]
    with psycopg.connect(empty_database_url) as connection:
        logged = connection.execute(f'select action from "{schema}".stream_config_log').fetchall()
        assert logged == [("registered",)]


async def test_twenty_first_users_in_one_process_get_one_stream(empty_database_url: str) -> None:
    async with AsyncClient(empty_database_url) as client:

        async def use(number: int) -> None:
            stream = await client.stream("notes", Note).register()
            await stream.producer().produce(Note(str(number)))

        await asyncio.gather(*(use(number) for number in range(20)))
        assert len(await client.stream("notes", Note).read(limit=100)) == 20
        assert len(await client.list_streams()) == 1


def test_many_first_users_of_many_streams_do_not_take_them_for_lacking(empty_database_url: str) -> None:
    def use(number: int) -> None:
        with Client(empty_database_url, pool_size=1) as client:
            barrier.wait()
            client.stream(f"notes-{number}", Note).register()

    barrier = Barrier(16)
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(use, range(16)))
    with Client(empty_database_url) as client:
        assert len(client.list_streams()) == 16


def test_a_stream_registered_while_the_installation_is_checked_is_not_taken_for_lacking(database_url: str) -> None:
    with Client(database_url) as other, psycopg.connect(database_url) as connection:
        checking = acts.check_installation("sqlstreams")
        asked, rows = [], None
        with suppress(StopIteration):
            while True:
                statement = checking.send(rows)  # type: ignore[arg-type]  # None begins it
                asked.append(statement.name)
                rows = execute(connection, statement)
                if asked[-1] == "list_applied":
                    other.stream("notes", Note).register()
    assert asked.count("list_applied") == 2


async def test_a_registration_cancelled_while_it_waits_leaves_nothing(empty_database_url: str) -> None:
    async with AsyncClient(empty_database_url) as client:
        async with await psycopg.AsyncConnection.connect(empty_database_url) as other:
            await other.execute("""select pg_advisory_xact_lock(hashtextextended('"sqlstreams".migration_log', 0))""")
            task = asyncio.create_task(client.system.register())
            await eventually(lambda: _is_waiting(empty_database_url))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not (await client.system.status()).installed
        assert len(await client.system.register()) > 0


async def _is_waiting(url: str) -> bool:
    admin = make_conninfo(url, application_name="watcher")
    async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as connection:
        cursor = await connection.execute("select from pg_locks where locktype = 'advisory' and not granted")
        return await cursor.fetchone() is not None


def test_a_database_is_closed_however_the_race_ends(empty_database_url: str) -> None:
    with Client(empty_database_url) as client:
        client.system.register()
        assert isinstance(client._database, Database)
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        left = connection.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        ).fetchone()
    assert left == (0,)
