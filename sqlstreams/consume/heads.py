"""Which of the claimed messages are superseded by now: their key has a greater one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

from psycopg import errors as pg

from sqlstreams import statements
from sqlstreams.consume.ranges import ID, KEY, RANK, SCHEMA_VERSION, Head, is_for_later
from sqlstreams.consume.subject import Subject
from sqlstreams.statements import Columns

_log = logging.getLogger("sqlstreams.consume")

_NONE: Final[Mapping[int, Head]] = {}


class Heads:
    """Asks for the heads of keys, and only where claimed messages take part in compaction.

    Only committed heads are seen, so nothing is superseded by a message that is rolled back. What work of this process
    holds of a key shares one `Head`: a later claim also tells of earlier ones that no handler has begun.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._of_key: WeakValueDictionary[str, Head] = WeakValueDictionary()

    async def of(self, rows: Sequence[Columns]) -> Mapping[int, Head]:
        """Return the heads of those messages that take part in compaction, by the ids of the messages."""
        ranked = [row for row in rows if row[RANK] is not None]
        if not ranked:
            return _NONE
        if due := [row for row in ranked if is_for_later(row)]:
            await self._raise(due)
        heads = {row[ID]: self._of_key.setdefault(row[KEY], Head()) for row in ranked}
        for found in await self._subject.database.query_once(
            statements.find_heads(self._subject.family, keys=list({row[KEY] for row in ranked}))
        ):
            self._of_key[found.key].rise(found.schema_version, found.rank, found.id)
        return heads

    async def _raise(self, due: Sequence[Columns]) -> None:
        """Have messages that were produced for later count, now that their time has come.

        When a transaction that produces one of the keys stays open, its message counts instead of ours: what this
        process delivers must not wait for that.
        """
        for version in {row[SCHEMA_VERSION] for row in due}:
            greatest: dict[str, tuple[int, int]] = {}
            for row in due:
                if row[SCHEMA_VERSION] == version:
                    greatest[row[KEY]] = max(greatest.get(row[KEY], (row[RANK], 0)), (row[RANK], row[ID]))
            ranks, ids = zip(*greatest.values(), strict=True)
            try:
                await self._subject.database.query_together(
                    statements.bound_waiting(self._subject.family.schema),
                    statements.move_heads(
                        self._subject.family,
                        schema_version=version,
                        keys=list(greatest),
                        ranks=list(ranks),
                        ids=list(ids),
                    ),
                )
            except pg.LockNotAvailable:
                _log.info("the heads of %d keys of %s were not moved: they are locked", len(greatest), self._subject)
