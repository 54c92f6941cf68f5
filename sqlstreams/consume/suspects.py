"""Messages that may be the ones that kill processes: the database knows of each before it begins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg

from sqlstreams import statements
from sqlstreams.consume.ranges import ID, Range, Work
from sqlstreams.consume.subject import Subject
from sqlstreams.errors import DatabaseUnavailable
from sqlstreams.statements import Statement

_log = logging.getLogger("sqlstreams.consume")

_PAUSE = 0.5


class Suspects:
    """Notes which message runs, so that when the process dies, this one is charged with it and no other."""

    def __init__(self, subject: Subject, *, lost: Callable[[UUID], None]) -> None:
        self._subject = subject
        self._lost = lost

    async def begin(self, work: Work, index: int) -> bool:
        """Note that a message begins, however long that takes; say whether it is still ours."""
        message_id = work.rows[index][ID]
        if isinstance(work, Range):
            return await self._note(self._running(work, message_id), work)
        return await self._note(
            statements.start_exception(
                self._subject.family, group_id=self._subject.group_id, token=work.token, message_id=message_id
            ),
            work,
        )

    async def end(self, work: Work) -> None:
        """Note that nothing of a range runs any more; a row's end is recorded with its outcome."""
        if isinstance(work, Range):
            await self._note(self._running(work, None), work)

    def _running(self, work: Range, message_id: int | None) -> Statement[Any]:
        return statements.note_running(
            self._subject.family.schema,
            instance_id=self._subject.presence.instance_id,
            token=work.token,
            message_id=message_id,
            resolved=work.progress()[0],
        )

    async def _note(self, statement: Statement[Any], work: Work) -> bool:
        while not work.lost:
            try:
                noted = await self._subject.database.query_once(statement)
            except (psycopg.Error, DatabaseUnavailable) as error:
                _log.warning("SQL0105 noting what runs for %s failed: %s", self._subject, error)
                await asyncio.sleep(_PAUSE)
                continue
            if not noted:
                self._lost(work.token)
            return bool(noted)
        return False
