"""An installation works in a schema of any name, and installations in one database leave each other alone."""

from __future__ import annotations

import pytest

from sqlstreams import AsyncClient, Client, InvalidInput
from sqlstreams.sql import fill
from tests.support import Note, consuming, eventually

ODD_NAMES = [
    "with space",
    "o'brien",
    'say "hi"',
    "100%",
    "%(id)s",
    "{stream}",
    "{schema}",
    "{schema_literal}",
    "Straße 日本",
    "public",
    "back\\slash",
    "$sqlstreams$",
    "'{schema}.",
    "x" * 63,
    "ü" * 31,
    "tab\there",
]


@pytest.mark.parametrize("schema", ODD_NAMES)
async def test_an_installation_works_in_a_schema_of_any_name(empty_database_url: str, schema: str) -> None:
    async with AsyncClient(empty_database_url, schema=schema, allow_destroy=True) as client:
        stream = await client.stream("notes", Note).register(partition_rows=1_000)
        await stream.producer().produce(Note("0"))
        await stream.producer().produce_many([Note("1"), Note("2")])
        consumer = await stream.consumer("readers").register()
        seen: list[str] = []
        async with consuming(consumer, lambda note: seen.append(note.text)):
            await eventually(lambda: len(seen) == 3)
        status = await consumer.status()
        assert (status.committed, status.lag, status.leases) == (3, 0, 0)
        assert (await stream.status()).head == 3
        assert [step.scope for step in (await client.system.status()).applied] == ["system", "stream"]
        await consumer.destroy()
        await stream.destroy()
    assert sorted(seen) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("", "must have 1 to 63 bytes, got 0"),
        ("x" * 64, "must have 1 to 63 bytes, got 64"),
        ("ü" * 32, "must have 1 to 63 bytes, got 64"),
        ("pg_mine", "must not begin with pg_"),
        ("a\x00b", "must not contain the character NUL"),
        ("\ud800", "must not contain a lone surrogate"),
        (None, "must be a str, got NoneType"),
    ],
)
def test_a_schema_that_postgresql_cannot_have_is_refused(schema: str, problem: str) -> None:
    for face in (Client, AsyncClient):
        with pytest.raises(InvalidInput, match=f"schema {problem}"):
            face("postgresql:///", schema=schema)


def test_what_a_schemas_name_looks_like_is_not_filled_in_again() -> None:
    text = "{schema}.log_{stream} '{schema}.log_{stream}' {schema_literal}"
    assert fill(text, schema="{stream}", stream=7) == """"{stream}".log_7 '"{stream}".log_7' '{stream}'"""
    assert fill(text, schema="{schema}", stream=7) == """"{schema}".log_7 '"{schema}".log_7' '{schema}'"""


async def test_two_installations_in_one_database_do_not_meet(empty_database_url: str) -> None:
    async with (
        AsyncClient(empty_database_url, schema="left", allow_destroy=True) as left,
        AsyncClient(empty_database_url, schema="right") as right,
    ):
        seen: dict[str, list[str]] = {"left": [], "right": []}
        streams = {"left": await left.stream("notes", Note).register()}
        await right.system.register()
        assert await right.list_streams() == []
        streams["right"] = await right.stream("notes", Note).register()
        consumers = {name: await stream.consumer("g").register() for name, stream in streams.items()}
        async with (
            consuming(consumers["left"], lambda note: seen["left"].append(note.text), concurrency=1),
            consuming(consumers["right"], lambda note: seen["right"].append(note.text), concurrency=1),
        ):
            for name, stream in streams.items():
                await stream.producer().produce_many([Note(f"{name} {number}") for number in range(20)])
            await eventually(lambda: len(seen["left"]) >= 20 and len(seen["right"]) >= 20)
        await streams["left"].destroy()
        assert (await streams["right"].status()).head == 20
    assert seen == {name: [f"{name} {number}" for number in range(20)] for name in ("left", "right")}


async def test_an_installation_hears_no_wake_up_of_another(empty_database_url: str) -> None:
    async with (
        AsyncClient(empty_database_url, schema="left") as left,
        AsyncClient(empty_database_url, schema="right") as right,
    ):
        theirs = (await left.stream("notes", Note).register()).producer()
        consumer = await (await right.stream("notes", Note).register()).consumer("g").register()
        handled: list[str] = []
        async with consuming(consumer, lambda note: handled.append(note.text)):
            for number in range(20):
                await theirs.produce(Note(str(number)))
            own = right.stream("notes", Note).producer()
            await own.produce(Note("own"))
            await eventually(lambda: handled == ["own"])
        assert consumer.stats.woken_by_notification <= 2
