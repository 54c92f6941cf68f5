"""Measure the processor time that the next slot of a schedule takes: often and rarely, and where a clock is changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice

from _measure import Arguments, Report, arguments

from sqlstreams import cron

_AFTER = datetime(2026, 1, 15, 12, 3, tzinfo=UTC)
# In the first pass of the hour that New York repeats, and just before the one that it skips.
_REPEATED = datetime(2026, 11, 1, 5, 40, tzinfo=UTC)
_SKIPPED = datetime(2026, 3, 8, 6, 50, tzinfo=UTC)

_OFTEN = {
    "every minute": ("* * * * *", _AFTER),
    "every 15 minutes": ("*/15 * * * *", _AFTER),
    "every 90 seconds": ("@every 90s", _AFTER),
    "daily": ("0 2 * * *", _AFTER),
    "on weekdays": ("0 9 * * 1-5", _AFTER),
    "monthly": ("0 2 1 * *", _AFTER),
    "yearly": ("59 23 31 12 *", _AFTER),
    "repeated hour, elapsed": ("*/15 * * * *", _REPEATED),
    "repeated hour, fixed": ("30 1 * * *", _REPEATED),
    "skipped hour, elapsed": ("30 */2 * * *", _SKIPPED),
    "skipped hour, fixed": ("30 2 * * *", _SKIPPED),
}
_RARELY = {
    "29 February": ("0 0 29 2 *", _AFTER),
    "29 February or a Monday": ("0 0 29 2 1", _AFTER),
    "a fifth Monday of February": ("0 0 * 2 1#5", _AFTER),
}


def main() -> None:
    given = arguments(str(__doc__), rounds=5)
    report = Report(str(__doc__), given, None)
    _measure(report, given)
    report.show()


def _measure(report: Report, given: Arguments) -> None:
    calls = given.size(500, tiny=50)
    report.sizes(calls=calls, zone="America/New_York", tzdata=cron.zone_data_version())
    for name, (expression, after) in _OFTEN.items():
        report.at_most(name, _per_call(expression, after, calls, given.rounds), 200, unit="µs")
    for name, (expression, after) in _RARELY.items():
        report.figure(name, _per_call(expression, after, calls, given.rounds), "µs")
    report.figure("new expressions, each parsed", [_parsing(calls) for _ in range(given.rounds)], "µs")
    report.figure("a slot of a long span", [_spanning(calls) for _ in range(given.rounds)], "µs")


def _per_call(expression: str, after: datetime, calls: int, rounds: int) -> list[float]:
    cron.next_after(expression, "America/New_York", after)

    def work() -> None:
        for _ in range(calls):
            cron.next_after(expression, "America/New_York", after)

    return [_processor_time(work) / calls * 1e6 for _ in range(rounds)]


def _parsing(calls: int) -> float:
    """Parse and ask expressions that were never seen before; 60 × 24 × 28 differ, far more than are kept ready."""
    expressions = [f"{n % 60} {n // 60 % 24} {n // 1440 % 28 + 1} * *" for n in range(calls)]

    def work() -> None:
        for expression in expressions:
            cron.next_after(expression, "Europe/Berlin", _AFTER)

    return _processor_time(work) / calls * 1e6


def _spanning(calls: int) -> float:
    end = datetime(2099, 1, 1, tzinfo=UTC)
    return (
        _processor_time(lambda: list(islice(cron.between("*/15 * * * *", "Europe/Berlin", _AFTER, end), calls)))
        / calls
        * 1e6
    )


def _processor_time(work: Callable[[], object]) -> float:
    """Return the seconds that this process computed for `work`; nothing here waits for anything."""
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
