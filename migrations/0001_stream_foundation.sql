-- The family of one stream: its log, and the rows of messages that did not succeed at once.

-- CACHE 1: ids leave the sequence in the order in which inserting transactions ask for them.
create sequence {schema}.message_log_{stream}_id as bigint cache 1;

create table {schema}.message_log_{stream} (
    id              bigint not null default nextval('{schema}.message_log_{stream}_id'),
    payload         json not null,
    routing_key     text,
    message_key     text,
    schema_version  integer not null default 1,
    compaction_rank bigint,
    options         json,
    -- Not the transaction's start: that may lie far before the id. Not clock_timestamp(): COPY would insert row by row.
    created_at      timestamptz not null default statement_timestamp(),
    primary key (id)
) partition by range (id);
alter sequence {schema}.message_log_{stream}_id owned by {schema}.message_log_{stream}.id;
-- The history of a key. Messages that do not take part in compaction pay nothing for it.
create index message_log_{stream}_compaction on {schema}.message_log_{stream} (message_key, id)
 where compaction_rank is not null;

select {schema}.extend_log({stream}, 0);

-- Of each key with messages that take part in compaction, the one that counts: the greatest (schema_version, rank, id).
create table {schema}.compaction_head_{stream} (
    message_key    text primary key,
    schema_version integer not null,
    rank           bigint not null,
    id             bigint not null
) with (fillfactor = 70);
-- Whether a range of ids holds any that must be kept.
create index compaction_head_{stream}_id on {schema}.compaction_head_{stream} (id);

-- Which message each idempotency key is of, until it expires; the message itself may be gone before. While the one who
-- took a key has not committed, the row has no message yet. Each row is updated once: half of the page stays free for that.
create table {schema}.idempotency_key_{stream} (
    idempotency_key text primary key,
    fingerprint     bytea not null,
    message_id      bigint,
    expires_at      timestamptz not null
) with (fillfactor = 50);
create index idempotency_key_{stream}_expires on {schema}.idempotency_key_{stream} (expires_at);

create table {schema}.exception_queue_{stream} (
    group_id        bigint not null,
    message_id      bigint not null,
    state           text not null check (state in ('waiting', 'ready', 'inflight', 'deferred', 'unread', 'dead', 'superseded',
                                                     'cancelled')),
    failures        integer not null default 0,
    delays          integer not null default 0,
    can_run_after   timestamptz not null,
    schema_version  integer not null default 1,
    instance_id     bigint,
    token           uuid,
    -- Of messages whose key matters: they wait here for each other.
    message_key     text,
    concurrency     text check (concurrency in ('exclusive', 'ordered')),
    -- Of inflight rows: whether the handler was called. And whether the row may be the one that killed a process.
    started         boolean not null default false,
    alone           boolean not null default false,
    error_type      text,
    error           text,
    first_failed_at timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    primary key (group_id, message_id),
    check ((state = 'inflight') = (token is not null))
) with (fillfactor = 70);
create index exception_queue_{stream}_due on {schema}.exception_queue_{stream} (group_id, can_run_after)
 where state = 'ready';
create index exception_queue_{stream}_waiting on {schema}.exception_queue_{stream} (group_id, can_run_after)
 where state = 'waiting';
create index exception_queue_{stream}_inflight on {schema}.exception_queue_{stream} (group_id, instance_id)
 where state = 'inflight';
-- What waits until it is due is in the way of others only in order.
create index exception_queue_{stream}_keys on {schema}.exception_queue_{stream} (group_id, message_key, message_id)
 where concurrency is not null
   and (state in ('ready', 'inflight', 'deferred', 'unread') or state = 'waiting' and concurrency = 'ordered');
create index exception_queue_{stream}_open on {schema}.exception_queue_{stream} (group_id, message_key)
 where concurrency is not null
   and (state in ('ready', 'inflight', 'unread') or state = 'waiting' and concurrency = 'ordered');
create index exception_queue_{stream}_unread on {schema}.exception_queue_{stream} (group_id, schema_version)
 where state = 'unread';
create index exception_queue_{stream}_dead on {schema}.exception_queue_{stream} (group_id, message_id)
 where state = 'dead';
create index exception_queue_{stream}_superseded on {schema}.exception_queue_{stream} (group_id, message_id)
 where state = 'superseded';

create table {schema}.delivery_log_{stream} (
    id         bigint generated always as identity,
    group_id   bigint not null,
    message_id bigint not null,
    attempt    integer not null,
    outcome    text not null check (outcome in ('succeeded', 'failed', 'delayed', 'dead', 'died', 'redriven', 'discarded')),
    error_type text,
    error      text,
    hostname   text,
    pid        integer,
    changed_by text,
    at         timestamptz not null default clock_timestamp(),
    primary key (group_id, message_id, id)
);
-- One table, since mostly only failures have rows in it: partitions would cost each lookup of a message one more of each. The
-- key has an id behind it, so that no history can keep a failure from being recorded.
comment on table {schema}.delivery_log_{stream} is
    'What became of every delivery that did not succeed, or of every one, and of the dead letters';
comment on column {schema}.delivery_log_{stream}.id is 'the order of the entries of a message';
comment on column {schema}.delivery_log_{stream}.group_id is 'the consumer group';
comment on column {schema}.delivery_log_{stream}.message_id is 'the message';
comment on column {schema}.delivery_log_{stream}.attempt is
    'which delivery it was, counted from 1 and from 1 again after a redrive; of the last one where outcome is redriven or discarded';
comment on column {schema}.delivery_log_{stream}.outcome is
    'succeeded (where successes are kept), failed (again later), delayed (the handler asked for it), died (with its process, again later), dead (the last one), redriven, discarded';
comment on column {schema}.delivery_log_{stream}.error_type is 'the class of the exception';
comment on column {schema}.delivery_log_{stream}.error is 'its text and place; the reason where outcome is discarded';
comment on column {schema}.delivery_log_{stream}.hostname is 'where the process ran';
comment on column {schema}.delivery_log_{stream}.pid is 'the process';
comment on column {schema}.delivery_log_{stream}.changed_by is 'the role that redrove or discarded it';
comment on column {schema}.delivery_log_{stream}.at is 'when it was recorded';
