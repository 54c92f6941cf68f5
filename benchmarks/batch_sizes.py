"""Measure from which size of a batch a COPY by the client would pay, which returns no ids, beside produce_many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from _measure import (
    STREAM,
    Arguments,
    Order,
    Place,
    Report,
    arguments,
    orders,
    place,
    ratios,
    register,
    rounds,
    run_async,
    timed,
)
from psycopg import connect

from sqlstreams import AsyncClient, Client

_SIZES = (1, 10, 100, 1_000, 5_000)
_ENCODE = msgspec.json.Encoder().encode


def main() -> None:
    given = arguments(str(__doc__), rounds=5)
    with place(given) as where:
        report = Report(str(__doc__), given, where)
        measure(report, given, where)
        report.show()


def measure(report: Report, given: Arguments, where: Place) -> None:
    log = run_async(_register(where))
    payloads = orders(given.size(20_000, tiny=500))
    most = given.size(1_000, tiny=20)
    report.sizes(messages=len(payloads), most_batches=most, payload="1000 bytes of JSON")
    for size in _SIZES:
        batches = list(_cut(payloads, size))[:most]
        count = sum(map(len, batches))
        contenders: dict[str, Callable[[], float]] = {
            f"produce_many, batches of {size:,}": lambda batches=batches: _produce(where, batches),  # type: ignore[misc]
            f"COPY by the client, batches of {size:,}": lambda batches=batches: _copy(where, log, batches),  # type: ignore[misc]
        }
        found = rounds(where, contenders, count=given.rounds)
        for name, seconds in found.items():
            report.figure(name, [count / each for each in seconds], "messages/s")
        produced, copied = found.values()
        report.figure(f"COPY ÷ produce_many, batches of {size:,}", ratios(produced, copied), "×")


async def _register(where: Place) -> str:
    async with AsyncClient(where.url) as client:
        return await register(client)


def _cut(payloads: Sequence[Order], size: int) -> Iterator[Sequence[Order]]:
    for start in range(0, len(payloads), size):
        yield payloads[start : start + size]


def _produce(where: Place, batches: Sequence[Sequence[Order]]) -> float:
    with Client(where.url) as client:
        producer = client.stream(STREAM, Order).producer().register()
        producer.produce_many(orders(10))
        return timed(lambda: [producer.produce_many(batch) for batch in batches])


def _copy(where: Place, log: str, batches: Sequence[Sequence[Order]]) -> float:
    statement = f"copy {log} (payload) from stdin (format binary)".encode()

    def copy_all() -> None:
        for batch in batches:
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                for payload in batch:
                    copy.write_row((_ENCODE(payload),))  # bytes are sent as they are, and json is its own text

    with connect(where.url, autocommit=True) as connection:
        return timed(copy_all)


if __name__ == "__main__":
    main()
