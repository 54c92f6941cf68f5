"""What the benchmarks share: a database, payloads of 1,000 bytes, interleaved rounds, and a report of medians."""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psycopg
from msgspec import Struct
from psycopg.conninfo import make_conninfo
from psycopg.types.string import ByteaBinaryLoader

import sqlstreams
from sqlstreams import embedded

ResultT = TypeVar("ResultT")

STREAM = "orders"
PAYLOAD_BYTES = 1_000
# Checkpoints come between the rounds, where `settle` asks for them, and not within.
_SERVER_SETTINGS = {"max_wal_size": "8GB", "checkpoint_timeout": "1h"}
_SHOWN_SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
)
_TEXT = "the quick brown fox jumps over the lazy dog, " * 23


# What is produced


class Line(Struct, frozen=True):
    sku: str
    quantity: int
    price: float


class Order(Struct, frozen=True):
    """The payload: a few fields, a few nested ones, and text."""

    number: int
    customer: str
    region: str
    lines: list[Line]
    note: str = ""


def orders(count: int) -> list[Order]:
    """Return that many payloads, each of PAYLOAD_BYTES as JSON."""
    return [_order(number) for number in range(count)]


def _order(number: int) -> Order:
    lines = [Line(sku=f"article-{number + step}", quantity=step + 1, price=9.5 + step) for step in range(4)]
    order = Order(number=number, customer=f"customer {number % 977}", region="eu", lines=lines)
    return msgspec.structs.replace(order, note=_TEXT[: PAYLOAD_BYTES - len(msgspec.json.encode(order))])


def write_copy_file(directory: Path, payloads: Iterable[Order]) -> Path:
    """Write payloads as the server's COPY reads them, where the server's user can read them."""
    path = directory / "orders.copy"
    path.write_bytes(b"".join(msgspec.json.encode(payload) + b"\n" for payload in payloads))
    path.chmod(0o644)
    return path


# Where it is measured


class Arguments(Struct, frozen=True):
    """What a benchmark was started with."""

    tiny: bool
    json: bool
    rounds: int
    database_url: str | None

    def size(self, full: int, *, tiny: int) -> int:
        """Return the full or the tiny number of something."""
        return tiny if self.tiny else full


def arguments(question: str, *, rounds: int) -> Arguments:
    """Read the command line; `question` is what the benchmark answers."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument(
        "--tiny", action="store_true", help="a few seconds, to see that it runs; the numbers mean little"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--rounds", type=int, help=f"how often everything is measured (default {rounds}, tiny 1)")
    parser.add_argument("--database-url", help="measure on this server, as superuser, instead of an embedded one")
    given = parser.parse_args()
    default = 1 if given.tiny else rounds
    return Arguments(tiny=given.tiny, json=given.json, rounds=given.rounds or default, database_url=given.database_url)


class Place(Struct, frozen=True):
    """A database of this benchmark alone, and a directory that the server can read."""

    url: str
    directory: Path

    def execute(self, query: str, parameters: Sequence[Any] | None = None) -> list[Any]:
        """Ask the database, outside of what is measured."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def settle(self) -> None:
        """Write to disk what the last measurement left in memory, so that the next one does not pay for it."""
        self.execute("checkpoint")


@contextmanager
def place(arguments: Arguments, **settings: str) -> Iterator[Place]:
    """Make a database on a server of our own with fsync on, or use the one that was named."""
    with tempfile.TemporaryDirectory(prefix="sqlstreams-benchmark-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        if arguments.database_url is not None:
            yield from _database(arguments.database_url, directory)
        else:
            with embedded.serve(directory / "server", settings=_SERVER_SETTINGS | settings) as server:
                yield from _database(server.url, directory)


def _database(server_url: str, directory: Path) -> Iterator[Place]:
    name = f"sqlstreams_benchmark_{os.getpid()}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"create database {name}".encode())
        try:
            yield Place(make_conninfo(server_url, dbname=name), directory)
        finally:
            admin.execute(f"drop database {name} with (force)".encode())


async def register(client: sqlstreams.AsyncClient, name: str = STREAM, *, partition_rows: int = 100_000_000) -> str:
    """Register a stream and return the name of its log; one partition holds all unless told otherwise."""
    stream = await client.stream(name, Order).register(partition_rows=partition_rows)
    info = await stream.get()
    assert info is not None
    return f"sqlstreams.message_log_{info.id}"


def fill(place: Place, log: str, copy_file: Path, *, count: int, rows_in_file: int) -> None:
    """Append at least `count` messages by COPY, and let the planner know."""
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute(b"select sqlstreams.extend_log(%s, %s)", [int(log.rpartition("_")[2]), count])
        for _ in range(-(-count // rows_in_file)):
            connection.execute(f"copy {log} (payload) from '{copy_file}'".encode())
        connection.execute(f"vacuum (analyze) {log}".encode())
        connection.execute(b"checkpoint")


def raw_json(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Have a connection return json as bytes, without parsing: the least that a reader can do."""
    connection.adapters.register_loader("json", ByteaBinaryLoader)


# How it is measured


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


async def atimed(work: Awaitable[object]) -> float:
    """Return how many seconds `work` takes."""
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def until(done: asyncio.Event, running: asyncio.Task[None]) -> None:
    """Wait for an event that a running consumer sets; raise what ends the consumer before."""
    waiting = asyncio.create_task(done.wait())
    await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if running.done():
        await running


async def end(*running: asyncio.Task[None]) -> None:
    """Cancel consumers and wait until they have given back what they held."""
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def rounds(place: Place, contenders: Mapping[str, Callable[[], float]], *, count: int) -> dict[str, list[float]]:
    """Measure every contender once a round, in turns and each round from another start, so that noise meets all."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(count):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            place.settle()
            samples[name].append(contenders[name]())
    return samples


def run_async(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine to its end in an event loop of its own."""
    return asyncio.run(work)


def in_process(function: Callable[..., ResultT], *args: Any) -> ResultT:
    """Run a function of a benchmark's module in a fresh process, so that only its work is counted there."""
    with processes(1) as pool:
        result: ResultT = pool(function, *args).result()
        return result


@contextmanager
def processes(count: int) -> Iterator[Callable[..., Future[Any]]]:
    """Lend fresh processes: the result submits a function of a benchmark's module with its arguments."""
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool.submit


def percentile(samples: Sequence[float], part: float) -> float:
    """Return the sample below which a part (0 to 1) of them lies."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


# What is told


class Figure(Struct, frozen=True):
    """One line of the report: the median over the rounds and the extremes. `met` is None without a target."""

    name: str
    median: float
    unit: str
    low: float
    high: float
    target: str | None = None
    met: bool | None = None


class Report:
    """The answer to one question; `place` is None where no server is asked."""

    def __init__(self, question: str, arguments: Arguments, place: Place | None) -> None:
        self._question = question
        self._arguments = arguments
        self._place = place
        self._figures: list[Figure] = []
        self._sizes: dict[str, object] = {}

    def sizes(self, **sizes: object) -> None:
        """Tell how much was measured."""
        self._sizes.update(sizes)

    def figure(self, name: str, samples: Sequence[float], unit: str) -> None:
        """Report measurements of one thing."""
        self._add(name, samples, unit, target=None, met=None)

    def at_least(self, name: str, samples: Sequence[float], target: float, *, unit: str = "×") -> None:
        """Report measurements whose median must reach a target."""
        self._add(name, samples, unit, target=f"≥ {target:g}", met=statistics.median(samples) >= target)

    def at_most(self, name: str, samples: Sequence[float], target: float, *, unit: str = "×") -> None:
        """Report measurements whose median must stay within a target."""
        self._add(name, samples, unit, target=f"≤ {target:g}", met=statistics.median(samples) <= target)

    def _add(self, name: str, samples: Sequence[float], unit: str, *, target: str | None, met: bool | None) -> None:
        self._figures.append(
            Figure(name, statistics.median(samples), unit, min(samples), max(samples), target=target, met=met)
        )

    def show(self) -> None:
        """Print the report, for people or as JSON."""
        print(json.dumps(self._as_json(), indent=2) if self._arguments.json else self._as_text())

    def _as_json(self) -> dict[str, object]:
        return {
            "question": self._question,
            "tiny": self._arguments.tiny,
            "rounds": self._arguments.rounds,
            "sizes": self._sizes,
            "figures": [msgspec.structs.asdict(figure) for figure in self._figures],
            "versions": _versions(self._place),
            "settings": _settings(self._place),
        }

    def _as_text(self) -> str:
        width = max(len(figure.name) for figure in self._figures)
        told = [self._question, ""]
        told += [_line(figure, width) for figure in self._figures]
        told += ["", f"median (lowest to highest) of {self._arguments.rounds} interleaved rounds"]
        for facts in filter(None, (self._sizes, _versions(self._place), _settings(self._place))):
            told.append(", ".join(f"{name} {value}" for name, value in facts.items()))
        if self._arguments.tiny:
            told.append("a tiny run: it shows that the benchmark works and little more")
        return "\n".join(told)


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Divide round by round: what a noisy moment does to one contender it mostly does to the other."""
    return [above / below for above, below in zip(over, under, strict=True)]


def _line(figure: Figure, width: int) -> str:
    verdict = "" if figure.met is None else f"  target {figure.target} {'reached' if figure.met else 'MISSED'}"
    spread = f"({_number(figure.low)} to {_number(figure.high)})" if figure.low != figure.high else ""
    return f"  {figure.name:<{width}}  {_number(figure.median):>9} {figure.unit:<12} {spread:<20}{verdict}".rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _versions(place: Place | None) -> dict[str, object]:
    return {
        "sqlstreams": sqlstreams.__version__,
        **({} if place is None else {"PostgreSQL": place.execute("show server_version")[0][0]}),
        "Python": platform.python_version(),
        f"psycopg ({psycopg.pq.__impl__})": psycopg.__version__,
        "msgspec": msgspec.__version__,
        "processors": os.cpu_count(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _settings(place: Place | None) -> dict[str, object]:
    if place is None:
        return {}
    shown = place.execute(
        "select name, current_setting(name) from pg_settings where name = any(%s)", [list(_SHOWN_SETTINGS)]
    )
    return dict(sorted(shown))
