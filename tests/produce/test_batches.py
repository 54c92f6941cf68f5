"""produce_many: the order of the receipts, all or nothing, and what it takes."""

from __future__ import annotations

import pytest

from sqlstreams import AsyncClient, Client, InvalidInput, Message
from tests.produce.log import commits, stored
from tests.support import Note


async def test_receipts_come_in_the_order_of_the_messages(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        receipts = await stream.producer().produce_many([Note(str(number)) for number in range(3_333)])
        read = await stream.read(limit=10_000)
    assert [receipt.id for receipt in receipts] == [message.id for message in read]
    assert stored(database_url) == [str(number) for number in range(3_333)]
    assert commits(database_url) == 1


async def test_one_bad_message_among_a_thousand_leaves_nothing(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        messages = [Message(Note(str(number)), key="k" * (513 if number == 700 else 1)) for number in range(1_000)]
        with pytest.raises(InvalidInput, match=r"messages\[700\].key must have 1 to 512 bytes, got 513") as refused:
            await stream.producer().produce_many(messages)
    assert refused.value.field == "messages[700].key"
    assert stored(database_url) == []


def test_one_bad_payload_among_a_thousand_leaves_nothing(database_url: str) -> None:
    with Client(database_url) as client:
        stream = client.stream("notes", Note).register()
        with pytest.raises(InvalidInput) as refused:
            stream.producer().produce_many([Note("\x00" if number == 999 else "") for number in range(1_000)])
    assert refused.value.field == "messages[999].payload.text"
    assert stored(database_url) == []


def test_no_message_is_no_receipt(database_url: str) -> None:
    with Client(database_url) as client:
        producer = client.stream("notes", Note).register().producer()
        assert producer.produce_many([]) == []
        assert producer.produce_many(iter(())) == []
    assert stored(database_url) == []


async def test_a_generator_will_do(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        receipts = await stream.producer().produce_many(Note(str(number)) for number in range(10))
    assert len(receipts) == 10
    assert stored(database_url) == [str(number) for number in range(10)]


def test_a_generator_that_fails_leaves_nothing(database_url: str) -> None:
    def failing() -> object:
        yield Note("first")
        raise KeyError("second")

    with Client(database_url) as client:
        producer = client.stream("notes", Note).register().producer()
        with pytest.raises(KeyError, match="second"):
            producer.produce_many(failing())  # type: ignore[arg-type]
    assert stored(database_url) == []


async def test_payloads_and_messages_with_options_may_be_mixed(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        await stream.producer().produce_many(
            [Note("plain"), Message(Note("full"), key="🔑", routing_key="eu.de", headers={"traceparent": "00-1"})]
        )
        plain, full = await stream.read()
    assert (plain.key, plain.routing_key, plain.headers) == (None, None, {})
    assert (full.key, full.routing_key, full.headers) == ("🔑", "eu.de", {"traceparent": "00-1"})


async def test_a_batch_larger_than_one_statement_is_still_one_transaction(database_url: str) -> None:
    async with AsyncClient(database_url) as client:
        stream = await client.stream("notes", Note).register()
        large = [Note("x" * 900_000) for _ in range(5)]
        await stream.producer().produce_many(large)
    assert len(stored(database_url)) == 5
    assert commits(database_url) == 1
