"""Reading a file or a pipe line by line, and knowing when nothing more has come yet."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from sqlstreams_cli.failing import Failed

_CHUNK = 262_144
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOMENT = 0.05


class Line(Struct, frozen=True):
    """A line that is not blank, with its number in the file."""

    number: int
    text: bytes


class LineTooLong(Exception):
    """A line is longer than what may be read into memory."""

    def __init__(self, number: int) -> None:
        super().__init__(f"line {number} is too long")
        self.number = number


@contextmanager
def open_lines(path: Path | None) -> Iterator[BinaryIO]:
    """Open a file, or stdin for None and "-"."""
    if path is not None and str(path) != "-":
        with path.open("rb", buffering=0) as source:
            yield source
        return
    if sys.stdin is None:
        raise Failed("there is no stdin to read from", fix="give --file PATH")
    yield sys.stdin.buffer


def read_batches(source: BinaryIO, *, rows: int, size: int, longest: int, skip: int) -> Iterator[list[Line]]:
    """Yield lines as batches of at most `rows` lines and about `size` bytes; less when nothing more has come yet.

    Raises `LineTooLong` for a line over `longest` bytes.
    """
    batch: list[Line] = []
    weight = 0
    for line in _read_lines(source, longest=longest, skip=skip):
        if line is not None:
            batch.append(line)
            weight += len(line.text)
        if batch and (line is None or len(batch) == rows or weight >= size):
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _read_lines(source: BinaryIO, *, longest: int, skip: int) -> Iterator[Line | None]:
    number = 0
    parts: list[bytes] = []
    for chunk in _read_chunks(source):
        if chunk is None:
            yield None
            continue
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for other in others:
            number += 1
            yield from _line(number, b"".join(parts), skip=skip)
            parts = [other]
        if sum(map(len, parts)) > longest:
            raise LineTooLong(number + 1)
    yield from _line(number + 1, b"".join(parts), skip=skip)


def _line(number: int, text: bytes, *, skip: int) -> Iterator[Line]:
    if number == 1:
        text = text.removeprefix(_BYTE_ORDER_MARK)
    if number > skip and (text := text.strip()):
        yield Line(number, text)


def _read_chunks(source: BinaryIO) -> Iterator[bytes | None]:
    """Yield what can be read, and None when nothing has come for a moment."""
    descriptor = source.fileno()
    while True:
        if not select.select([descriptor], [], [], _MOMENT)[0]:
            yield None
            select.select([descriptor], [], [])
        chunk = os.read(descriptor, _CHUNK)
        if not chunk:
            return
        yield chunk
