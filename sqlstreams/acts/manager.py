"""What is asked of the database about the manager."""

from __future__ import annotations

from sqlstreams import statements
from sqlstreams.errors import InvalidInput
from sqlstreams.model import ManagerStatus
from sqlstreams.statements import Act, ask


def list_manager(schema: str) -> Act[ManagerStatus]:
    """Read who runs the manager, and what it does."""
    decided = (yield from ask(statements.get_manager(schema)))[0]
    instances = yield from ask(statements.list_manager_instances(schema))
    duties = yield from ask(statements.list_duties(schema))
    return ManagerStatus(
        target_instances=decided.target_instances,
        suspended=decided.suspended,
        term=decided.term,
        instances=tuple(instances),
        duties=tuple(duties),
    )


def suspend_manager(schema: str, *, duty: str | None, suspended: bool, channel: str) -> Act[None]:
    """Stop or resume the manager, or one of its duties."""
    if duty is None:
        yield from ask(statements.set_manager_suspended(schema, suspended=suspended, channel=channel))
    elif not (yield from ask(statements.set_duty_suspended(schema, name=duty, suspended=suspended, channel=channel))):
        known = ", ".join(each.name for each in (yield from ask(statements.list_duties(schema))))
        raise InvalidInput("duty", f"must be one of {known}, got {duty!r}")
