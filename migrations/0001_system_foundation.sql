-- The shared tables: streams, payload shapes, consumer groups, processes and their leases.

create table {schema}.stream_config (
    id             bigint generated always as identity primary key,
    name           text not null unique check (name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    max_payload    integer not null check (max_payload between 1 and 268435456),
    partition_rows bigint not null check (partition_rows between 1000 and 1000000000),
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
    max_retries    integer not null check (max_retries between 0 and 1000000),
    retry_base     interval not null check (retry_base >= interval '0'),
    retry_exponent double precision not null check (retry_exponent between 1 and 10),
    retry_cap      interval not null check (retry_cap >= retry_base),
    start_at       text not null,
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
create table {schema}.consumer_group_cursor (
    group_id bigint primary key references {schema}.consumer_group_config on delete cascade,
    claimed  bigint not null
) with (fillfactor = 50);

create table {schema}.consumer_instance (
    id          bigint generated always as identity primary key,
    token       uuid not null,
    hostname    text not null,
    pid         integer not null,
    library     text not null,
    started_at  timestamptz not null default now(),
    renewed_at  timestamptz not null default now(),
    expires_at  timestamptz not null
) with (fillfactor = 50);

-- One row is the right to deliver ids low to high to one group. Everything up to `resolved` and in `done` is finished.
-- A row without an instance is free for any process of the group.
create table {schema}.claim_lease (
    token       uuid primary key,
    group_id    bigint not null references {schema}.consumer_group_config on delete cascade,
    instance_id bigint references {schema}.consumer_instance on delete set null,
    low         bigint not null,
    high        bigint not null check (high >= low),
    resolved    bigint not null,
    done        bigint[] not null default '{}',
    reclaims    integer not null default 0,
    claimed_at  timestamptz not null default now()
) with (fillfactor = 50);
create index claim_lease_group on {schema}.claim_lease (group_id, low);
create index claim_lease_instance on {schema}.claim_lease (instance_id);

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
create function {schema}.extend_log(of_stream bigint, through_id bigint) returns bigint
language plpgsql set lock_timeout = '5s' as $sqlstreams$
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
