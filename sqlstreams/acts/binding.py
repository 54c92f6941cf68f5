"""What is asked of the database about the bindings of groups: which set is in force, and which ones wait."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlstreams import statements
from sqlstreams.acts.group import find_group, get_group, log_group, register_group
from sqlstreams.errors import NotFound
from sqlstreams.model import GroupBindings, GroupInfo
from sqlstreams.options import GroupOptions, Start
from sqlstreams.routing import like_patterns
from sqlstreams.statements import Act, ask


def get_bindings(schema: str, *, stream: str, name: str) -> Act[GroupBindings]:
    """Read which bindings of a group are in force, who holds them, and which ones wait."""
    group = yield from get_group(schema, stream=stream, name=name)
    return (yield from _read_bindings(schema, group.id))


def declare_bindings(schema: str, *, stream_id: int, group_id: int, bindings: tuple[str, ...]) -> Act[str]:
    """Declare bindings; return "installed", "joined" or "waiting"."""
    if not (yield from _is_other(schema, group_id, bindings)):
        return "joined"
    yield from ask(statements.lock_bindings(schema, group_id=group_id))
    now = yield from _read_bindings(schema, group_id)
    if not now.held_by:
        yield from ask(statements.delete_waiting_bindings(schema, group_id=group_id))
        return (yield from _put_in_force(schema, stream_id, group_id, now, bindings))
    if bindings == now.bindings:
        return "joined"
    if not any(each.bindings == bindings and each.instance_id is None for each in now.waiting):
        yield from ask(statements.delete_waiting_bindings(schema, group_id=group_id))
        yield from ask(statements.insert_waiting_bindings(schema, group_id=group_id, bindings=bindings))
    return "waiting"


def hold_bindings(
    schema: str, *, stream_id: int, group_id: int, instance_id: int, token: UUID, bindings: tuple[str, ...]
) -> Act[None]:
    """Join a group, if it is still there, with the bindings that this process declared."""
    if not (yield from ask(statements.lock_bindings(schema, group_id=group_id))):
        return
    now = yield from _read_bindings(schema, group_id)
    yield from ask(
        statements.hold_bindings(schema, token=token, group_id=group_id, instance_id=instance_id, bindings=bindings)
    )
    if not now.held_by or any(each.bindings == bindings and each.instance_id is None for each in now.waiting):
        # From here on the process itself stands for it.
        yield from ask(statements.delete_waiting_bindings(schema, group_id=group_id))
    if not now.held_by:
        yield from _put_in_force(schema, stream_id, group_id, now, bindings)


def settle_bindings(schema: str, *, stream_id: int, group_id: int) -> Act[None]:
    """Put the bindings in force that were declared last, when nobody holds those in force any more."""
    if not (yield from ask(statements.lock_bindings(schema, group_id=group_id))):
        return
    now = yield from _read_bindings(schema, group_id)
    if now.waiting and not now.held_by:
        newest = now.waiting[0]
        if newest.instance_id is None:
            yield from ask(statements.delete_waiting_bindings(schema, group_id=group_id))
        yield from _put_in_force(schema, stream_id, group_id, now, newest.bindings)


def declare_group(schema: str, *, stream: str, name: str, start: Start, options: GroupOptions) -> Act[str]:
    """Declare a consumer group with its bindings; return what became of these: "installed", "joined" or "waiting"."""
    if (yield from register_group(schema, stream=stream, name=name, start=start, options=options)):
        return "installed"
    family, group_id = yield from find_group(schema, stream, name)
    return (yield from declare_bindings(schema, stream_id=family.stream, group_id=group_id, bindings=options.bindings))


def _is_other(schema: str, group_id: int, bindings: Sequence[str]) -> Act[bool]:
    # Without a lock: the same again writes nothing.
    now = yield from _read_bindings(schema, group_id)
    return tuple(bindings) != now.bindings or (not now.held_by and bool(now.waiting))


def _read_bindings(schema: str, group_id: int) -> Act[GroupBindings]:
    found = yield from ask(statements.get_bindings(schema, group_id=group_id))
    if not found:
        raise NotFound("consumer group", f"with id {group_id}")
    declared = yield from ask(statements.list_declarations(schema, group_id=group_id))
    in_force = tuple(found[0].bindings)
    return GroupBindings(
        bindings=in_force,
        bound_at=found[0].bound_at,
        bound_by=found[0].bound_by,
        held_by=tuple(each for each in declared if each.bindings == in_force and each.instance_id is not None),
        waiting=tuple(each for each in declared if each.bindings != in_force),
    )


def _put_in_force(
    schema: str, stream_id: int, group_id: int, now: GroupBindings, bindings: tuple[str, ...]
) -> Act[str]:
    if bindings == now.bindings:
        return "joined"
    yield from ask(statements.update_bindings(schema, group_id=group_id, bindings=bindings))
    yield from ask(statements.bind_group(schema, group_id=group_id, patterns=like_patterns(bindings)))
    group: GroupInfo = (yield from ask(statements.reread_group(schema, group_id=group_id)))[0]
    yield from log_group(schema, stream_id, group, "changed")
    return "installed"
