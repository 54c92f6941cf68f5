"""URLs and templates: what is refused at the call, and that no password is ever shown."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from sqlstreams import AsyncClient, AsyncStream, ExtraMissing, InvalidInput, PublishRefused, RawPayload
from sqlstreams.relay import Relay
from sqlstreams.relay.destination import Template

NOWHERE = AsyncClient("postgresql://127.0.0.1:1/nothing")
NONE = dict.fromkeys(("stream", "key", "routing_key", "schema_version"))


def relay(to: str, **options: str) -> Relay:
    return Relay(NOWHERE, "orders", to, **options)  # type: ignore[arg-type]  # only text is given here


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("", "must name a host"),
        ("http://localhost/a", "must begin with nats://"),
        ("nats://localhost", "must name a subject"),
        ("nats:///orders", "must name a host"),
        ("nats://localhost/a b", "without spaces"),
        ("nats://localhost/a\x00b", "control characters"),
        ("nats://localhost/a\ud800", "lone surrogates"),
        ("nats://localhost/orders.*", "is no subject of NATS"),
        ("nats://localhost/orders..x", "is no subject of NATS"),
        ("nats://localhost/{nothing}", "knows the fields"),
        ("nats://localhost/{key", "has braces"),
        ("nats://localhost/{}", "has braces"),
        ("nats://localhost/" + "a" * 1_001, "a template of 1001 characters"),
        ("nats://localhost/orders?subject=x", "options that nats does not know: subject"),
        ("nats://localhost/orders#x", "is not a URL"),
        ("redis://localhost/0", "must name a stream"),
        ("redis://localhost/orders?stream=a", "the number of a database"),
        ("redis://localhost/0?stream=a&maxlen=-1", "must have a whole number"),
        ("redis://localhost/0?stream=a&maxlen=" + "9" * 5_000, "must have a whole number"),
        ("redis://localhost/0?stream=a&stream=b", "is not a URL"),
        ("amqp://localhost/", "must have an exchange"),
        ("amqp://localhost/?routing_key=" + "a" * 256, "has more than 255 bytes"),
        ("amqp://a,b/?exchange=a", "must name one host"),
        ("amqp://localhost:port/?exchange=a", "must have hosts with ports"),
        ("amqp://localhost:99999/?exchange=a", "must have hosts with ports"),
        ("kafka://localhost", "must name a topic"),
        ("kafka://localhost/a/b", "is no topic of Kafka"),
        ("nats://[::1/orders", "is not a URL"),
    ],
)
def test_a_url_that_says_nothing_is_refused(to: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=r"^to ") as refused:
        relay(to)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "to",
    [
        "nats://me:hush@localhost/a",
        "nats://hush@localhost/a",
        "redis://:hush@localhost/0?stream=a",
        "kafka://me:hush@localhost/a",
        "amqp://me:hush@localhost/?exchange=a&routing_key=b",
    ],
)
def test_a_password_is_never_shown(to: str) -> None:
    assert "hush" not in relay(to).shown
    with pytest.raises(InvalidInput) as refused:
        relay(to + "{}?x=hush&y#z")
    assert "hush" not in str(refused.value)


def test_other_options_are_refused_at_the_call() -> None:
    with pytest.raises(InvalidInput, match="order"):
        relay("nats://localhost/a", order="some")
    with pytest.raises(InvalidInput, match="group"):
        relay("nats://localhost/a", group="No Name")


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aio_pika", None)
    monkeypatch.delitem(sys.modules, "sqlstreams.relay.rabbitmq", raising=False)

    with pytest.raises(ExtraMissing, match=r"pip install 'sqlstreams\[rabbitmq\]'"):
        relay("amqp://localhost/?exchange=a")


def test_a_template_is_filled_with_what_the_message_has() -> None:
    template = Template("a.{key|none}.{stream}", check=lambda _: None)

    assert template.fill({**NONE, "stream": "s", "key": "k"}) == "a.k.s"
    assert template.fill({**NONE, "stream": "s"}) == "a.none.s"
    assert template.varies
    assert not Template("a.{stream}", check=lambda _: None).varies
    with pytest.raises(PublishRefused, match="has no key"):
        Template("{key}", check=lambda _: None).fill(NONE)


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"prefetch": 0}, {"grace": 1}, {"start": -1}, {"bindings": [""]}]
)
async def test_what_a_run_refuses_registers_nothing(
    client: AsyncClient, orders: AsyncStream[RawPayload], options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        await Relay(client, "orders", "nats://localhost/a").run(signals=False, **options)

    assert await client.list_consumers() == []


async def test_a_group_that_is_not_ordered_does_not_keep_the_order(
    client: AsyncClient, orders: AsyncStream[RawPayload]
) -> None:
    await orders.consumer("relay-nats").register()

    with pytest.raises(InvalidInput, match="registered as parallel"):
        await Relay(client, "orders", "nats://localhost/a").run()
