"""`sqlstreams relay run`: from the options to a running relay and its last words."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import PIPE

import msgspec

from sqlstreams import AsyncClient, AsyncStream, RawPayload
from tests.cli.command import COMMAND, environment
from tests.relay.brokers import a_place
from tests.support import eventually

Orders = AsyncStream[RawPayload]


async def test_it_publishes_until_a_signal(client: AsyncClient, orders: Orders, database_url: str) -> None:
    await orders.producer().produce_many([RawPayload(b"%d" % n) for n in range(10)])
    async with a_place("nats") as broker:
        variables = {**environment(database_url), "SQLSTREAMS_RELAY_TO": broker.to.replace("//", "//user:secret@")}
        arguments = [COMMAND, "relay", "run", "--stream", "orders", "--group", "out", "--json"]
        process = await asyncio.create_subprocess_exec(*arguments, env=variables, stdout=PIPE, stderr=PIPE)
        try:
            await broker.read(10)

            async def is_done() -> bool:
                return (await orders.consumer("out").status()).lag == 0

            await eventually(is_done)
            process.send_signal(signal.SIGTERM)
            out, err = await asyncio.wait_for(process.communicate(), 30)
        finally:
            if process.returncode is None:
                process.kill()

    assert process.returncode == 0, err
    assert msgspec.json.decode(out) == {"published": 10, "repeated": 0, "refused": 0, "outages": 0}
    assert f"publishing orders to {broker.to} as out" in err.decode()
    assert b"secret" not in err
