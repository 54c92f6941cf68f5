"""Whether the broker can be reached: one task opens the connection again, and every message waits for it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from sqlstreams.errors import BrokerUnavailable, SqlstreamsError
from sqlstreams.relay.publisher import Publisher
from sqlstreams.relay.stats import RelayStats

_log = logging.getLogger("sqlstreams.relay")

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class Gate:
    """Open while the broker takes messages. `term` counts the connections."""

    def __init__(self, publisher: Publisher, *, name: str, stats: RelayStats) -> None:
        self.term = 0
        self.is_closed = asyncio.Event()
        self.is_closed.set()
        self._is_open = asyncio.Event()
        self._publisher = publisher
        self._name = name
        self._stats = stats
        self._pause = 0.0
        self._away_since: float | None = None

    async def keep_open(self) -> None:
        """Connect, and again whenever the connection has failed, until cancelled."""
        while True:
            await self._connect()
            self.term += 1
            self.is_closed.clear()
            self._is_open.set()
            await self.is_closed.wait()

    async def passed(self) -> int:
        """Wait until the broker may be there, and return the term."""
        await self._is_open.wait()
        return self.term

    def worked(self) -> None:
        """Take note that the broker has confirmed a message."""
        self._pause = 0.0
        if self._away_since is not None:
            away = time.monotonic() - self._away_since
            self._away_since = None
            _log.warning("SQL0140 %s takes messages again after %.1f s", self._name, away)

    def failed(self, term: int, error: SqlstreamsError) -> None:
        """Close the gate because of what a message met in `term`; later terms know better."""
        if term == self.term and self._is_open.is_set():
            self._is_open.clear()
            self.is_closed.set()
            self._take_note(error)

    async def _connect(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            self._pause = min(max(_FIRST_PAUSE, self._pause * 2), _LONGEST_PAUSE)
            await self._publisher.close()
            try:
                await self._publisher.open()
            except BrokerUnavailable as error:
                self._take_note(error)
            else:
                return

    def _take_note(self, error: SqlstreamsError) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._stats.outages += 1
            _log.warning("SQL0140 %s does not take messages, which wait until it does: %s", self._name, error)
