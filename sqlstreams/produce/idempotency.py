"""Messages with idempotency keys on their way into a log: of each key only the first message is appended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

from sqlstreams.errors import DatabaseUnavailable, IdempotencyConflict
from sqlstreams.model import Receipt
from sqlstreams.produce.batch import Appended, Batch, Encoded, append_messages
from sqlstreams.statements import (
    Act,
    Family,
    KnownKey,
    Statement,
    ask,
    find_idempotency_keys,
    record_idempotent_messages,
    renew_idempotency_keys,
    take_idempotency_keys,
)

_LOOKS: Final = 10
_FIELD: Final = "idempotency_key"


class KeyedBatch:
    """Messages of which some have idempotency keys, as what is asked to append those that are the first of theirs.

    The keys are taken before the log gives out any id, so that a repeated message costs none. A conflict refuses the
    whole batch and says which message it was; with `together=False` the messages come from callers who know nothing of
    each other, and it is the answer to the one.
    """

    # The keys that were taken before a conflict was found must go when the caller's transaction goes on.
    needs_savepoint = True

    def __init__(self, family: Family, messages: Sequence[Encoded], *, schema_version: int, together: bool) -> None:
        self.size = len(messages)
        self._family = family
        self._messages = messages
        self._schema_version = schema_version
        self._is_one = together and len(messages) == 1
        self._together = together
        self._first: dict[str, int] = {}
        for position, message in enumerate(messages):
            if message.idempotency_key is not None:
                self._first.setdefault(message.idempotency_key, position)
        self._prints = [None if each.idempotency_key is None else fingerprint(each.payload) for each in messages]
        self._fingerprints = {key: found for key, at in self._first.items() if (found := self._prints[at]) is not None}
        if together:
            self._refuse_other_payloads()

    def __iter__(self) -> Iterator[Statement[str]]:
        keys = list(self._first)
        fingerprints = [self._fingerprints[key] for key in keys]
        yield take_idempotency_keys(self._family, keys=keys, fingerprints=fingerprints)

    def finish(self, taken: list[str]) -> Act[Appended]:
        """Ask the rest, once it is known which keys are ours: append what is the first of its key, and record it."""
        ours = set(taken)
        known, renewed = yield from self._look_up([key for key in self._first if key not in ours])
        ours.update(renewed)
        if self._together:
            self._refuse_known(known)
        fresh = [position for position, message in enumerate(self._messages) if self._is_fresh(position, message, ours)]
        ids = yield from self._append([self._messages[position] for position in fresh])
        id_at = dict(zip(fresh, ids, strict=True))
        first_ids = {key: id_at[self._first[key]] for key in ours}
        if ours:
            yield from ask(record_idempotent_messages(self._family, keys=list(first_ids), ids=list(first_ids.values())))
        answers = [self._answer(position, id_at, first_ids, known) for position in range(self.size)]
        return Appended(answers, ids)

    def _refuse_other_payloads(self) -> None:
        for position, message in enumerate(self._messages):
            key = message.idempotency_key
            if key is not None and self._prints[position] != self._fingerprints[key]:
                problem = f"{key!r} is that of messages[{self._first[key]}], which has another payload"
                raise IdempotencyConflict(self._field(position), problem, message_id=None)

    def _refuse_known(self, known: dict[str, KnownKey]) -> None:
        for key, position in self._first.items():
            if key in known and known[key].fingerprint != self._fingerprints[key]:
                raise self._conflict(position, key, known[key].message_id)

    def _look_up(self, keys: list[str]) -> Act[tuple[dict[str, KnownKey], list[str]]]:
        # What is seen may expire or be swept away before it is taken, and be taken by another then: seldom even once.
        known: dict[str, KnownKey] = {}
        renewed: list[str] = []
        for _ in range(_LOOKS):
            if not keys:
                return known, renewed
            found = yield from ask(find_idempotency_keys(self._family, keys=keys))
            known.update({each.key: each for each in found if not each.is_expired})
            left = [key for key in keys if key not in known]
            if left:
                fingerprints = [self._fingerprints[key] for key in left]
                renewed += yield from ask(renew_idempotency_keys(self._family, keys=left, fingerprints=fingerprints))
            keys = [key for key in left if key not in renewed]
        raise DatabaseUnavailable(f"the idempotency key {keys[0]!r} changed hands {_LOOKS} times; nothing was written")

    def _is_fresh(self, position: int, message: Encoded, ours: set[str]) -> bool:
        key = message.idempotency_key
        return key is None or (key in ours and self._first[key] == position)

    def _append(self, messages: Sequence[Encoded]) -> Act[list[int]]:
        batch = Batch(self._family, messages, size=len(messages), schema_version=self._schema_version, eager=True)
        return (yield from append_messages(batch)).ids

    def _answer(
        self, position: int, id_at: dict[int, int], first_ids: dict[str, int], known: dict[str, KnownKey]
    ) -> Receipt | IdempotencyConflict:
        if position in id_at:
            return Receipt(id_at[position])
        key = self._messages[position].idempotency_key
        assert key is not None
        seen, first_id = (
            (known[key].fingerprint, known[key].message_id)
            if key in known
            else (self._fingerprints[key], first_ids[key])
        )
        if self._prints[position] != seen:
            return self._conflict(position, key, first_id)
        return Receipt(first_id, duplicate=True)

    def _conflict(self, position: int, key: str, message_id: int) -> IdempotencyConflict:
        problem = f"{key!r} is that of message {message_id}, which has another payload"
        return IdempotencyConflict(self._field(position), problem, message_id=message_id)

    def _field(self, position: int) -> str:
        return _FIELD if self._is_one or not self._together else f"messages[{position}].{_FIELD}"


def fingerprint(payload: bytes) -> bytes:
    """Return what tells payloads of one idempotency key apart: the SHA-256 of their JSON as it is stored."""
    return sha256(payload).digest()
