-- The shared tables: streams, payload shapes, consumer groups, processes and their leases.

create table {schema}.stream_config (
    id             bigint generated always as identity primary key,
    name           text not null unique check (name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    max_payload    integer not null check (max_payload between 1 and 268435456),
    partition_rows bigint not null check (partition_rows between 1000 and 1000000000),
    -- Whether messages were produced that say themselves what those of their key may do.
    keyed          boolean not null default false,
    -- How old a message becomes (null: it stays), and whether one that a group has not done stays all the same.
    retention      interval check (retention > interval '0'),
    keep_unread    boolean not null,
    -- The first id that is kept: nothing below it is delivered any more. It moves before anything is removed, and what
    -- was removed is older than `expired_before`.
    kept_from      bigint not null default 1,
    expired_before timestamptz,
    -- How old a superseded message becomes before compaction removes it.
    compact_after  interval check (compact_after > interval '0'),
    -- How long the idempotency key of a message is remembered.
    idempotency_ttl interval not null check (idempotency_ttl > interval '0'),
    created_at     timestamptz not null default now(),
    updated_at     timestamptz not null default now()
);

create table {schema}.stream_config_log (
    id         bigint generated always as identity primary key,
    stream_id  bigint not null,
    action     text not null check (action in ('registered', 'changed', 'renamed', 'destroyed')),
    config     jsonb not null,
    changed_by text not null default session_user,
    changed_at timestamptz not null default now()
);

create table {schema}.payload_schema (
    stream_id      bigint not null references {schema}.stream_config on delete cascade,
    schema_version integer not null check (schema_version >= 1),
    fingerprint    text not null,
    json_schema    jsonb not null,
    registered_at  timestamptz not null default now(),
    primary key (stream_id, schema_version)
);

create table {schema}.consumer_group_config (
    id             bigint generated always as identity primary key,
    stream_id      bigint not null references {schema}.stream_config on delete cascade,
    name           text not null check (name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    timeout        interval check (timeout > interval '0'),
    max_retries    integer not null check (max_retries between 0 and 1000000),
    max_delays     integer check (max_delays between 0 and 1000000),
    retry_base     interval not null check (retry_base >= interval '0'),
    retry_exponent double precision not null check (retry_exponent between 1 and 10),
    retry_cap      interval not null check (retry_cap >= retry_base),
    concurrency    text not null check (concurrency in ('parallel', 'exclusive', 'ordered')),
    -- The least and the most of what messages may ask for: DeliveryLimits of the library.
    limits         json not null,
    delivery_log   text not null check (delivery_log in ('failures', 'all', 'off')),
    start_at       text not null,
    -- Patterns of routing keys, as declared; none takes every message.
    bindings       text[] not null default '{}',
    bound_at       timestamptz not null default now(),
    bound_by       text not null default session_user,
    created_at     timestamptz not null default now(),
    updated_at     timestamptz not null default now(),
    unique (stream_id, name)
);

create table {schema}.consumer_group_config_log (
    id         bigint generated always as identity primary key,
    group_id   bigint not null,
    stream_id  bigint not null,
    action     text not null check (action in ('registered', 'changed', 'renamed', 'destroyed')),
    config     jsonb not null,
    changed_by text not null default session_user,
    changed_at timestamptz not null default now()
);

-- `claimed` is the last id handed to a process; what is finished follows from it and the open leases.
-- Half of each page stays free, so that moving the cursor never touches the index.
-- `bindings` is what claims take from now on, as patterns of LIKE; null takes every message. Here, so that a claim that
-- waited for a declaration goes by it.
create table {schema}.consumer_group_cursor (
    group_id bigint primary key references {schema}.consumer_group_config on delete cascade,
    claimed  bigint not null,
    bindings text[]
) with (fillfactor = 50);

create table {schema}.consumer_instance (
    id          bigint generated always as identity primary key,
    token       uuid not null,
    hostname    text not null,
    pid         integer not null,
    library     text not null,
    started_at  timestamptz not null default now(),
    renewed_at  timestamptz not null default now(),
    expires_at  timestamptz not null,
    -- Whether others have begun to take over what it holds: it cannot renew its leases any more, and has to enter anew.
    fenced      boolean not null default false
) with (fillfactor = 50);

-- Which bindings a process that consumes declared: as long as it lives, other ones do not replace them while they are in
-- force. A row without an instance was declared by nobody who consumes so far, and waits; of those the newest stays.
create table {schema}.binding_declaration (
    id          bigint generated always as identity primary key,
    token       uuid unique,
    group_id    bigint not null references {schema}.consumer_group_config on delete cascade,
    instance_id bigint references {schema}.consumer_instance on delete cascade,
    bindings    text[] not null,
    declared_by text not null default session_user,
    declared_at timestamptz not null default now(),
    check ((token is null) = (instance_id is null))
);
create index binding_declaration_group on {schema}.binding_declaration (group_id);
create index binding_declaration_instance on {schema}.binding_declaration (instance_id);

-- One row is the right to deliver ids low to high to one group. Everything up to `resolved` and in `done` is finished.
-- A row without an instance is free for any process of the group. `gated` ranges have taken or deferred every key of
-- theirs; `running` is the message that is being run alone, because a process died while it held the range. `bindings`
-- are those of the claim: which messages of the range are the group's.
create table {schema}.claim_lease (
    token       uuid primary key,
    group_id    bigint not null references {schema}.consumer_group_config on delete cascade,
    instance_id bigint references {schema}.consumer_instance on delete set null,
    low         bigint not null,
    high        bigint not null check (high >= low),
    resolved    bigint not null,
    done        bigint[] not null default '{}',
    reclaims    integer not null default 0,
    gated       boolean not null default false,
    running     bigint,
    bindings    text[],
    claimed_at  timestamptz not null default now()
) with (fillfactor = 50);
create index claim_lease_group on {schema}.claim_lease (group_id, low);
create index claim_lease_instance on {schema}.claim_lease (instance_id);

-- The right to deliver messages of one key to one group. It stays when its process is gone, until the ranges of that
-- process are taken over: a later message must not pass an earlier one meanwhile.
create table {schema}.message_key_lease (
    group_id    bigint not null references {schema}.consumer_group_config on delete cascade,
    message_key text not null,
    instance_id bigint references {schema}.consumer_instance on delete set null,
    primary key (group_id, message_key)
) with (fillfactor = 70);
create index message_key_lease_instance on {schema}.message_key_lease (instance_id);

-- Why a message may have been delivered twice: every range or row taken from a process that stopped renewing.
create table {schema}.reclaim_log (
    id            bigint generated always as identity primary key,
    group_id      bigint not null references {schema}.consumer_group_config on delete cascade,
    low           bigint not null,
    high          bigint not null,
    resolved      bigint not null,
    done          bigint[] not null,
    from_instance bigint,
    from_hostname text,
    from_pid      integer,
    to_instance   bigint,
    reclaimed_at  timestamptz not null default now()
);
create index reclaim_log_group on {schema}.reclaim_log (group_id, low);

-- Why messages were delivered again or never: every move of a group's cursor that somebody asked for, and what retention
-- removed before the group had done it.
create table {schema}.position_log (
    id         bigint generated always as identity primary key,
    group_id   bigint not null references {schema}.consumer_group_config on delete cascade,
    action     text not null check (action in ('rewound', 'skipped', 'lost')),
    claimed    bigint not null,
    position   bigint not null,
    messages   bigint not null,
    first_id   bigint,
    last_id    bigint,
    leases     integer not null,
    exceptions bigint not null,
    changed_by text not null default session_user,
    changed_at timestamptz not null default now()
);
create index position_log_group on {schema}.position_log (group_id, id);

-- What to produce and when. `revision` grows with every change, so that nobody fires what has been changed meanwhile.
-- `fingerprint` is that of the payload's shape: when the stream's is another, the schedule does not fire.
create table {schema}.schedule_config (
    id              bigint generated always as identity primary key,
    name            text not null unique check (name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    stream_id       bigint not null references {schema}.stream_config on delete cascade,
    expression      text not null,
    timezone        text not null,
    payload         json not null,
    schema_version  integer not null check (schema_version >= 1),
    fingerprint     text,
    concurrency     text not null check (concurrency in ('parallel', 'exclusive', 'ordered')),
    timeout_ns      bigint not null check (timeout_ns > 0),
    catch_up        text not null check (catch_up in ('newest', 'oldest', 'all', 'skip')),
    catch_up_window interval not null check (catch_up_window >= interval '0'),
    jitter          interval check (jitter > interval '0'),
    start_at        timestamptz,
    end_at          timestamptz check (end_at >= start_at),
    compaction      boolean not null check (not (compaction and concurrency = 'ordered')),
    suspended_at    timestamptz,
    revision        bigint not null default 1,
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now()
);
create index schedule_config_stream on {schema}.schedule_config (stream_id);

create table {schema}.schedule_config_log (
    id          bigint generated always as identity primary key,
    schedule_id bigint not null,
    name        text not null,
    action      text not null check (action in ('registered', 'changed', 'suspended', 'unsuspended', 'destroyed')),
    config      json not null,
    changed_by  text not null default session_user,
    changed_at  timestamptz not null default now()
);
create index schedule_config_log_name on {schema}.schedule_config_log (name, id);

-- Where a schedule stands. `next_slot` is the first slot that was neither fired nor recorded as skipped; null when there
-- is none left. `due_at` is when somebody has to look at it: the slot and its jitter, or the next try after a failure;
-- null while there is nothing to fire or the schedule is suspended.
create table {schema}.schedule_cursor (
    schedule_id          bigint primary key references {schema}.schedule_config on delete cascade,
    next_slot            timestamptz,
    due_at               timestamptz,
    last_slot            timestamptz,
    last_fired_at        timestamptz,
    last_message_id      bigint,
    consecutive_failures integer not null default 0,
    last_error           text,
    failed_at            timestamptz,
    zone_data            text not null
) with (fillfactor = 70);
create index schedule_cursor_due on {schema}.schedule_cursor (due_at) where due_at is not null;

-- Each slot fires once: the fire, its message and the move of the cursor are one transaction.
create table {schema}.schedule_fire (
    schedule_id   bigint not null references {schema}.schedule_config on delete cascade,
    scheduled_for timestamptz not null,
    fired_at      timestamptz not null default clock_timestamp(),
    kind          text not null check (kind in ('slot', 'catch_up', 'backfill', 'manual')),
    message_id    bigint not null,
    fired_by      text not null,
    primary key (schedule_id, scheduled_for)
);

-- Slots that were not fired, as ranges with their reason.
create table {schema}.schedule_skip (
    id          bigint generated always as identity primary key,
    schedule_id bigint not null references {schema}.schedule_config on delete cascade,
    first_slot  timestamptz not null,
    last_slot   timestamptz not null check (last_slot >= first_slot),
    slots       bigint not null check (slots > 0),
    reason      text not null check (reason in ('catch_up', 'window', 'suspended', 'edited')),
    recorded_at timestamptz not null default now()
);
create index schedule_skip_schedule on {schema}.schedule_skip (schedule_id, id);

-- How many processes may do a work of the installation at once. `term` counts those that did so far.
create table {schema}.worker_config (
    name             text primary key check (name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    target_instances integer not null default 1 check (target_instances between 0 and 1000),
    suspended        boolean not null default false,
    term             bigint not null default 0
);
insert into {schema}.worker_config (name) values ('manager');

-- A row is the right to do that work until `expires_at`. Who has the token may renew it, also late; it is taken from
-- its process only together with being given to another, so there are never more rows than places.
create table {schema}.worker_instance (
    id         bigint generated always as identity primary key,
    worker     text not null references {schema}.worker_config on delete cascade,
    term       bigint not null,
    token      uuid not null unique,
    hostname   text not null,
    pid        integer not null,
    library    text not null,
    started_at timestamptz not null default clock_timestamp(),
    renewed_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null,
    unique (worker, term)
) with (fillfactor = 50);

-- What the manager does, and how that went: it reports with each renewal of its lease.
create table {schema}.duty_status (
    name           text primary key check (name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    suspended      boolean not null default false,
    runs           bigint not null default 0,
    done           bigint not null default 0,
    last_run_at    timestamptz,
    last_took      interval,
    last_done      bigint,
    running_since  timestamptz,
    next_run_at    timestamptz,
    failures       integer not null default 0,
    last_error     text,
    last_failed_at timestamptz
) with (fillfactor = 50);
insert into {schema}.duty_status (name)
values ('compaction'), ('deadlines'), ('idempotency'), ('leases'), ('partitions'), ('retention'), ('schedules'), ('statistics');

-- Rows of users' tables that come due. The table is kept by its names, so that a dump can be restored in any order.
-- `only_rows` narrows it down: columns and what they must be, as text. `revision` grows with every change, so that
-- nobody moves rows by what has been changed meanwhile.
create table {schema}.deadline_config (
    id              bigint generated always as identity primary key,
    name            text not null unique check (name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    stream_id       bigint not null references {schema}.stream_config on delete cascade,
    schema_version  integer not null check (schema_version >= 1),
    fingerprint     text,
    table_schema    text not null,
    table_name      text not null,
    key_column      text not null,
    key_type        text not null,
    deadline_column text not null,
    state_column    text not null,
    from_state      text not null,
    to_state        text not null check (to_state <> from_state),
    batch           integer not null check (batch between 1 and 10000),
    payload_columns text[],
    mode            text not null check (mode in ('active', 'observe')),
    only_rows       json not null,
    suspended_at    timestamptz,
    revision        bigint not null default 1,
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now()
);
create index deadline_config_stream on {schema}.deadline_config (stream_id);

create table {schema}.deadline_config_log (
    id          bigint generated always as identity primary key,
    deadline_id bigint not null,
    name        text not null,
    action      text not null check (
        action in ('registered', 'changed', 'activated', 'observed', 'suspended', 'unsuspended', 'destroyed')),
    config      json not null,
    changed_by  text not null default session_user,
    changed_at  timestamptz not null default now()
);
create index deadline_config_log_name on {schema}.deadline_config_log (name, id);

-- How a deadline fares. `moved` grows in the transactions that move the rows. `observed_due` is what there was to move
-- when somebody last only looked.
create table {schema}.deadline_cursor (
    deadline_id          bigint primary key references {schema}.deadline_config on delete cascade,
    moved                bigint not null default 0,
    replayed             bigint not null default 0,
    last_run_at          timestamptz,
    last_moved_at        timestamptz,
    observed_due         bigint,
    observed_at          timestamptz,
    consecutive_failures integer not null default 0,
    last_error           text,
    failed_at            timestamptz,
    retry_at             timestamptz
) with (fillfactor = 50);

-- Rows that could not be moved though their neighbours could: each is tried again alone.
create table {schema}.deadline_aside (
    deadline_id bigint not null references {schema}.deadline_config on delete cascade,
    key         text not null,
    failures    integer not null default 1,
    last_error  text not null,
    since       timestamptz not null default now(),
    retry_at    timestamptz not null,
    primary key (deadline_id, key)
);
create index deadline_aside_retry on {schema}.deadline_aside (deadline_id, retry_at);

-- Whether some text is a value of a type, which comes from the catalog and is quoted there.
create function {schema}.is_value(value text, type text) returns boolean
language plpgsql stable as $sqlstreams$
begin
    execute pg_catalog.format('select pg_catalog.quote_literal(%L::%s)', value, type);
    return true;
exception when data_exception or integrity_constraint_violation then
    return false;
end
$sqlstreams$;

-- Ends the transaction of a handler whose lease is not ours any more: what follows it, the commit, is a rollback then. Sent
-- together with that, so that no lease stays locked while an answer is on its way.
create function {schema}.require_lease(held boolean) returns boolean
language plpgsql as $sqlstreams$
begin
    if not held then
        raise exception 'the lease on this delivery was lost' using errcode = 'SQ040';
    end if;
    return true;
end
$sqlstreams$;

-- When a message is to be delivered, by the clock of this server; null when its options say nothing of that, or something
-- that this library did not write.
create function {schema}.due_at(options json, created_at timestamptz) returns timestamptz
language plpgsql stable as $sqlstreams$
begin
    return coalesce((options ->> 'deliver_at')::timestamptz,
                    created_at + make_interval(secs => (options ->> 'delay')::double precision));
exception when data_exception then
    return null;
end
$sqlstreams$;

-- The upper edge (exclusive) of a stream's log: the first id that has no partition yet.
create function {schema}.log_edge(of_stream bigint) returns bigint
language sql stable as $sqlstreams$
    select coalesce(max((regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''(\d+)''\)'))[1]::bigint), 0)
      from pg_catalog.pg_inherits i
      join pg_catalog.pg_class c on c.oid = i.inhrelid
     where i.inhparent = pg_catalog.to_regclass(
               pg_catalog.format('%I.%I', {schema_literal}, 'message_log_' || of_stream))
$sqlstreams$;

-- Make partitions until the log can take `through_id`; return its edge. Creating and then attaching lets producers go
-- on; PARTITION OF would wait for every open transaction of a producer. Any number of callers at once is normal.
-- With the rights of who installed it, so that roles that may only produce can go on for ever: it makes no more than a log
-- needs soon, and only those may call it to whom it was granted.
create function {schema}.extend_log(of_stream bigint, through_id bigint) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $sqlstreams$
declare
    parent text := pg_catalog.format('%I.%I', {schema_literal}, 'message_log_' || of_stream);
    part   text;
    size   bigint;
    edge   bigint := {schema}.log_edge(of_stream);
begin
    if edge > through_id then
        return edge;
    end if;
    perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(parent, 0));
    select partition_rows into strict size from {schema}.stream_config where id = of_stream;
    edge := {schema}.log_edge(of_stream);
    execute pg_catalog.format('select least($1, last_value + greatest(10000000, 10 * $2)) from %s', parent || '_id')
       into through_id using through_id, size;
    while edge <= through_id loop
        part := pg_catalog.format('%I.%I', {schema_literal}, 'message_log_' || of_stream || '_from_' || edge);
        execute pg_catalog.format(
            'create table %s (like %s including defaults including constraints including indexes including storage)',
            part, parent);
        execute pg_catalog.format('alter table %s attach partition %s for values from (%s) to (%s)',
            parent, part, edge, edge + size);
        edge := edge + size;
    end loop;
    return edge;
end
$sqlstreams$;

revoke all on function {schema}.extend_log(bigint, bigint) from public;

-- Which roles were granted what, so that streams to come are covered too.
create table {schema}.role_grant (
    role_name  text not null,
    kind       text not null check (kind in ('producer', 'consumer', 'operator', 'manager')),
    granted_by text not null default session_user,
    granted_at timestamptz not null default now(),
    primary key (role_name, kind)
);

-- What a kind of role needs of the tables that all streams share. A producer reads no payload; a consumer cannot produce;
-- an operator does everything but register and destroy streams, which is for the owner of the tables, and so are the
-- duties of the manager, which drops partitions.
create function {schema}.shared_grants(kind text) returns setof text
language sql stable set search_path = pg_catalog, pg_temp as $sqlstreams$
    select format('grant %s on %s %I.%s to ', g.privileges, g.type, {schema_literal}, g.object)
      from (values
            ('{producer,consumer,operator}'::text[], 'select', 'table', 'migration_log'),
            ('{producer,consumer,operator}', 'select', 'table', 'stream_config'),
            ('{producer,consumer,operator}', 'select, insert', 'table', 'payload_schema'),
            -- What messages of one key may do; a lock on the stream needs it too.
            ('{producer,consumer,operator}', 'update (keyed)', 'table', 'stream_config'),
            ('{producer,operator}', 'execute', 'function', 'extend_log(bigint, bigint)'),
            ('{consumer}', 'select, insert, update', 'table', 'consumer_group_config'),
            ('{consumer}', 'select, insert, update', 'table', 'consumer_group_cursor'),
            ('{consumer}', 'select, insert', 'table', 'consumer_group_config_log'),
            ('{consumer}', 'select, insert', 'table', 'reclaim_log'),
            ('{consumer}', 'select, insert', 'table', 'position_log'),
            ('{consumer,operator}', 'select, insert, update, delete', 'table', 'consumer_instance'),
            ('{consumer,operator}', 'select, insert, update, delete', 'table', 'binding_declaration'),
            ('{consumer,operator}', 'select, insert, update, delete', 'table', 'claim_lease'),
            ('{consumer,operator}', 'select, insert, update, delete', 'table', 'message_key_lease'),
            ('{operator}', 'delete', 'table', 'deadline_aside'),
            ('{consumer}', 'select', 'table', 'consumer_group_status'),
            ('{consumer}', 'select', 'table', 'dead_letters')
           ) as g (kinds, privileges, type, object)
     where shared_grants.kind = any(g.kinds)
     union all
    select format('grant select, insert, update on all tables in schema %I to ', {schema_literal})
     where shared_grants.kind = 'operator'
$sqlstreams$;

-- What a kind of role needs of the tables of one stream.
create function {schema}.family_grants(kind text, of_stream bigint) returns setof text
language sql stable set search_path = pg_catalog, pg_temp as $sqlstreams$
    select format('grant %s on %s %I.%I to ', g.privileges, g.type, {schema_literal}, format(g.object, of_stream))
      from (values
            ('{producer,operator}'::text[], 'insert, select (id)', 'table', 'message_log_%s'),
            ('{producer,operator}', 'usage, select', 'sequence', 'message_log_%s_id'),
            ('{producer,operator}', 'select, insert, update', 'table', 'compaction_head_%s'),
            ('{producer,operator}', 'select, insert, update', 'table', 'idempotency_key_%s'),
            ('{consumer,operator}', 'select', 'table', 'message_log_%s'),
            -- Messages for later are locked against their cancellation, and count for their key from their delivery on.
            ('{consumer,operator}', 'update (options)', 'table', 'message_log_%s'),
            ('{consumer}', 'select, insert, update', 'table', 'compaction_head_%s'),
            ('{consumer,operator}', 'select, insert, update, delete', 'table', 'exception_queue_%s'),
            ('{consumer,operator}', 'select, insert', 'table', 'delivery_log_%s')
           ) as g (kinds, privileges, type, object)
     where family_grants.kind = any(g.kinds)
$sqlstreams$;

-- Every statement that makes a role one of a kind, for the streams there are.
create function {schema}.role_grants(role_name text, kind text) returns setof text
language sql stable set search_path = pg_catalog, pg_temp as $sqlstreams$
    select format('grant usage on schema %I to %I', {schema_literal}, role_name)
     where role_grants.kind <> 'manager'
     union all
    select format('grant %I to %I', pg_get_userbyid(n.nspowner), role_name)
      from pg_namespace n
     where role_grants.kind = 'manager'
       and n.nspname = {schema_literal}
     union all
    select statement || quote_ident(role_name)
      from {schema}.shared_grants(role_grants.kind) as statement
     union all
    select statement || quote_ident(role_name)
      from (select id from {schema}.stream_config order by id) as s,
           {schema}.family_grants(role_grants.kind, s.id) as statement
$sqlstreams$;

-- Make a role one of a kind, also for streams to come; return what was done.
create function {schema}.grant_role(role_name text, kind text) returns setof text
language plpgsql as $sqlstreams$
declare
    statement text;
begin
    for statement in select g from {schema}.role_grants(role_name, kind) as g loop
        execute statement;
        return next statement;
    end loop;
    insert into {schema}.role_grant (role_name, kind)
    values (grant_role.role_name, grant_role.kind)
    on conflict on constraint role_grant_pkey do nothing;
end
$sqlstreams$;

-- Give roles that were granted something the same of a stream that was just made.
create function {schema}.grant_family(of_stream bigint) returns void
language plpgsql as $sqlstreams$
declare
    statement text;
begin
    for statement in
        select f || pg_catalog.quote_ident(g.role_name)
          from {schema}.role_grant g
          join pg_catalog.pg_roles r on r.rolname = g.role_name
         cross join {schema}.family_grants(g.kind, of_stream) as f
         order by 1
    loop
        execute statement;
    end loop;
end
$sqlstreams$;

-- Remove the partitions of a log that were detached, those that begin below an id; return how many. None of them can be
-- one that extend_log has yet to attach: nobody sees that before it is attached.
create function {schema}.drop_detached(of_stream bigint, below bigint) returns integer
language plpgsql set lock_timeout = '2s' set client_min_messages = 'warning' as $sqlstreams$
declare
    part    text;
    dropped integer := 0;
begin
    for part in
        select c.relname
          from pg_catalog.pg_class c
          join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         where n.nspname = {schema_literal}
           and c.relkind = 'r'
           and not c.relispartition
           and c.relname ~ ('^message_log_' || of_stream || '_from_[0-9]+$')
           and substring(c.relname from '[0-9]+$')::bigint < below
    loop
        -- Another one may have dropped it while we waited for the lock.
        execute pg_catalog.format('drop table if exists %I.%I', {schema_literal}, part);
        dropped := dropped + 1;
    end loop;
    return dropped;
end
$sqlstreams$;

-- The last visible id of a stream's log and when it was produced; of an empty log, the id before the first that is kept.
create function {schema}.log_head(of_stream bigint, out head bigint, out last_at timestamptz)
language plpgsql stable as $sqlstreams$
begin
    execute pg_catalog.format('select id, created_at from %I.%I order by id desc limit 1',
        {schema_literal}, 'message_log_' || of_stream) into head, last_at;
    head := coalesce(head, (select kept_from - 1 from {schema}.stream_config where id = of_stream), 0);
end
$sqlstreams$;

-- The last visible id before the first message that was produced at or after a time (0: none lies before it; the head:
-- all do). Ids and times rise together but for transactions that run side by side, so this halves the log until it stands
-- one minute before the time, and reads on from there. Exact as long as no single statement inserted for over a minute.
create function {schema}.last_id_before(of_stream bigint, at timestamptz) returns bigint
language plpgsql stable as $sqlstreams$
declare
    log        text := pg_catalog.format('%I.%I', {schema_literal}, 'message_log_' || of_stream);
    low        bigint;
    high       bigint;
    middle     bigint;
    found_id   bigint;
    found_at   timestamptz;
begin
    execute pg_catalog.format('select id from %s order by id limit 1', log) into low;
    execute pg_catalog.format('select id from %s order by id desc limit 1', log) into high;
    -- From here on everything below `low` is too old, and the first that is not lies at or below `high`, or nowhere.
    while high - low > 100 loop
        middle := low + (high - low) / 2;
        execute pg_catalog.format('select id, created_at from %s where id >= $1 order by id limit 1', log)
           into found_id, found_at using middle;
        if found_at < at - interval '1 minute' then
            low := found_id;
        else
            high := middle;
        end if;
    end loop;
    execute pg_catalog.format('select id from %s where id >= $1 and created_at >= $2 order by id limit 1', log)
       into found_id using low, at;
    execute pg_catalog.format('select id from %s where id < $1 or $1 is null order by id desc limit 1', log)
       into found_id using found_id;
    return coalesce(found_id, 0);
end
$sqlstreams$;

-- The id behind which a reader begins at a time (null: at the head). `head` and `held_for` are what read_settled_head
-- said before: the visible head, and for how long the oldest transaction has been open that held the log then (null:
-- there was none). A message of such a transaction may still appear below the position. The position is then lowered to
-- before the lowest missing id that was taken since that transaction began, so that the reader meets it as a hole.
create function {schema}.settled_position(of_stream bigint, at timestamptz, head bigint, held_for interval)
returns bigint
language plpgsql stable as $sqlstreams$
declare
    place   bigint := head;
    missing bigint;
begin
    if at is not null then
        place := least(head, {schema}.last_id_before(of_stream, at));
    end if;
    if held_for is not null then
        -- A message may be stamped a little before its transaction took the id: by up to the minute of last_id_before.
        execute pg_catalog.format(
            'select lag + 1'
            '  from (select id, lag(id, 1, $1) over (order by id) as lag from %I.%I where id > $1 and id <= $2) as m'
            ' where id > lag + 1'
            ' order by id'
            ' limit 1', {schema_literal}, 'message_log_' || of_stream)
           into missing
          using {schema}.last_id_before(of_stream, clock_timestamp() - held_for - interval '1 minute'), place;
    end if;
    return coalesce(missing - 1, place);
end
$sqlstreams$;

-- Where the groups of a stream stand: the first id that each has not done, in the log or in its exception queue, and what
-- that means. Each state has an index without the dead rows, and a row waits for a key only with a concurrency. Of a sum,
-- since for the least id itself all the dead rows below it might be read.
create function {schema}.unread_from(of_stream bigint)
returns table (group_id bigint, group_name text, first_id bigint, reason text)
language plpgsql stable as $sqlstreams$
begin
    return query execute pg_catalog.format(
        'select g.id, g.name, u.first_id,'
        '       format(''group %%s has not done message %%s%%s'', g.name, coalesce(m.id, u.first_id),'
        '              '' of '' || to_char(m.created_at at time zone ''UTC'', ''YYYY-MM-DD HH24:MI:SS"Z"''))'
        '  from %1$I.consumer_group_config g'
        '  join %1$I.consumer_group_cursor c on c.group_id = g.id'
        ' cross join lateral (select least(c.claimed + 1,'
        '           (select min(resolved) + 1 from %1$I.claim_lease where group_id = g.id),'
        '           (select min(message_id + 0) from %1$I.%2$I where group_id = g.id and state = ''waiting''),'
        '           (select min(message_id + 0) from %1$I.%2$I where group_id = g.id and state = ''ready''),'
        '           (select min(message_id + 0) from %1$I.%2$I where group_id = g.id and state = ''inflight''),'
        '           (select min(message_id + 0) from %1$I.%2$I where group_id = g.id and state = ''unread''),'
        '           (select min(message_id + 0) from %1$I.%2$I'
        '             where group_id = g.id and state = ''deferred'' and concurrency is not null)) as first_id'
        '                       offset 0) as u'
        '  left join lateral (select id, created_at from %1$I.%3$I where id >= u.first_id order by id limit 1) as m on true'
        ' where g.stream_id = $1 order by u.first_id, g.id',
        {schema_literal}, 'exception_queue_' || of_stream, 'message_log_' || of_stream) using of_stream;
end
$sqlstreams$;

-- When the oldest message of a stream was produced, and which group keeps messages that are older than its retention.
create function {schema}.log_tail(of_stream bigint, out oldest_at timestamptz, out held_back_by text)
language plpgsql stable as $sqlstreams$
declare
    config record;
begin
    select retention, keep_unread, kept_from into config from {schema}.stream_config where id = of_stream;
    execute pg_catalog.format('select created_at from %I.%I where id >= $1 order by id limit 1',
        {schema_literal}, 'message_log_' || of_stream) into oldest_at using config.kept_from;
    if config.keep_unread and oldest_at < now() - config.retention then
        select u.reason into held_back_by
          from {schema}.unread_from(of_stream) u
         where u.first_id <= {schema}.last_id_before(of_stream, now() - config.retention)
         order by u.first_id
         limit 1;
    end if;
end
$sqlstreams$;

-- What one group has before it: how long ago the first message behind `committed` was produced, and its exceptions. Of
-- each state at most 100,000 rows are counted, along the index that has them in order, so that millions of dead messages
-- cost no time. A bitmap would be made of all of them first.
create function {schema}.group_backlog(
    of_stream bigint, of_group bigint, committed bigint,
    out lag_time interval, out waiting bigint, out next_due_at timestamptz, out ready bigint, out inflight bigint,
    out deferred bigint, out unread bigint, out dead bigint, out superseded bigint)
language plpgsql stable set enable_bitmapscan = off as $sqlstreams$
begin
    execute pg_catalog.format('select clock_timestamp() - created_at from %I.%I where id > $1 order by id limit 1',
        {schema_literal}, 'message_log_' || of_stream) into lag_time using committed;
    execute pg_catalog.format(
        'select (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''waiting'''
        '                               order by can_run_after limit 100000) as e),'
        '       (select min(can_run_after) from %1$I.%2$I where group_id = $1 and state = ''waiting''),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''ready'''
        '                               order by can_run_after limit 100000) as e),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''inflight'''
        '                               order by instance_id limit 100000) as e),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''deferred'''
        '                              and concurrency is not null order by message_key, message_id limit 100000) as e),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''unread'''
        '                               order by schema_version limit 100000) as e),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''dead'''
        '                               order by message_id limit 100000) as e),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''superseded'''
        '                               order by message_id limit 100000) as e)',
        {schema_literal}, 'exception_queue_' || of_stream)
       into waiting, next_due_at, ready, inflight, deferred, unread, dead, superseded
      using of_group;
    lag_time := coalesce(lag_time, interval '0');
end
$sqlstreams$;

-- The dead letters of one group, for the view.
create function {schema}.group_dead_letters(
    of_stream bigint, of_group bigint,
    out message_id bigint, out message_key text, out error_type text, out error text, out failures integer,
    out delays integer, out first_failed_at timestamptz, out dead_since timestamptz, out created_at timestamptz,
    out payload json)
returns setof record
language plpgsql stable as $sqlstreams$
begin
    return query execute pg_catalog.format(
        'select e.message_id, m.message_key, e.error_type, e.error, e.failures, e.delays, e.first_failed_at,'
        '       e.updated_at, m.created_at, m.payload'
        '  from %I.%I e left join %I.%I m on m.id = e.message_id'
        ' where e.group_id = $1 and e.state = ''dead'' order by e.message_id',
        {schema_literal}, 'exception_queue_' || of_stream, {schema_literal}, 'message_log_' || of_stream)
      using of_group;
end
$sqlstreams$;

-- Write down what duties did since they last reported. The times are given as seconds before now, so that no host's
-- clock counts. An account that comes late, of a manager that lost its lease, adds to the counts alone.
create function {schema}.report_duties(reports json) returns void
language sql as $sqlstreams$
    insert into {schema}.duty_status as d (
        name, runs, done, last_run_at, last_took, last_done, running_since, next_run_at, failures, last_error,
        last_failed_at)
    select r.name, r.runs, r.done, clock_timestamp() - make_interval(secs => r.ran_ago),
           make_interval(secs => r.took), r.last_done, clock_timestamp() - make_interval(secs => r.running_for),
           clock_timestamp() + make_interval(secs => r.next_in), r.failures, r.error,
           clock_timestamp() - make_interval(secs => r.failed_ago)
      from json_to_recordset(reports) as r (
           name text, runs bigint, done bigint, ran_ago double precision, took double precision, last_done bigint,
           running_for double precision, next_in double precision, failures integer, error text,
           failed_ago double precision)
     order by r.name
    on conflict (name) do update
       set runs = d.runs + excluded.runs,
           done = d.done + excluded.done,
           last_run_at = greatest(d.last_run_at, excluded.last_run_at),
           last_took = case when d.last_run_at > excluded.last_run_at then d.last_took
                            else coalesce(excluded.last_took, d.last_took) end,
           last_done = case when d.last_run_at > excluded.last_run_at then d.last_done
                            else coalesce(excluded.last_done, d.last_done) end,
           running_since = excluded.running_since,
           next_run_at = excluded.next_run_at,
           failures = case when d.last_run_at > excluded.last_run_at or excluded.last_run_at is null then d.failures
                           else excluded.failures end,
           last_error = coalesce(excluded.last_error, d.last_error),
           last_failed_at = greatest(d.last_failed_at, excluded.last_failed_at)
$sqlstreams$;

-- Renew the right to a work by its token, or take a place that is free; without one say in how many seconds the next
-- place may be (null: nobody shall do that work now). Whoever finds a place looks again behind a lock, with each
-- statement's own view: of any number of starters as many win as there are places.
create function {schema}.take_or_renew(
    of_worker text, of_token uuid, of_hostname text, of_pid integer, of_library text, ttl double precision,
    out id bigint, out term bigint, out retry_in double precision)
language plpgsql as $sqlstreams$
declare
    places integer;
begin
    select case when c.suspended then 0 else c.target_instances end into places
      from {schema}.worker_config c where c.name = of_worker;
    -- Where places became fewer, those that came first stay.
    update {schema}.worker_instance i
       set renewed_at = clock_timestamp(),
           expires_at = clock_timestamp() + make_interval(secs => ttl)
     where i.token = of_token
       and i.worker = of_worker
       and (select count(*) from {schema}.worker_instance o where o.worker = of_worker and o.term < i.term) < places
    returning i.id, i.term into id, term;
    if found then
        -- A renewal that a crash of the server takes along only makes the lease end sooner.
        perform pg_catalog.set_config('synchronous_commit', 'off', true);
        return;
    end if;
    delete from {schema}.worker_instance i where i.token = of_token;
    if (select count(*) from {schema}.worker_instance i
         where i.worker = of_worker and i.expires_at > clock_timestamp()) < places then
        select case when c.suspended then 0 else c.target_instances end into places
          from {schema}.worker_config c where c.name = of_worker for no key update;
        delete from {schema}.worker_instance i where i.worker = of_worker and i.expires_at <= clock_timestamp();
        -- Rows, not leases: one that is renewed right now, a little late, is kept by the statement before.
        if (select count(*) from {schema}.worker_instance i where i.worker = of_worker) < places then
            update {schema}.worker_config c set term = c.term + 1 where c.name = of_worker returning c.term into term;
            insert into {schema}.worker_instance as i (worker, term, token, hostname, pid, library, expires_at)
            values (of_worker, take_or_renew.term, of_token, of_hostname, of_pid, of_library,
                    clock_timestamp() + make_interval(secs => ttl))
            returning i.id into id;
            return;
        end if;
    end if;
    select extract(epoch from min(i.expires_at) - clock_timestamp()) into retry_in
      from {schema}.worker_instance i
     where i.worker = of_worker and places > 0;
end
$sqlstreams$;

create view {schema}.stream_status as
select s.name,
       s.id,
       h.head,
       h.last_at,
       p.partitions,
       p.size,
       (select count(*) from {schema}.consumer_group_config g where g.stream_id = s.id)::int as groups,
       s.retention,
       s.keep_unread,
       s.kept_from,
       t.oldest_at,
       t.held_back_by
  from {schema}.stream_config s
 cross join lateral {schema}.log_head(s.id) as h
 cross join lateral {schema}.log_tail(s.id) as t
 cross join lateral (
       select count(*)::int as partitions, coalesce(sum(pg_total_relation_size(i.inhrelid)), 0)::bigint as size
         from pg_catalog.pg_inherits i
        where i.inhparent = pg_catalog.to_regclass(
                  pg_catalog.format('%I.%I', {schema_literal}, 'message_log_' || s.id))) as p;

-- Every range below the lowest open lease is finished, so that is the committed cursor.
create view {schema}.consumer_group_status as
select s.name as stream,
       g.name,
       g.id,
       h.head,
       c.claimed,
       p.committed,
       greatest(h.head - p.committed, 0) as lag,
       b.lag_time,
       l.leases,
       l.processes,
       b.waiting,
       b.next_due_at,
       b.ready,
       b.inflight,
       b.deferred,
       b.unread,
       b.dead,
       b.superseded,
       (select count(*) from {schema}.reclaim_log r where r.group_id = g.id) as reclaims,
       (select coalesce(sum(messages), 0)::bigint
          from {schema}.position_log o
         where o.group_id = g.id
           and o.action = 'lost') as lost
  from {schema}.consumer_group_config g
  join {schema}.stream_config s on s.id = g.stream_id
  join {schema}.consumer_group_cursor c on c.group_id = g.id
 cross join lateral {schema}.log_head(s.id) as h
 cross join lateral (
       select count(*)::int as leases, count(distinct instance_id)::int as processes, min(resolved) as resolved
         from {schema}.claim_lease
        where group_id = g.id) as l
 cross join lateral (select least(c.claimed, l.resolved) as committed) as p
 cross join lateral {schema}.group_backlog(s.id, g.id, p.committed) as b;

create view {schema}.dead_letters as
select s.name as stream,
       g.name as consumer_group,
       d.message_id,
       d.message_key,
       d.error_type,
       d.error,
       d.failures,
       d.delays,
       d.first_failed_at,
       d.dead_since,
       d.created_at,
       d.payload
  from {schema}.consumer_group_config g
  join {schema}.stream_config s on s.id = g.stream_id
 cross join lateral {schema}.group_dead_letters(s.id, g.id) as d;

create view {schema}.schedule_status as
select s.name,
       s.id,
       t.name as stream,
       s.expression,
       s.timezone,
       s.catch_up,
       s.suspended_at is not null as suspended,
       c.next_slot,
       c.due_at,
       c.last_slot,
       c.last_fired_at,
       c.last_message_id,
       c.consecutive_failures,
       c.last_error,
       c.failed_at
  from {schema}.schedule_config s
  join {schema}.stream_config t on t.id = s.stream_id
  join {schema}.schedule_cursor c on c.schedule_id = s.id;

comment on view {schema}.schedule_status is 'Every schedule and where it stands';
comment on column {schema}.schedule_status.name is 'the schedule, and the key of its messages';
comment on column {schema}.schedule_status.id is 'its id';
comment on column {schema}.schedule_status.stream is 'the stream it produces to';
comment on column {schema}.schedule_status.expression is 'when it is due, as a cron expression';
comment on column {schema}.schedule_status.timezone is 'the zone that the expression is read in';
comment on column {schema}.schedule_status.catch_up is 'which slots are fired after a time when nobody fired them';
comment on column {schema}.schedule_status.suspended is 'whether it is stopped until somebody unsuspends it';
comment on column {schema}.schedule_status.next_slot is 'the first slot neither fired nor skipped; null when none is left';
comment on column {schema}.schedule_status.due_at is
    'when it is looked at: the slot and its jitter, or the next try after a failure; null while suspended';
comment on column {schema}.schedule_status.last_slot is 'the last slot that fired';
comment on column {schema}.schedule_status.last_fired_at is 'when it fired';
comment on column {schema}.schedule_status.last_message_id is 'the message of that fire';
comment on column {schema}.schedule_status.consecutive_failures is 'tries that failed since the last fire';
comment on column {schema}.schedule_status.last_error is 'why the last try that failed did';
comment on column {schema}.schedule_status.failed_at is 'when that was';

comment on view {schema}.dead_letters is 'Every dead message: its retries are spent, or it can never succeed';
comment on column {schema}.dead_letters.stream is 'the stream it was produced to';
comment on column {schema}.dead_letters.consumer_group is 'the group in which it is dead';
comment on column {schema}.dead_letters.message_id is 'its id';
comment on column {schema}.dead_letters.message_key is 'its key';
comment on column {schema}.dead_letters.error_type is 'the class of the last exception';
comment on column {schema}.dead_letters.error is 'the text of the last exception and its place';
comment on column {schema}.dead_letters.failures is 'deliveries that failed, since it was redriven if it was';
comment on column {schema}.dead_letters.delays is 'deliveries that the handler put off';
comment on column {schema}.dead_letters.first_failed_at is 'when it first did not succeed';
comment on column {schema}.dead_letters.dead_since is 'when its last delivery failed';
comment on column {schema}.dead_letters.created_at is 'when it was produced';
comment on column {schema}.dead_letters.payload is 'what it says; null when the log does not hold it any more';

comment on view {schema}.stream_status is 'Every stream and what its log holds';
comment on column {schema}.stream_status.name is 'the stream';
comment on column {schema}.stream_status.id is 'its id, the suffix of its tables';
comment on column {schema}.stream_status.head is 'the last visible message id; of an empty log, the id before kept_from';
comment on column {schema}.stream_status.last_at is 'when that message was produced';
comment on column {schema}.stream_status.partitions is 'how many partitions the log has';
comment on column {schema}.stream_status.size is 'bytes of the log with its index';
comment on column {schema}.stream_status.groups is 'how many consumer groups read it';
comment on column {schema}.stream_status.retention is 'how old its messages become; null when they stay';
comment on column {schema}.stream_status.keep_unread is 'whether messages that a group has not done stay beyond that';
comment on column {schema}.stream_status.kept_from is 'the first id that is kept';
comment on column {schema}.stream_status.oldest_at is 'when the first message that is kept was produced';
comment on column {schema}.stream_status.held_back_by is 'which group keeps messages beyond the retention, and the first of them';

comment on view {schema}.consumer_group_status is 'Every consumer group and where it stands';
comment on column {schema}.consumer_group_status.stream is 'the stream it reads';
comment on column {schema}.consumer_group_status.name is 'the group';
comment on column {schema}.consumer_group_status.id is 'its id';
comment on column {schema}.consumer_group_status.head is 'the last visible message id of the stream';
comment on column {schema}.consumer_group_status.claimed is 'the last id handed to a process';
comment on column {schema}.consumer_group_status.committed is 'everything up to this id was handled, or has an exception row';
comment on column {schema}.consumer_group_status.lag is 'ids between committed and head; rolled-back ones count until passed';
comment on column {schema}.consumer_group_status.lag_time is 'how long ago the first message behind committed was produced';
comment on column {schema}.consumer_group_status.leases is 'ranges that are leased to processes or free to be taken over';
comment on column {schema}.consumer_group_status.processes is 'how many processes hold one';
comment on column {schema}.consumer_group_status.waiting is 'messages that were produced for later and are not due; this and the next six count up to 100,000';
comment on column {schema}.consumer_group_status.next_due_at is 'when the first of them is due';
comment on column {schema}.consumer_group_status.ready is 'failed or delayed messages that wait for their next delivery';
comment on column {schema}.consumer_group_status.inflight is 'such messages that are being delivered';
comment on column {schema}.consumer_group_status.deferred is 'messages that wait for an earlier one of their key';
comment on column {schema}.consumer_group_status.unread is 'messages of a schema version that no process could read so far';
comment on column {schema}.consumer_group_status.dead is 'messages whose retries are spent, or that can never succeed';
comment on column {schema}.consumer_group_status.superseded is 'messages that were not delivered, since a newer one of their key came first; until compaction removes them';
comment on column {schema}.consumer_group_status.reclaims is 'how often work was taken over from a process that died';
comment on column {schema}.consumer_group_status.lost is 'messages that retention removed before the group had done them';

create view {schema}.deadline_status as
select d.name,
       d.id,
       s.name as stream,
       pg_catalog.format('%I.%I', d.table_schema, d.table_name) as table_name,
       d.mode,
       d.suspended_at is not null as suspended,
       c.moved,
       c.replayed,
       c.last_run_at,
       c.last_moved_at,
       c.observed_due,
       c.observed_at,
       (select count(*) from {schema}.deadline_aside a where a.deadline_id = d.id) as aside,
       c.consecutive_failures,
       c.last_error,
       c.failed_at,
       c.retry_at
  from {schema}.deadline_config d
  join {schema}.stream_config s on s.id = d.stream_id
  join {schema}.deadline_cursor c on c.deadline_id = d.id;

comment on view {schema}.deadline_status is 'Every deadline and how it fares';
comment on column {schema}.deadline_status.name is 'the deadline';
comment on column {schema}.deadline_status.id is 'its id';
comment on column {schema}.deadline_status.stream is 'the stream it produces to';
comment on column {schema}.deadline_status.table_name is 'the table whose rows come due';
comment on column {schema}.deadline_status.mode is 'active: it moves rows; observe: it only counts them';
comment on column {schema}.deadline_status.suspended is 'whether it is stopped until somebody unsuspends it';
comment on column {schema}.deadline_status.moved is 'rows moved, each with a message, since it was registered';
comment on column {schema}.deadline_status.replayed is 'messages produced again by replays';
comment on column {schema}.deadline_status.last_run_at is 'when somebody last looked and it is known';
comment on column {schema}.deadline_status.last_moved_at is 'when rows were last moved';
comment on column {schema}.deadline_status.observed_due is 'rows that were due when it was last observed; counted up to 100,000';
comment on column {schema}.deadline_status.observed_at is 'when that was';
comment on column {schema}.deadline_status.aside is 'rows that could not be moved and are tried again one by one';
comment on column {schema}.deadline_status.consecutive_failures is 'runs that failed since the last that did not';
comment on column {schema}.deadline_status.last_error is 'why the last run that failed did';
comment on column {schema}.deadline_status.failed_at is 'when that was';
comment on column {schema}.deadline_status.retry_at is 'when it is tried again';

comment on table {schema}.worker_config is 'What processes do for the whole installation';
comment on column {schema}.worker_config.name is 'the work; manager: schedules and the upkeep of the tables';
comment on column {schema}.worker_config.target_instances is 'how many processes may do it at once; 0: none';
comment on column {schema}.worker_config.suspended is 'whether nobody does it for now';
comment on column {schema}.worker_config.term is 'how often a process has begun to do it';

comment on table {schema}.worker_instance is 'The processes that do such work now';
comment on column {schema}.worker_instance.id is 'its id';
comment on column {schema}.worker_instance.worker is 'the work';
comment on column {schema}.worker_instance.term is 'rises with each process that begins';
comment on column {schema}.worker_instance.token is 'by which the process knows its row';
comment on column {schema}.worker_instance.hostname is 'where it runs';
comment on column {schema}.worker_instance.pid is 'the process';
comment on column {schema}.worker_instance.library is 'its version of sqlstreams';
comment on column {schema}.worker_instance.started_at is 'since when it does the work';
comment on column {schema}.worker_instance.renewed_at is 'when it last said that it still does';
comment on column {schema}.worker_instance.expires_at is 'when another may begin, unless it is renewed before';

comment on table {schema}.duty_status is 'What the manager does, and how that went';
comment on column {schema}.duty_status.name is 'the duty';
comment on column {schema}.duty_status.suspended is 'whether the manager leaves it alone for now';
comment on column {schema}.duty_status.runs is 'how often it ran, failures included';
comment on column {schema}.duty_status.done is 'how much it did in all that time; each duty counts things of its own';
comment on column {schema}.duty_status.last_run_at is 'when it last ended, also by a failure';
comment on column {schema}.duty_status.last_took is 'how long that run took';
comment on column {schema}.duty_status.last_done is 'how much that run did';
comment on column {schema}.duty_status.running_since is 'since when it runs, if the manager last told that it does';
comment on column {schema}.duty_status.next_run_at is 'when it runs next, unless something comes up before';
comment on column {schema}.duty_status.failures is 'how often it failed since it last succeeded';
comment on column {schema}.duty_status.last_error is 'why it last failed, also when it succeeded since';
comment on column {schema}.duty_status.last_failed_at is 'when that was';

-- Append one message from SQL: a trigger, psql, another language. Same limits as the client's, with SQLSTATEs of our
-- own: SS010 (a value was refused, the column names the field), SS012 (no such stream) and SS014 (the idempotency key is
-- that of another payload). The message belongs to the caller's transaction and wakes nobody: consumers find it by
-- polling. A duplicate, by its idempotency key, has the id of the first.
create function {schema}.produce(
    stream text, payload json, message_key text default null, routing_key text default null, headers json default null,
    compaction_rank bigint default null, concurrency text default null, timeout interval default null,
    max_retries integer default null, max_delays integer default null, retry_base interval default null,
    retry_exponent double precision default null, retry_cap interval default null, idempotency_key text default null,
    deliver_at timestamptz default null, delay interval default null)
returns bigint
language plpgsql as $sqlstreams$
declare
    config  record;
    log     text;
    last_id bigint;
    ids     bigint[];
    options json;
begin
    select f.id, f.max_payload into config from {schema}.find_stream(stream) f;
    perform {schema}.check_message(
        payload, message_key, routing_key, headers, compaction_rank, idempotency_key, config.max_payload, '');
    perform {schema}.check_delivery(
        message_key, concurrency, timeout, max_retries, max_delays, retry_base, retry_exponent, retry_cap, '');
    perform {schema}.check_due(deliver_at, delay, '');
    if concurrency in ('exclusive', 'ordered') then
        update {schema}.stream_config c set keyed = true where c.id = config.id and not c.keyed;
    end if;
    options := {schema}.message_options(
        headers, concurrency, timeout, max_retries, max_delays, retry_base, retry_exponent, retry_cap, deliver_at, delay);
    if compaction_rank is null and idempotency_key is null then
        -- As append_messages does it, and half again as fast for one message (benchmarks/produce.py).
        log := pg_catalog.format('%I.%I', {schema_literal}, 'message_log_' || config.id);
        execute pg_catalog.format('select last_value from %s', log || '_id') into last_id;
        perform {schema}.extend_log(config.id, last_id + 10000);
        execute pg_catalog.format(
            'insert into %s (payload, message_key, routing_key, options) values ($1, $2, $3, $4) returning id', log)
           into last_id
          using payload, message_key, routing_key, options;
        return last_id;
    end if;
    ids := {schema}.append_messages(
        config.id, array[payload], array[message_key], array[routing_key], array[options], array[compaction_rank],
        array[idempotency_key], '');
    return ids[1];
end
$sqlstreams$;

-- Append many messages from SQL, all or none: a JSON array of objects with the arguments of `produce` as their members.
-- Their ids come in the order of the messages. What is refused names its message, as in messages[0].payload.
create function {schema}.produce_many(stream text, messages json) returns setof bigint
language plpgsql as $sqlstreams$
declare
    names  constant text[] := array['payload', 'message_key', 'routing_key', 'headers', 'compaction_rank', 'concurrency',
        'timeout', 'max_retries', 'max_delays', 'retry_base', 'retry_exponent', 'retry_cap', 'idempotency_key',
        'deliver_at', 'delay'];
    texts  constant text[] := array['message_key', 'routing_key', 'concurrency', 'timeout', 'retry_base', 'retry_cap',
        'idempotency_key', 'deliver_at', 'delay'];
    config            record;
    member            record;
    message           json;
    m                 record;
    n                 integer := 0;
    field             text;
    place             text := '';
    problem           text;
    payloads          json[];
    message_keys      text[];
    routing_keys      text[];
    options           json[];
    compaction_ranks  bigint[];
    idempotency_keys  text[];
    keyed             boolean := false;
begin
    select f.id, f.max_payload into config from {schema}.find_stream(stream) f;
    if pg_catalog.json_typeof(messages) is distinct from 'array' then
        raise exception 'messages must be a JSON array of objects'
            using errcode = 'SS010', column = 'messages', hint = 'sqlstreams explain SQL0010';
    end if;
    -- One exception block for all, around what writes nothing: so it is no subtransaction that others would notice.
    begin
        for message in select e.value from pg_catalog.json_array_elements(messages) e loop
            place := pg_catalog.format('messages[%s].', n);
            field := 'messages';
            n := n + 1;
            if pg_catalog.json_typeof(message) <> 'object' then
                field := 'messages';
                problem := pg_catalog.format('messages[%s] must be a JSON object', n - 1);
                exit;
            end if;
            for member in select e.key, pg_catalog.json_typeof(e.value) as kind from pg_catalog.json_each(message) e loop
                field := member.key;
                if member.key <> all(names) then
                    problem := pg_catalog.format('%s%s is unknown; there are %s', place, member.key,
                        pg_catalog.array_to_string(names, ', '));
                elsif member.key = any(texts) and member.kind not in ('string', 'null') then
                    problem := pg_catalog.format('%s%s must be a text, got a JSON %s', place, member.key, member.kind);
                elsif member.key = 'deliver_at' and message ->> 'deliver_at' !~ '(Z|[+-][0-9]{2}(:?[0-9]{2})?)$' then
                    problem := pg_catalog.format('%sdeliver_at must have a zone, got %s', place, message -> 'deliver_at');
                end if;
                exit when problem is not null;
            end loop;
            exit when problem is not null;
            field := 'messages';
            select r.* into m
              from pg_catalog.json_to_record(message) as r (
                   message_key text, routing_key text, headers json, compaction_rank bigint, concurrency text,
                   timeout interval, max_retries integer, max_delays integer, retry_base interval,
                   retry_exponent double precision, retry_cap interval, idempotency_key text,
                   deliver_at timestamptz, delay interval);
            perform {schema}.check_message(
                message -> 'payload', m.message_key, m.routing_key, m.headers, m.compaction_rank, m.idempotency_key,
                config.max_payload, place);
            perform {schema}.check_delivery(
                m.message_key, m.concurrency, m.timeout, m.max_retries, m.max_delays, m.retry_base, m.retry_exponent,
                m.retry_cap, place);
            perform {schema}.check_due(m.deliver_at, m.delay, place);
            keyed := keyed or coalesce(m.concurrency in ('exclusive', 'ordered'), false);
            payloads[n] := message -> 'payload';
            message_keys[n] := m.message_key;
            routing_keys[n] := m.routing_key;
            options[n] := {schema}.message_options(
                m.headers, m.concurrency, m.timeout, m.max_retries, m.max_delays, m.retry_base, m.retry_exponent,
                m.retry_cap, m.deliver_at, m.delay);
            compaction_ranks[n] := m.compaction_rank;
            idempotency_keys[n] := m.idempotency_key;
        end loop;
    exception when data_exception then
        problem := pg_catalog.rtrim(place, '.') || ' cannot be read: ' || sqlerrm;
    end;
    if problem is not null then
        raise exception '%', problem using errcode = 'SS010', column = field, hint = 'sqlstreams explain SQL0010';
    end if;
    if n = 0 then
        return;
    end if;
    if keyed then
        update {schema}.stream_config c set keyed = true where c.id = config.id and not c.keyed;
    end if;
    return query select pg_catalog.unnest({schema}.append_messages(
        config.id, payloads, message_keys, routing_keys, options, compaction_ranks, idempotency_keys, 'messages[%s].'));
end
$sqlstreams$;

-- The stream to produce to.
create function {schema}.find_stream(stream text, out id bigint, out max_payload integer)
language plpgsql stable as $sqlstreams$
begin
    select c.id, c.max_payload into id, max_payload from {schema}.stream_config c where c.name = find_stream.stream;
    if not found then
        raise exception 'there is no stream named %', pg_catalog.quote_nullable(stream)
            using errcode = 'SS012', hint = 'sqlstreams explain SQL0012';
    end if;
end
$sqlstreams$;

-- What the library writes of a message, without blanks: it looks for the word before it reads. Null for nothing.
create function {schema}.message_options(
    headers json, concurrency text, timeout interval, max_retries integer, max_delays integer, retry_base interval,
    retry_exponent double precision, retry_cap interval, deliver_at timestamptz, delay interval) returns json
language plpgsql immutable as $sqlstreams$
declare
    seconds constant numeric := nullif(extract(epoch from delay), 0);
begin
    if pg_catalog.num_nonnulls(headers, concurrency, timeout, max_retries, max_delays, retry_base, retry_exponent, retry_cap,
        deliver_at, seconds) = 0
    then
        return null;
    end if;
    return pg_catalog.json_strip_nulls(pg_catalog.json_build_object(
        'headers', headers,
        'concurrency', concurrency,
        'timeout', 'PT' || extract(epoch from timeout) || 'S',
        'max_retries', max_retries,
        'max_delays', max_delays,
        'retry_base', 'PT' || extract(epoch from retry_base) || 'S',
        'retry_exponent', retry_exponent,
        'retry_cap', 'PT' || extract(epoch from retry_cap) || 'S',
        'deliver_at', pg_catalog.to_char(deliver_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'delay', seconds));
end
$sqlstreams$;

-- Append messages that were checked; return their ids in the same order, of duplicates those of the first. `place` is how
-- a message is named where it is refused.
create function {schema}.append_messages(
    of_stream bigint, payloads json[], message_keys text[], routing_keys text[], options json[],
    compaction_ranks bigint[], idempotency_keys text[], place text)
returns bigint[]
language plpgsql as $sqlstreams$
declare
    log      text := pg_catalog.format('%I.%I', {schema_literal}, 'message_log_' || of_stream);
    has_keys boolean := exists (select from pg_catalog.unnest(idempotency_keys) k where k is not null);
    -- Of each message the id it is a duplicate of; below 0, of which message of these; null where it is to be appended.
    known    bigint[];
    last_id  bigint;
    fresh    bigint[];
    ids      bigint[];
begin
    if has_keys then
        known := {schema}.take_idempotency_keys(of_stream, payloads, idempotency_keys, place);
    end if;
    -- Far from the edge there is room for everyone who inserts at this moment; near it the log is extended first. No
    -- exception block: each would be a subtransaction, and many of those in one transaction slow the whole server.
    execute pg_catalog.format('select last_value from %s', log || '_id') into last_id;
    perform {schema}.extend_log(of_stream, last_id + 10000 + pg_catalog.cardinality(payloads));
    execute pg_catalog.format(
        'with appended as ('
        '  insert into %s (payload, message_key, routing_key, options, compaction_rank)'
        '  select m.payload, m.message_key, m.routing_key, m.options, m.compaction_rank'
        '    from unnest($1, $2, $3, $4, $5) with ordinality'
        '      as m (payload, message_key, routing_key, options, compaction_rank, position)'
        '   where ($6)[m.position] is null'
        '  returning id)'
        'select array_agg(id order by id) from appended', log)
       into fresh
      using payloads, message_keys, routing_keys, options, compaction_ranks, known;
    if not has_keys then
        ids := fresh;
    else
        select pg_catalog.array_agg(coalesce(k.id, fresh[k.nth]) order by k.position) into ids
          from (select u.id, u.position, count(*) filter (where u.id is null) over (order by u.position) as nth
                  from pg_catalog.unnest(known) with ordinality as u (id, position)) as k;
        select pg_catalog.array_agg(case when u.id < 0 then ids[-u.id] else u.id end order by u.position) into ids
          from pg_catalog.unnest(ids) with ordinality as u (id, position);
        execute pg_catalog.format(
            'update %I.%I k set message_id = m.id'
            '  from unnest($1, $2, $3) as m (key, id, known)'
            ' where k.idempotency_key = m.key and m.known is null',
            {schema_literal}, 'idempotency_key_' || of_stream)
          using idempotency_keys, ids, known;
    end if;
    if exists (select from pg_catalog.unnest(compaction_ranks) r where r is not null) then
        -- What is for later counts when it is delivered.
        execute pg_catalog.format(
            'insert into %I.%I as h (message_key, schema_version, rank, id)'
            ' select m.key, 1, (max(array[m.rank, m.id]))[1], (max(array[m.rank, m.id]))[2]'
            '   from unnest($1, $2, $3, $4, $5) as m (key, rank, id, known, options)'
            '  where m.rank is not null and m.known is null'
            '    and coalesce(m.options ->> ''deliver_at'', m.options ->> ''delay'') is null'
            '  group by m.key order by m.key collate "C"'
            ' on conflict (message_key) do update'
            '    set schema_version = excluded.schema_version, rank = excluded.rank, id = excluded.id'
            '  where (h.schema_version, h.rank, h.id) < (excluded.schema_version, excluded.rank, excluded.id)',
            {schema_literal}, 'compaction_head_' || of_stream)
          using message_keys, compaction_ranks, ids, known, options;
    end if;
    return ids;
end
$sqlstreams$;

-- Take the idempotency keys of messages, as the clients do. Returns of each message null where it is to be appended, else
-- the id of the earlier message or, below 0, which of these it repeats.
create function {schema}.take_idempotency_keys(
    of_stream bigint, payloads json[], idempotency_keys text[], place text)
returns bigint[]
language plpgsql as $sqlstreams$
declare
    keys    text := pg_catalog.format('%I.%I', {schema_literal}, 'idempotency_key_' || of_stream);
    prints  bytea[] := array(select pg_catalog.sha256(pg_catalog.convert_to(p.payload::text, 'UTF8'))
                               from pg_catalog.unnest(payloads) with ordinality as p (payload, position)
                              order by p.position);
    -- The first message of each key: its place among the messages.
    firsts  bigint[] := array(select min(k.position)
                                from pg_catalog.unnest(idempotency_keys) with ordinality as k (key, position)
                               where k.key is not null
                               group by k.key);
    -- The payload that each of those has to have.
    wanted  bytea[] := prints;
    taking  constant text :=
        'with taken as ('
        '  insert into %1$s as t (idempotency_key, fingerprint, expires_at)'
        '  select $1[f], $2[f], clock_timestamp() + c.idempotency_ttl'
        '    from unnest($3) as f cross join (select idempotency_ttl from %2$I.stream_config where id = $4) as c'
        '   order by $1[f] collate "C"'
        '  on conflict (idempotency_key) %3$s'
        '  returning idempotency_key)'
        'select array(select f.first'
        '               from (select f as first, $1[f] as key from unnest($3) as f) as f'
        '               left join taken t on t.idempotency_key = f.key'
        '              where t.idempotency_key is null)';
    renewing constant text := 'do update set fingerprint = excluded.fingerprint, message_id = null,'
        ' expires_at = excluded.expires_at where t.expires_at <= clock_timestamp()';
    looking constant text :=
        'select k.fingerprint, k.message_id, f.first'
        '  from (select f as first, $1[f] as key from unnest($2) as f) as f'
        '  join %s k on k.idempotency_key = f.key'
        ' where k.expires_at > clock_timestamp()';
    lost    bigint[];
    seen    record;
    known   bigint[];
    refused record;
begin
    execute pg_catalog.format(taking, keys, {schema_literal}, 'do nothing')
       into lost using idempotency_keys, prints, firsts, of_stream;
    -- What is seen may expire or be swept away before it is taken, and be taken by another then: seldom even once.
    for looks in 1..10 loop
        exit when lost = '{}';
        for seen in execute pg_catalog.format(looking, keys) using idempotency_keys, lost loop
            wanted[seen.first] := seen.fingerprint;
            known[seen.first] := seen.message_id;
        end loop;
        lost := array(select f from pg_catalog.unnest(lost) as f where known[f] is null);
        exit when lost = '{}';
        execute pg_catalog.format(taking, keys, {schema_literal}, renewing)
           into lost using idempotency_keys, prints, lost, of_stream;
    end loop;
    if lost <> '{}' then
        raise exception 'the idempotency key % changed hands ten times', pg_catalog.quote_literal(idempotency_keys[lost[1]])
            using errcode = 'serialization_failure';
    end if;
    select k.key, k.position, k.first into refused
      from (select u.key, u.position, min(u.position) over (partition by u.key) as first
              from pg_catalog.unnest(idempotency_keys) with ordinality as u (key, position)) as k
     where k.key is not null
       and wanted[k.first] <> prints[k.position]
     order by k.position
     limit 1;
    if found then
        raise exception '%idempotency_key % is that of %, which has another payload',
            pg_catalog.format(place, refused.position - 1), pg_catalog.quote_literal(refused.key),
            coalesce('message ' || known[refused.first], pg_catalog.format('messages[%s]', refused.first - 1))
            using errcode = 'SS014', column = 'idempotency_key', hint = 'sqlstreams explain SQL0014';
    end if;
    return array(
        select case when k.key is null then null
                    when known[k.first] is not null then known[k.first]
                    when k.first = k.position then null
                    else -k.first end
          from (select u.key, u.position, min(u.position) over (partition by u.key) as first
                  from pg_catalog.unnest(idempotency_keys) with ordinality as u (key, position)) as k
         order by k.position);
end
$sqlstreams$;

-- Whether every string in some JSON is text that PostgreSQL can hold. json keeps what jsonb refuses.
create function {schema}.is_text(payload json) returns boolean
language plpgsql immutable as $sqlstreams$
begin
    perform payload::jsonb;
    return true;
exception when untranslatable_character or invalid_text_representation or numeric_value_out_of_range then
    return false;
end
$sqlstreams$;

-- Whether every number in some JSON is one that clients can read: json keeps what a double cannot hold.
create function {schema}.has_numbers(payload json) returns boolean
language plpgsql immutable as $sqlstreams$
begin
    return not exists (
        select from pg_catalog.jsonb_path_query(payload::jsonb, 'strict $.** ? (@.type() == "number")') n
         where pg_catalog.abs((n #>> array[]::text[])::numeric) > 1.7976931348623157e308);
exception when numeric_value_out_of_range then
    return false;
end
$sqlstreams$;

-- Refuse what the clients refuse of the options for deliveries.
create function {schema}.check_delivery(
    message_key text, concurrency text, timeout interval, max_retries integer, max_delays integer,
    retry_base interval, retry_exponent double precision, retry_cap interval, place text) returns void
language plpgsql immutable as $sqlstreams$
declare
    longest constant interval := interval '3650 days';
    field   text;
    problem text;
begin
    if concurrency not in ('parallel', 'exclusive', 'ordered') then
        field := 'concurrency';
        problem := pg_catalog.format('must be one of parallel, exclusive, ordered, got %L', concurrency);
    elsif concurrency <> 'parallel' and message_key is null then
        field := 'concurrency';
        problem := pg_catalog.format('of %L needs a key', concurrency);
    elsif timeout not between interval '1 millisecond' and longest then
        field := 'timeout';
        problem := pg_catalog.format('must be between 1 ms and %s, got %s', longest, timeout);
    elsif max_retries not between 0 and 1000000 then
        field := 'max_retries';
        problem := pg_catalog.format('must be between 0 and 1000000, got %s', max_retries);
    elsif max_delays not between 0 and 1000000 then
        field := 'max_delays';
        problem := pg_catalog.format('must be between 0 and 1000000, got %s', max_delays);
    elsif retry_base not between interval '0' and longest then
        field := 'retry_base';
        problem := pg_catalog.format('must be between 0 and %s, got %s', longest, retry_base);
    elsif retry_exponent not between 1 and 10 then  -- NaN is above all numbers
        field := 'retry_exponent';
        problem := pg_catalog.format('must be between 1 and 10, got %s', retry_exponent);
    elsif retry_cap not between interval '0' and longest then
        field := 'retry_cap';
        problem := pg_catalog.format('must be between 0 and %s, got %s', longest, retry_cap);
    end if;
    if field is not null then
        raise exception '% %', place || field, problem
            using errcode = 'SS010', column = field, hint = 'sqlstreams explain SQL0010';
    end if;
end
$sqlstreams$;

-- Refuse what the clients refuse of when a message is to be delivered.
create function {schema}.check_due(deliver_at timestamptz, delay interval, place text) returns void
language plpgsql immutable as $sqlstreams$
declare
    longest constant interval := interval '3650 days';
    field   text;
    problem text;
begin
    if deliver_at is not null and delay is not null then
        field := 'delay';
        problem := 'goes without deliver_at';
    elsif deliver_at not between timestamptz '0001-01-01 00:00:00Z' and timestamptz '9999-12-31 23:59:59.999999Z' then
        field := 'deliver_at';
        problem := pg_catalog.format('must be in the years 1 to 9999, got %s', deliver_at);
    elsif delay not between interval '0' and longest then
        field := 'delay';
        problem := pg_catalog.format('must be between 0 and %s, got %s', longest, delay);
    end if;
    if field is not null then
        raise exception '% %', place || field, problem
            using errcode = 'SS010', column = field, hint = 'sqlstreams explain SQL0010';
    end if;
end
$sqlstreams$;

-- Refuse what the clients refuse.
create function {schema}.check_message(
    payload json, message_key text, routing_key text, headers json, compaction_rank bigint, idempotency_key text,
    max_payload integer, place text) returns void
language plpgsql immutable as $sqlstreams$
declare
    field   text;
    problem text;
begin
    if payload is null then
        field := 'payload';
        problem := 'must not be null';
    elsif pg_catalog.octet_length(payload::text) > max_payload then
        field := 'payload';
        problem := pg_catalog.format('must have at most %s bytes as JSON, got %s', max_payload,
            pg_catalog.octet_length(payload::text));
    elsif payload::text ~* '\\u(0000|d[89a-f])' and not {schema}.is_text(payload) then
        field := 'payload';
        problem := 'must not contain the character NUL or a lone surrogate';
    elsif payload::text ~* '[0-9]e\+?[0-9]{2}|[0-9]{200}[0-9]{109}\.' and not {schema}.has_numbers(payload) then
        field := 'payload';
        problem := 'must not contain a number beyond what a double holds';
    elsif pg_catalog.octet_length(message_key) not between 1 and 512 then
        field := 'message_key';
        problem := pg_catalog.format('must have 1 to 512 bytes, got %s', pg_catalog.octet_length(message_key));
    elsif pg_catalog.octet_length(routing_key) not between 1 and 512 then
        field := 'routing_key';
        problem := pg_catalog.format('must have 1 to 512 bytes, got %s', pg_catalog.octet_length(routing_key));
    elsif compaction_rank is not null and message_key is null then
        field := 'compaction_rank';
        problem := 'needs a message_key';
    elsif pg_catalog.octet_length(idempotency_key) not between 1 and 512 then
        field := 'idempotency_key';
        problem := pg_catalog.format('must have 1 to 512 bytes, got %s', pg_catalog.octet_length(idempotency_key));
    elsif headers is not null and pg_catalog.json_typeof(headers) <> 'object' then
        field := 'headers';
        problem := 'must be a JSON object of texts';
    elsif headers::text ~* '\\u(0000|d[89a-f])' and not {schema}.is_text(headers) then
        field := 'headers';
        problem := 'must not contain the character NUL or a lone surrogate';
    elsif headers is not null and exists (
        select from pg_catalog.json_each(headers) h where pg_catalog.json_typeof(h.value) <> 'string') then
        field := 'headers';
        problem := 'must be a JSON object of texts';
    elsif pg_catalog.octet_length(headers::text) > 16384 then
        field := 'headers';
        problem := pg_catalog.format('must have at most 16384 bytes together, got %s',
            pg_catalog.octet_length(headers::text));
    end if;
    if field is not null then
        raise exception '% %', place || field, problem
            using errcode = 'SS010', column = field, hint = 'sqlstreams explain SQL0010';
    end if;
end
$sqlstreams$;
