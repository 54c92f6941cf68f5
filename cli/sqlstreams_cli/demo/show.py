"""How the demo looks: a live table on a terminal, plain lines elsewhere, and the report at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table

from sqlstreams_cli.connect import talk
from sqlstreams_cli.demo.handlers import Verdict
from sqlstreams_cli.demo.play import Play
from sqlstreams_cli.demo.report import Findings, Rank, Report, per_second

_LINE_EVERY = 1.0
_WIDTH = 120
_MOST_NAMED = 2

Show = Callable[[Play], None]


@contextmanager
def watching() -> Iterator[Show]:
    """Give a function that shows how far a run is on stderr: at once on a terminal, else once a second."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines().show
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda play: live.update(_indented(progress_table(play)), refresh=True)


class _Lines:
    """Progress for logs and pipes."""

    def __init__(self) -> None:
        self._due = 0.0

    def show(self, play: Play) -> None:
        if play.elapsed >= self._due:
            self._due = play.elapsed + _LINE_EVERY
            talk(progress_line(play))


def progress_line(play: Play) -> str:
    """Return one line on how far a run is."""
    groups = ", ".join(f"{group.name} {group.consumer.stats.handled:,}" for group in play.groups)
    return f"{play.elapsed:.1f} s: produced {len(play.produced):,} of {len(play.changes):,}; handled by {groups}"


def progress_table(play: Play) -> Table:
    """Return the table that is shown while a run lasts."""
    table = _table("", "", "messages", "lag", "retried", "a second")
    total, elapsed = len(play.changes), play.elapsed
    produced = len(play.produced)
    rate = per_second(produced, play.produced_after or elapsed)
    table.add_row("produced", _bar(produced, total), f"{produced:,}", "", "", f"{rate:,}")
    for group in play.groups:
        tally = group.tally(elapsed)
        lag = max(0, produced - tally.handled)
        table.add_row(
            tally.name, _bar(tally.handled, total), f"{tally.handled:,}", f"{lag:7,}", f"{tally.retried:,}",
            f"{tally.per_second:,}",
        )  # fmt: skip
    return table


def print_report(report: Report) -> None:
    """Write everything that a finished run has to say to a person."""
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False, markup=False)
    console.print()
    console.print(_summary(report), style="bold", soft_wrap=True)
    console.print()
    console.print(_indented(_totals(report)))
    _print_heading(console, "What per-zone counted")
    console.print(_indented(_results(report.findings)))
    _print_heading(console, "What audit found")
    style = "green" if report.audit_passed else "bold red"
    console.print(f"  {verdict_text(report.audit)}", style=style, soft_wrap=True)
    _print_heading(console, "Try next")
    for command in report.next_commands:
        console.print(f"  {command}", soft_wrap=True)
    console.print()


def _print_heading(console: Console, text: str) -> None:
    console.print()
    console.print(text, style="bold")


def verdict_text(audit: Verdict) -> str:
    """Return the audit's verdict as a sentence, each part of it computed."""
    parts = [
        f"{audit.seen:,} of {audit.produced:,} seen",
        "nothing lost" if audit.lost == 0 else f"{audit.lost:,} lost",
        "nothing twice" if audit.twice == 0 else f"{audit.twice:,} delivered more than once",
        "each zone's changes in order" if audit.breaks == 0 else f"{audit.breaks:,} out of order",
    ]
    if audit.foreign:
        parts.append(f"{audit.foreign:,} that this run did not produce")
    return ", ".join(parts)


def interrupted_text(play: Play) -> str:
    """Return what an interrupted run has done."""
    if not play.groups:
        return "interrupted before anything was produced"
    return f"interrupted at {progress_line(play)}"


def _summary(report: Report) -> str:
    return (
        f"{report.produced:,} changes of time zones, delivered to {len(report.groups)} groups while they were "
        f"produced, in {report.seconds:.1f} s"
    )


def _totals(report: Report) -> Table:
    table = _table("", "messages", "failed", "retried", "dead", "seconds", "a second")
    table.add_column(style="dim")
    table.add_row(
        "produced", f"{report.produced:,}", "", "", "", f"{report.produce_seconds:.1f}",
        f"{report.produced_per_second:,}",
    )  # fmt: skip
    for tally in report.groups:
        table.add_row(
            tally.name, f"{tally.handled:,}", f"{tally.failed:,}", f"{tally.retried:,}", f"{tally.dead:,}",
            f"{tally.seconds:.1f}", f"{tally.per_second:,}", tally.purpose,
        )  # fmt: skip
    return table


def _results(findings: Findings) -> Table:
    table = Table.grid(padding=(0, 2))
    for number, rank in enumerate(findings.most_changes):
        table.add_row("most changes" if number == 0 else "", f"{rank.changes:,}", _names(rank))
    years = " and ".join(map(str, findings.busiest_years))
    table.add_row("busiest year", f"{findings.busiest_year_changes:,}", years)
    if findings.last_whole_day:
        last = f"whole days skipped or repeated, last by {findings.last_whole_day}"
        table.add_row("date line", f"{findings.whole_days:,}", last)
    table.columns[0].style = "dim"
    table.columns[1].justify = "right"
    return table


def _names(rank: Rank) -> str:
    named, more = rank.zones[:_MOST_NAMED], len(rank.zones) - _MOST_NAMED
    return ", ".join(named) + (f" and {more:,} more" if more > 0 else "")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True)
    for each in others:
        table.add_column(each, justify="right", no_wrap=True)
    return table


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=done, width=24, finished_style="green", complete_style="cyan")


def _indented(what: RenderableType) -> Padding:
    return Padding(what, (0, 0, 0, 2), expand=False)
