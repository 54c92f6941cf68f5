"""Turning stored messages into payloads: of a handler's own version, and of those it has converters for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sqlstreams.codec import Codec
from sqlstreams.consume.ranges import PAYLOAD, SCHEMA_VERSION
from sqlstreams.errors import InvalidInput
from sqlstreams.statements import Columns

_log = logging.getLogger("sqlstreams.consume")

Upcast = Mapping[int, Callable[[Any], object]]
"""By schema version: what makes a payload of ours, or what is stored as one, of the decoded JSON of an old one."""

_HIGHEST: Final = 2**31 - 1


class Unreadable(Exception):
    """A message is of a version that this process cannot read; others may."""


class Reader:
    """Reads messages of one payload type's version, and older ones through their converters."""

    def __init__(self, codec: Codec[Any], upcast: Upcast, *, group: str) -> None:
        self._codec = codec
        self._decode = codec.decode
        self._version = codec.schema_version
        self._upcast = upcast
        self._reads_all = codec.reads_every_version
        self._group = group
        self._unreadable: set[int] = set()

    def read(self, row: Columns) -> Any:
        """Return the payload of a message; raise `Unreadable` when it is of a version that is not read here."""
        if row[SCHEMA_VERSION] == self._version:
            return self._decode(row[PAYLOAD])
        return self._read_other(row[SCHEMA_VERSION], row[PAYLOAD])

    def among(self, versions: Iterable[int]) -> list[int]:
        """Return those of some versions that are read here."""
        return [each for each in versions if self._reads_all or each == self._version or each in self._upcast]

    def _read_other(self, version: int, stored: bytes) -> Any:
        if (convert := self._upcast.get(version)) is not None:
            return self._codec.convert(stored, convert)
        if self._reads_all:
            return self._decode(stored)
        if version not in self._unreadable:
            self._unreadable.add(version)
            _log.warning("SQL0108 %s meets schema version %d, which is not read here: it waits", self._group, version)
        raise Unreadable


def check_upcast(codec: Codec[Any], upcast: object) -> Upcast:
    """Return `upcast` when it maps versions other than that of the payload type to functions."""
    if upcast is None:
        return {}
    if not isinstance(upcast, Mapping):
        raise InvalidInput("upcast", f"must map schema versions to functions, got {type(upcast).__name__}")
    for version, convert in upcast.items():
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= _HIGHEST:
            raise InvalidInput("upcast", f"must have schema versions of 1 or more as keys, got {version!r}")
        if version == codec.schema_version:
            raise InvalidInput("upcast", f"must not convert version {version}, which is that of the payload type")
        if not callable(convert):
            raise InvalidInput("upcast", f"must map version {version} to a function, got {type(convert).__name__}")
    return dict(upcast)
