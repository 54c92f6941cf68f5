"""The history keeps every delivery that did not succeed, and nothing of those that did."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest

from sqlstreams import AsyncClient, Client, Delay, InvalidInput, Terminal
from tests.dead.letters import ask, group_of, let_die
from tests.support import Note, consuming, eventually

SOON = {"retry_base": timedelta(milliseconds=10), "retry_exponent": 1, "max_retries": 2}


async def test_every_failed_delivery_is_kept_with_its_error_and_its_process(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [(None, "a")], **SOON)
        await let_die(group, 1, lambda note: ValueError(f"no {note.text}"))
        kept = await group.deliveries(1)
    assert [(each.attempt, each.outcome, each.error_type) for each in kept] == [
        (1, "failed", "ValueError"),
        (2, "failed", "ValueError"),
        (3, "dead", "ValueError"),
    ]
    assert {(each.hostname, each.pid, each.changed_by) for each in kept} == {(socket.gethostname(), os.getpid(), None)}
    assert all((each.error or "").startswith("no a\nat ") for each in kept)
    assert [each.at for each in kept] == sorted(each.at for each in kept)


async def test_a_message_that_succeeds_at_last_keeps_its_history(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [(None, "a"), (None, "b")], **SOON)
        troubles: list[Exception] = [Delay(timedelta(milliseconds=10)), ValueError("no")]
        handled: list[str] = []

        async def handle(note: Note) -> None:
            if note.text == "a" and troubles:
                raise troubles.pop(0)
            handled.append(note.text)

        async with consuming(group, handle):
            await eventually(lambda: handled == ["b", "a"])
        assert [(each.attempt, each.outcome) for each in await group.deliveries(1)] == [(1, "delayed"), (2, "failed")]
        assert await group.deliveries(2) == []


async def test_a_message_that_is_given_up_at_once_is_dead_in_its_history(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [(None, "a")], **SOON)
        await let_die(group, 1, lambda _: Terminal("never"))
        assert [(each.attempt, each.outcome) for each in await group.deliveries(1)] == [(1, "dead")]


async def test_a_message_that_waits_for_its_key_has_no_history(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [("k", "a"), ("k", "b"), ("k", "c")], concurrency="ordered", **SOON)
        troubles: list[Exception] = [ValueError("no")]
        handled: list[str] = []

        async def handle(note: Note) -> None:
            if troubles:
                raise troubles.pop()
            handled.append(note.text)

        async with consuming(group, handle):
            await eventually(lambda: handled == ["a", "b", "c"])
            assert group.stats.deferred > 0
    assert ask(database_url, "select message_id, outcome from sqlstreams.delivery_log_1") == [(1, "failed")]


async def test_a_message_of_a_version_that_is_not_read_has_no_history(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [])
        ask(database_url, "insert into sqlstreams.message_log_1 (payload, schema_version) values ('{}', 9)")
        async with consuming(group, lambda note: None):
            await eventually(lambda: group.stats.unread == 1)
        assert await group.deliveries(1) == []


async def test_without_a_history_nothing_is_kept_and_everything_else_works(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        group = await group_of(client, [(None, "a"), (None, "b")], delivery_log="off")
        await let_die(group, 2, lambda _: ValueError("no"))
        assert (await group.redrive([1])).messages == 1
        assert await group.discard([2], reason="not needed") == 1
        info = await group.get()
        assert info is not None
        assert info.delivery_log == "off"
    assert ask(database_url, "select count(*) from sqlstreams.delivery_log_1") == [(0,)]


@pytest.mark.parametrize("mode", ["successes", "Failures", "", None, True])
def test_another_history_is_refused(database_url: str, mode: object) -> None:
    with (
        Client(database_url) as client,
        pytest.raises(InvalidInput, match="delivery_log must be one of failures, all, off"),
    ):
        client.stream("notes").consumer("g").register(delivery_log=mode)  # type: ignore[arg-type]  # what it is about


async def test_the_history_goes_with_its_group(database_url: str) -> None:
    async with AsyncClient(database_url, allow_destroy=True) as client:
        group = await group_of(client, [(None, "a")])
        await let_die(group, 1, lambda _: ValueError("no"))
        assert len(await group.deliveries(1)) == 1
        await group.destroy()
    assert ask(database_url, "select count(*) from sqlstreams.delivery_log_1") == [(0,)]
