"""The values that travel between the library and its users."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from msgspec import Struct

from sqlstreams.options import DeliveryLimits

PayloadT = TypeVar("PayloadT")


class RawPayload(bytes):
    """A payload as the stored JSON bytes: for operators and tools that know no payload type."""

    __slots__ = ()


class Message(Struct, Generic[PayloadT], frozen=True):
    """One message for `produce_many`: a payload with options of its own.

    `key` names what the message is about, `routing_key` lets groups choose; each is text of 1 to 512 bytes.
    `headers` travel beside the payload, for traces and the like. `concurrency` ("parallel", "exclusive" or "ordered")
    overrides what the groups say of messages with the same key. With a `compaction_rank` the message takes part in
    compaction: of a key the message with the greatest schema version, then rank, then id counts, and those before it
    that no handler has begun are not delivered any more. Of messages with the same `idempotency_key`, text of 1 to 512
    bytes, only the first is appended (see `Producer.produce`). `deliver_at`, an aware datetime, or `delay` keeps the
    message from being delivered before then, by the server's clock; until then it supersedes nothing. The other options
    override what the groups say of how long a delivery may take, and of how often and when the message comes again. See
    `AsyncConsumer.register`.
    """

    payload: PayloadT
    key: str | None = None
    routing_key: str | None = None
    headers: Mapping[str, str] | None = None
    concurrency: str | None = None
    compaction_rank: int | None = None
    deliver_at: datetime | None = None
    delay: timedelta | None = None
    idempotency_key: str | None = None
    timeout: timedelta | None = None
    max_retries: int | None = None
    max_delays: int | None = None
    retry_base: timedelta | None = None
    retry_exponent: float | None = None
    retry_cap: timedelta | None = None


class Receipt(Struct, frozen=True):
    """What a produce returns: the id of the message in the log.

    A `duplicate` was not appended, since its idempotency key is that of an earlier message: the id is that one's.
    """

    id: int
    duplicate: bool = False


class Meta(Struct, frozen=True):
    """What is known about the message that a handler is working on, beside its payload.

    `failures` counts earlier deliveries to this group that ended in an exception, `delays` those that raised `Delay`;
    `attempt` is 1 for the first delivery. `timeout`, `max_retries` and `max_delays` are what holds for this message, of
    all that it, its producer and the group say. `scheduled_at` is the slot of the schedule that produced
    it, or the deadline of the row that it is about.
    """

    id: int
    stream: str
    group: str
    key: str | None
    routing_key: str | None
    headers: Mapping[str, str]
    schema_version: int
    created_at: datetime
    scheduled_at: datetime | None
    failures: int
    delays: int
    timeout: timedelta | None
    max_retries: int
    max_delays: int | None

    @property
    def attempt(self) -> int:
        """Which delivery this is, counted from 1."""
        return self.failures + self.delays + 1


class StreamInfo(Struct, frozen=True):
    """A stream as it is registered."""

    id: int
    name: str
    max_payload: int
    partition_rows: int
    retention: timedelta | None
    keep_unread: bool
    compact_after: timedelta | None
    idempotency_ttl: timedelta
    created_at: datetime
    updated_at: datetime


class StreamStatus(Struct, frozen=True):
    """A stream and what is in it: `head` is the last visible id, `partitions` those of its log.

    `size` is in bytes and counts the log with its index. `kept_from` is the first id that is kept, and `oldest_at` when
    the first message from there on was produced; of an empty log the head is the id before it. `held_back_by` says
    which group keeps messages that are older than the stream's retention.
    """

    name: str
    id: int
    head: int
    last_at: datetime | None
    partitions: int
    size: int
    groups: int
    kept_from: int
    oldest_at: datetime | None
    held_back_by: str | None


class LostMessages(Struct, frozen=True):
    """Messages that retention removed before a group had done them: how many, the first and the last."""

    group: str
    messages: int
    first_id: int
    last_id: int


class Expiry(Struct, frozen=True):
    """What retention removes from a stream: everything below `kept_from`.

    `partitions` of the log are dropped whole, `messages` deleted from the one that is still being written. The
    exception rows and the history of what is removed go with it, dead letters too. `lost` are messages that groups had
    not done, where the stream does not keep those. `held_back_by` says what keeps messages that are old enough to go.
    """

    kept_from: int
    partitions: int = 0
    messages: int = 0
    exceptions: int = 0
    deliveries: int = 0
    lost: tuple[LostMessages, ...] = ()
    held_back_by: tuple[str, ...] = ()

    def behind(self, earlier: Expiry) -> Expiry:
        """Return what this batch and the earlier ones are together."""
        return Expiry(
            kept_from=self.kept_from,
            partitions=earlier.partitions + self.partitions,
            messages=earlier.messages + self.messages,
            exceptions=earlier.exceptions + self.exceptions,
            deliveries=earlier.deliveries + self.deliveries,
            lost=earlier.lost + self.lost,
            held_back_by=self.held_back_by,
        )


class GroupInfo(Struct, frozen=True):
    """A consumer group as it is registered. Without `bindings` it takes every message."""

    id: int
    stream: str
    name: str
    timeout: timedelta | None
    max_retries: int
    max_delays: int | None
    retry_base: timedelta
    retry_exponent: float
    retry_cap: timedelta
    concurrency: str
    limits: DeliveryLimits

    delivery_log: str
    start_at: str
    bindings: tuple[str, ...]
    created_at: datetime
    updated_at: datetime


class BindingDeclaration(Struct, frozen=True):
    """A set of bindings that a living process of the group declared, or (`instance_id` None) that nobody consumes by.

    `hostname` and `pid` are the process, `declared_by` the database role.
    """

    bindings: tuple[str, ...]
    instance_id: int | None
    hostname: str | None
    pid: int | None
    declared_by: str
    declared_at: datetime


class GroupBindings(Struct, frozen=True):
    """The bindings of a group that are in force since `bound_at`, declared by the role `bound_by`.

    `held_by` are the living processes that declared the same, `waiting` the declarations of other sets, the newest
    first: that is put in force when nobody holds the others any more.
    """

    bindings: tuple[str, ...]
    bound_at: datetime
    bound_by: str
    held_by: tuple[BindingDeclaration, ...]
    waiting: tuple[BindingDeclaration, ...]


class RoutingKeyUse(Struct, frozen=True):
    """A routing key among messages that were looked at (None: they have none), and whether the bindings match it."""

    routing_key: str | None
    messages: int
    last_id: int
    matches: bool


class BindingPreview(Struct, frozen=True):
    """What bindings would take of the last messages of a stream: of `looked_at` messages, `matching`."""

    looked_at: int
    matching: int
    routing_keys: tuple[RoutingKeyUse, ...]


class Holder(Struct, frozen=True):
    """An open transaction that took ids of a stream, or still may: claims cannot pass the ids it has not committed.

    `pid` is None for a prepared transaction; `transaction` is then its transaction id, as in pg_prepared_xacts.
    `age` is None where the role may not see other sessions (see pg_read_all_stats).
    """

    transaction: str
    pid: int | None
    application: str | None
    state: str | None
    age: timedelta | None
    gid: str | None = None

    @property
    def prepared(self) -> bool:
        """Whether this is a prepared transaction, which no session owns."""
        return self.pid is None

    def __str__(self) -> str:
        who = f"prepared transaction {self.gid!r}" if self.prepared else f"pid {self.pid}"
        application = f" ({self.application})" if self.application else ""
        age = f", open for {self.age.total_seconds():.1f} s" if self.age is not None else ""
        return f"{who}{application}{age}"


class GroupStatus(Struct, frozen=True):
    """Where a consumer group stands.

    `claimed` is the last id handed to a process, `committed` the id up to which everything was handled. `lag` is how
    many ids lie between `committed` and `head` (ids that were rolled back count until they are passed), `lag_time`
    how long ago the oldest of them was produced. `waiting` (produced for later, the first at `next_due_at`), `ready`
    (again after a failure or delay), `inflight`, `deferred` (waiting for their key), `unread` (waiting for a process
    that reads their schema version), `dead` and `superseded` (never delivered, since a greater one of their key came
    first) count the exception queue, each up to 100,000. `lost` counts messages that retention removed before the
    group had done them. `holders` are the open transactions that hold back the next claim now.
    """

    stream: str
    name: str
    id: int
    head: int
    claimed: int
    committed: int
    lag: int
    lag_time: timedelta
    leases: int
    processes: int
    waiting: int
    next_due_at: datetime | None
    ready: int
    inflight: int
    deferred: int
    unread: int
    dead: int
    superseded: int
    reclaims: int
    lost: int
    holders: tuple[Holder, ...] = ()


class BlockedKey(Struct, frozen=True):
    """A key whose messages wait, how many of them, and what for.

    `blocked_by` is the earlier message that is being delivered or waits for its retry (`state`, `failures`,
    `can_run_after`, `error` are its); `instance_id`, `hostname` and `pid` are the process that has the key.
    """

    key: str
    waiting: int
    first_id: int
    blocked_by: int | None
    state: str | None
    failures: int | None
    can_run_after: datetime | None
    error: str | None
    instance_id: int | None
    hostname: str | None
    pid: int | None


class WaitingMessage(Struct, frozen=True):
    """A message that was produced for later, as it waits in one group until `due_at`."""

    group: str
    id: int
    key: str | None
    due_at: datetime
    created_at: datetime | None


class Cancellation(Struct, frozen=True):
    """What the cancellation of a message came to in one group.

    `outcome` is "cancelled" (it is not delivered there any more), "inflight" (a process has it already, and goes on),
    "done" (it was delivered, or the group had passed it), "dead" or "superseded".
    """

    group: str
    outcome: str


class DeadLetter(Struct, frozen=True):
    """A message whose retries are spent in a group, or that can never succeed there.

    `error_type` and `error` are of its last delivery, at `dead_since`. `created_at` is None when the log does not hold
    the message any more.
    """

    id: int
    key: str | None
    error_type: str | None
    error: str | None
    failures: int
    delays: int
    first_failed_at: datetime
    dead_since: datetime
    created_at: datetime | None


class DeliveryRecord(Struct, frozen=True):
    """What became of one delivery of a message, or what somebody did with the dead letter.

    `outcome` is "failed", "delayed", "died" (with its process) or "dead" (the last one), with the process that had it;
    or "redriven" or "discarded", with the role that did it and the reason as `error`. `attempt` begins at 1 again after
    a redrive.
    """

    attempt: int
    outcome: str
    error_type: str | None
    error: str | None
    hostname: str | None
    pid: int | None
    changed_by: str | None
    at: datetime


class DeadLetterDetail(Struct, frozen=True):
    """A dead letter with the message as it lies in the log (None when that holds it no more) and its deliveries."""

    letter: DeadLetter
    message: StoredMessage | None
    deliveries: tuple[DeliveryRecord, ...]


class Redriven(Struct, frozen=True):
    """How many dead letters are to be delivered again, and when the first and the last of them are due."""

    messages: int = 0
    first_due: datetime | None = None
    last_due: datetime | None = None


class UnreadVersion(Struct, frozen=True):
    """A schema version of which messages wait for a process of the group that can read it: how many, and the first."""

    schema_version: int
    waiting: int
    first_id: int
    since: datetime


class VersionUse(Struct, frozen=True):
    """What one group has left of a schema version.

    `waiting` counts messages that are not done: behind the group's committed cursor, or in its exception queue;
    `unread` those of them that no process could read, `dead` the dead ones, which need a reader when they run again.
    """

    group: str
    waiting: int
    unread: int
    dead: int


class StreamVersion(Struct, frozen=True):
    """A schema version of a stream: when its shape was recorded (None: never), and what groups have left of it."""

    schema_version: int
    registered_at: datetime | None
    groups: tuple[VersionUse, ...]

    @property
    def can_retire(self) -> bool:
        """Whether consumers may stop reading this version, once no producer writes it: no group has any of it left."""
        return not any(use.waiting or use.dead for use in self.groups)


class Instance(Struct, frozen=True):
    """A consuming process: one row, renewed by its heartbeat."""

    id: int
    hostname: str
    pid: int
    started_at: datetime
    expires_at: datetime


class Reclaim(Struct, frozen=True):
    """Work taken over from a process that stopped renewing: ids of `low` to `high` that were not done may run twice."""

    group_id: int
    low: int
    high: int
    resolved: int
    done: tuple[int, ...]
    from_hostname: str | None
    from_pid: int | None
    reclaimed_at: datetime


class Rewind(Struct, frozen=True):
    """What a rewind of a group does: messages behind `position` and up to `claimed` are delivered once more.

    `messages` of them are in the log, from `first_id` to `last_id`. `leases` are the ranges taken from the processes
    that have them. The exception rows behind `position` are removed, whatever their state. `kept_from` is the first id
    that the stream keeps: no rewind goes further back.
    """

    claimed: int
    position: int
    kept_from: int
    messages: int
    first_id: int | None
    last_id: int | None
    first_at: datetime | None
    last_at: datetime | None
    leases: int
    waiting: int
    ready: int
    deferred: int
    inflight: int
    unread: int
    dead: int
    superseded: int

    @property
    def exceptions(self) -> int:
        """How many exception rows are removed."""
        waiting = self.waiting + self.ready + self.deferred + self.unread
        return waiting + self.inflight + self.dead + self.superseded


class Skip(Struct, frozen=True):
    """What a skip of a group does: messages behind `claimed` and up to `position` are never delivered to it.

    `messages` of them are in the log, from `first_id` to `last_id`.
    """

    claimed: int
    position: int
    messages: int
    first_id: int | None
    last_id: int | None
    first_at: datetime | None
    last_at: datetime | None


class DeadlineInfo(Struct, frozen=True):
    """A deadline as it is registered: rows of `table` whose `state` is `from_state` when their `deadline` comes.

    `columns` are those in the payload (None: all). `mode` is "active" or "observe"; `only` narrows the rows down to
    those with such values, as text. `suspended_at` is when it was stopped (None: it was not), `revision` counts the
    changes.
    """

    id: int
    name: str
    stream: str
    table: str
    key: str
    deadline: str
    state: str
    from_state: str
    to_state: str
    batch: int
    columns: tuple[str, ...] | None
    mode: str
    only: Mapping[str, str]
    schema_version: int
    fingerprint: str | None
    suspended_at: datetime | None
    revision: int
    created_at: datetime
    updated_at: datetime

    @property
    def suspended(self) -> bool:
        """Whether it is stopped until somebody unsuspends it."""
        return self.suspended_at is not None


class DeadlineAside(Struct, frozen=True):
    """A row that could not be moved though its neighbours could; it is tried again alone at `retry_at`."""

    key: str
    failures: int
    last_error: str
    since: datetime
    retry_at: datetime


class DeadlineStatus(Struct, frozen=True):
    """How a deadline fares.

    `due` counts the rows to be moved now (up to 100,000), `oldest_due` is the deadline of the longest due, and
    `next_deadline` the next one to come. `already_final` counts rows past their deadline in neither state (up to
    100,000; None when the table is too large to be asked by the way). `scan_cost` is what the server thinks that
    finding a batch costs, in its own units, `plan` how it would do so; `index` is the index made for it, and `warning`
    says that there is none. `moved` counts all rows since it was registered, `aside` those that could not be moved, of
    which `asides` has the first hundred. `problem` says why the table cannot be asked.
    """

    name: str
    id: int
    stream: str
    table: str
    mode: str
    suspended: bool
    due: int | None
    oldest_due: datetime | None
    next_deadline: datetime | None
    already_final: int | None
    scan_cost: float | None
    plan: str | None
    index: str | None
    warning: str | None
    problem: str | None
    moved: int
    replayed: int
    last_run_at: datetime | None
    last_moved_at: datetime | None
    consecutive_failures: int
    last_error: str | None
    failed_at: datetime | None
    retry_at: datetime | None
    aside: int
    asides: tuple[DeadlineAside, ...]


class DeadlineEdit(Struct, frozen=True):
    """A change of a deadline: what was done, by whom, and what it was from then on."""

    deadline_id: int
    action: str
    config: Mapping[str, Any]
    changed_by: str
    changed_at: datetime


class Replayed(Struct, frozen=True):
    """What a replay produced; `replay` is what its messages have in their header `sqlstreams-replay`."""

    messages: int
    replay: str


class PositionChange(Struct, frozen=True):
    """A rewind ("rewound") or a skip ("skipped") that was done: from where to where, and what it meant.

    Or what retention removed before the group had done it ("lost"): `messages` from `first_id` to `last_id`.
    """

    action: str
    claimed: int
    position: int
    messages: int
    first_id: int | None
    last_id: int | None
    leases: int
    exceptions: int
    changed_by: str
    changed_at: datetime


class ScheduleInfo(Struct, frozen=True):
    """A schedule as it is registered.

    `next_slot` is the first slot that was neither fired nor skipped (None: there is none left), `suspended_at` when it
    was stopped (None: it was not), `revision` counts the changes. `payload` is the JSON of each message.
    """

    id: int
    name: str
    stream: str
    expression: str
    timezone: str
    payload: RawPayload
    schema_version: int
    fingerprint: str | None
    concurrency: str
    timeout: timedelta
    catch_up: str
    catch_up_window: timedelta
    jitter: timedelta | None
    start_at: datetime | None
    end_at: datetime | None
    compaction: bool
    suspended_at: datetime | None
    revision: int
    next_slot: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def suspended(self) -> bool:
        """Whether it is stopped until somebody unsuspends it."""
        return self.suspended_at is not None


class GroupOutcome(Struct, frozen=True):
    """What became of a message in one group.

    `outcome` is "pending" (not claimed yet), "inflight" (a process has it), "succeeded", "ready" (waits for its next
    try, at `can_run_after`), "deferred" (waits for its key), "unread" (no process can read its version), "dead",
    "superseded" (a newer one has its place), "not bound" (the bindings leave it out), or "skipped" (the group began
    behind it, or was moved past it). `failures` and the error are None where it has not failed.
    """

    group: str
    outcome: str
    failures: int | None
    error_type: str | None
    error: str | None
    can_run_after: datetime | None


class ScheduleStatus(Struct, frozen=True):
    """Where a schedule stands.

    `due_at` is when it is looked at: `next_slot` and its jitter, or the next try after a failure; None while suspended.
    `last_slot` is the last slot that fired, `last_message_id` the last message, also of a run by hand; `groups` say
    what became of that. `fires` and `skipped_slots` count its whole history.
    """

    name: str
    id: int
    stream: str
    suspended: bool
    next_slot: datetime | None
    due_at: datetime | None
    last_slot: datetime | None
    last_fired_at: datetime | None
    last_message_id: int | None
    consecutive_failures: int
    last_error: str | None
    failed_at: datetime | None
    fires: int
    skipped_slots: int
    groups: tuple[GroupOutcome, ...]


class ScheduleFire(Struct, frozen=True):
    """A message that a schedule produced.

    `kind` is "slot" (on time), "catch_up" (after a time when nobody fired), "backfill" or "manual"; `scheduled_for` is
    its slot, of a manual one when it was asked for. `fired_by` is the host and process.
    """

    scheduled_for: datetime
    fired_at: datetime
    kind: str
    message_id: int
    fired_by: str


class ScheduleSkip(Struct, frozen=True):
    """A range of slots that were not fired: from `first_slot` to `last_slot`, `slots` of them.

    `reason` is "catch_up" (older than what was fired instead), "window" (older than catch_up_window), "suspended", or
    "edited" (the schedule was changed before they were fired).
    """

    first_slot: datetime
    last_slot: datetime
    slots: int
    reason: str
    recorded_at: datetime


class ScheduleEdit(Struct, frozen=True):
    """A change of a schedule: "registered", "changed", "suspended", "unsuspended" or "destroyed"; what it was then."""

    schedule_id: int
    action: str
    config: dict[str, Any]
    changed_by: str
    changed_at: datetime


class ScheduledMessage(Struct, frozen=True):
    """A message that a schedule produced, and what became of it in each group."""

    id: int
    scheduled_for: datetime
    fired_at: datetime
    kind: str
    groups: tuple[GroupOutcome, ...]


class Backfilled(Struct, frozen=True):
    """What a backfill came to: slots that fired now, and slots that had fired before."""

    fired: int = 0
    already_fired: int = 0

    def behind(self, earlier: Backfilled) -> Backfilled:
        """Return what this part and the earlier ones are together."""
        return Backfilled(self.fired + earlier.fired, self.already_fired + earlier.already_fired)


class StoredMessage(Struct, frozen=True):
    """A message as it lies in the log."""

    id: int
    payload: RawPayload
    key: str | None
    routing_key: str | None
    headers: Mapping[str, str]
    schema_version: int
    created_at: datetime


class MigrationStep(Struct, frozen=True):
    """A migration, and when it was applied (None: not yet). `stream` is None in the system scope."""

    scope: str
    stream: str | None
    version: int
    name: str
    breaking: bool
    library: str | None = None
    applied_at: datetime | None = None


class SystemStatus(Struct, frozen=True):
    """An installation: its server, its schema and its migrations."""

    schema: str
    installed: bool
    server_version: str
    through_pooler: bool
    library: str
    applied: tuple[MigrationStep, ...]
    pending: tuple[MigrationStep, ...]


class ServerSettings(Struct, frozen=True):
    """What a server says of itself and of our role: `read_at` by its clock, `connection_limit` for ordinary roles."""

    version: str
    version_number: int
    database: str
    role: str
    in_recovery: bool
    may_create_schema: bool
    may_see_sessions: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    connection_limit: int
    connections: int
    read_at: datetime


class Privileges(Struct, frozen=True):
    """What our role may do with the installation."""

    may_use: bool
    may_create: bool
    may_register: bool
    may_consume: bool


class ServerStatus(Struct, frozen=True):
    """A server as it bears on an installation: `privileges` is None where nothing is installed.

    `prepared` are the prepared transactions of the database, the oldest first.
    """

    settings: ServerSettings
    privileges: Privileges | None
    prepared: tuple[Holder, ...]


class ConsumerStats(Struct):
    """What one `consume()` has counted since it began. Times waited for holders are in seconds."""

    claimed: int = 0
    waiting: int = 0
    handled: int = 0
    failed: int = 0
    delayed: int = 0
    dead: int = 0
    deferred: int = 0
    unread: int = 0
    superseded: int = 0
    retried: int = 0
    abandoned: int = 0
    reclaimed: int = 0
    claims: int = 0
    leases_lost: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    woken_by_notification: int = 0
    woken_by_poll: int = 0
    waiting_for: tuple[Holder, ...] = ()


JsonSchema = dict[str, Any]


class ManagerInstance(Struct, frozen=True):
    """A process that runs the manager. Another may take over when it is `expired`, and until then it may renew."""

    id: int
    term: int
    hostname: str
    pid: int
    library: str
    started_at: datetime
    renewed_at: datetime
    expires_at: datetime
    expired: bool


class DutyStatus(Struct, frozen=True):
    """One of the things that the manager does, as it last reported.

    `done` and `last_done` count things of the duty's own kind. `failures` counts those since the last success;
    `last_error` stays. `running_since` is None when it was not running then.
    """

    name: str
    suspended: bool
    runs: int
    done: int
    last_run_at: datetime | None
    last_took: timedelta | None
    last_done: int | None
    running_since: datetime | None
    next_run_at: datetime | None
    failures: int
    last_error: str | None
    last_failed_at: datetime | None


class ManagerStatus(Struct, frozen=True):
    """Who runs the manager, and what it does. `target_instances` may run it at once; `term` counts those so far."""

    target_instances: int
    suspended: bool
    term: int
    instances: tuple[ManagerInstance, ...]
    duties: tuple[DutyStatus, ...]
