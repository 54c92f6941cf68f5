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

select {schema}.extend_log({stream}, 0);

create table {schema}.exception_queue_{stream} (
    group_id        bigint not null,
    message_id      bigint not null,
    state           text not null check (state in ('ready', 'inflight', 'deferred', 'unread', 'dead', 'superseded')),
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
create index exception_queue_{stream}_inflight on {schema}.exception_queue_{stream} (group_id, instance_id)
 where state = 'inflight';
create index exception_queue_{stream}_keys on {schema}.exception_queue_{stream} (group_id, message_key, message_id)
 where concurrency is not null and state in ('ready', 'inflight', 'deferred', 'unread');
create index exception_queue_{stream}_unread on {schema}.exception_queue_{stream} (group_id, schema_version)
 where state = 'unread';
create index exception_queue_{stream}_dead on {schema}.exception_queue_{stream} (group_id, message_id)
 where state = 'dead';
