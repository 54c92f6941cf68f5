"""Which of the claimed messages are superseded by now: their key has a greater one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

from sqlstreams import statements
from sqlstreams.consume.ranges import ID, KEY, RANK, Head
from sqlstreams.consume.subject import Subject
from sqlstreams.statements import Columns

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
        heads = {row[ID]: self._of_key.setdefault(row[KEY], Head()) for row in ranked}
        for found in await self._subject.database.query_once(
            statements.find_heads(self._subject.family, keys=list({row[KEY] for row in ranked}))
        ):
            self._of_key[found.key].rise(found.schema_version, found.rank, found.id)
        return heads
