"""What is asked of the database about where groups stand and shall stand."""

from __future__ import annotations

from datetime import datetime

import msgspec

from sqlstreams import statements
from sqlstreams.acts.group import get_group, read_group
from sqlstreams.acts.stream import find_place, get_stream, read_kept, read_settled_head
from sqlstreams.errors import InvalidInput
from sqlstreams.model import (
    PositionChange,
    Rewind,
    Skip,
)
from sqlstreams.options import Start
from sqlstreams.statements import Act, Family, Kept, ask


def preview_rewind(schema: str, *, stream: str, name: str, to: Start) -> Act[Rewind]:
    """Say what a rewind of a group would do now."""
    info = yield from get_stream(schema, name=stream)
    group = yield from read_group(schema, info, name)
    return (yield from _preview_rewind(Family(schema, info.id), group.id, to))


def rewind_group(schema: str, *, stream: str, name: str, to: Start) -> Act[Rewind]:
    """Have a group go back to a position: what is behind it is taken from its processes and claimed afresh."""
    info = yield from get_stream(schema, name=stream)
    group = yield from read_group(schema, info, name)
    family = Family(schema, info.id)
    yield from ask(statements.lock_position(schema, group_id=group.id))
    yield from ask(statements.lock_leases(schema, group_id=group.id))
    done = yield from _preview_rewind(family, group.id, to)
    if done.position < done.claimed:
        yield from ask(statements.delete_leases_above(schema, group_id=group.id, position=done.position))
        yield from ask(statements.delete_exceptions_above(family, group_id=group.id, position=done.position))
        yield from ask(statements.move_cursor(schema, group_id=group.id, position=done.position))
        yield from ask(
            statements.log_position(
                schema,
                group_id=group.id,
                action="rewound",
                claimed=done.claimed,
                position=done.position,
                messages=done.messages,
                first_id=done.first_id,
                last_id=done.last_id,
                leases=done.leases,
                exceptions=done.exceptions,
            )
        )
    return done


def free_waiting(schema: str, *, stream: str, name: str) -> Act[Family]:
    """Let messages go on that waited for the key of one that a rewind removed; return where the stream's tables are.

    In a transaction behind that of the rewind, so that of two who free a key at least one sees both.
    """
    info = yield from get_stream(schema, name=stream)
    group = yield from read_group(schema, info, name)
    family = Family(schema, info.id)
    yield from free_keys_of(family, group.id)
    return family


def free_keys_of(family: Family, group_id: int) -> Act[None]:
    """Let messages go on that waited for keys which nobody has any more."""
    freed = yield from ask(statements.free_keys(family, group_id=group_id))
    if freed:
        yield from ask(statements.promote(family, group_id=group_id, keys=sorted(each.key for each in freed)))


def preview_skip(schema: str, *, stream: str, name: str, to: Start) -> Act[Skip]:
    """Say what a skip of a group would do now."""
    info = yield from get_stream(schema, name=stream)
    group = yield from read_group(schema, info, name)
    return (yield from _preview_skip(Family(schema, info.id), group.id, to))


def skip_group(schema: str, *, stream: str, name: str, to: Start) -> Act[Skip]:
    """Have a group go on at a position without what lies before it. What was handed out already goes its way."""
    info = yield from get_stream(schema, name=stream)
    group = yield from read_group(schema, info, name)
    yield from ask(statements.lock_position(schema, group_id=group.id))
    done = yield from _preview_skip(Family(schema, info.id), group.id, to)
    if done.position > done.claimed:
        yield from ask(statements.move_cursor(schema, group_id=group.id, position=done.position))
        yield from ask(
            statements.log_position(
                schema,
                group_id=group.id,
                action="skipped",
                claimed=done.claimed,
                position=done.position,
                messages=done.messages,
                first_id=done.first_id,
                last_id=done.last_id,
            )
        )
    return done


def list_positions(schema: str, *, stream: str, name: str, limit: int) -> Act[list[PositionChange]]:
    """Read how a group was moved, the latest move first."""
    group = yield from get_group(schema, stream=stream, name=name)
    return (yield from ask(statements.list_positions(schema, group_id=group.id, limit=limit)))


def _preview_rewind(family: Family, group_id: int, to: Start) -> Act[Rewind]:
    schema = family.schema
    claimed = (yield from ask(statements.get_claimed(schema, group_id=group_id)))[0].id
    place = yield from find_place(family, to)
    kept = yield from read_kept(family)
    _refuse_removed(to, place, kept)
    asked = min(claimed, place)
    taken = yield from ask(statements.list_leases_above(schema, group_id=group_id, position=asked))
    # A range that the position falls into is delivered as a whole, else its other messages would be lost.
    position = min([asked, *(each.resolved for each in taken if each.low <= asked)])
    if position == claimed:
        taken = []
    measured = (yield from ask(statements.measure_messages(family, above=position, through=claimed)))[0]
    counted = statements.count_exceptions_above(family, group_id=group_id, position=position)
    exceptions = (yield from ask(counted))[0]
    return Rewind(
        claimed=claimed,
        position=position,
        kept_from=kept.kept_from,
        leases=len(taken),
        **msgspec.structs.asdict(measured),
        **msgspec.structs.asdict(exceptions),
    )


def _refuse_removed(to: Start, place: int, kept: Kept) -> None:
    # To deliver less than was asked for, and to say so, would be to have somebody find out later what is missing.
    if isinstance(to, datetime):
        removed = kept.expired_before is not None and to < kept.expired_before and place < kept.kept_from
    else:
        removed = isinstance(to, int) and to < kept.kept_from - 1
    if removed:
        raise InvalidInput(
            "to",
            f"lies before the first message that is kept, which is {kept.kept_from}: retention removed older ones. "
            '"beginning" delivers all that is kept',
        )


def _preview_skip(family: Family, group_id: int, to: Start) -> Act[Skip]:
    claimed = (yield from ask(statements.get_claimed(family.schema, group_id=group_id)))[0].id
    asked = yield from find_place(family, to)
    if isinstance(to, int):
        head = (yield from read_settled_head(family)).head
        if asked > max(head, claimed):
            raise InvalidInput("to", f"must not lie ahead of the last message, which is {head}, got {asked}")
    position = max(claimed, asked)
    measured = (yield from ask(statements.measure_messages(family, above=claimed, through=position)))[0]
    return Skip(claimed=claimed, position=position, **msgspec.structs.asdict(measured))
