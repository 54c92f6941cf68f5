-- name: create_schema
-- Make room for an installation. Twenty starters are safe: the caller holds lock_schema.
create schema if not exists {schema}

-- name: lock_schema
-- Let one process at a time change this installation's tables; freed at the end of the transaction.
select pg_advisory_xact_lock(hashtextextended('{schema}.migration_log', 0))

-- name: create_migration_log
-- The record of what was applied; the only table that no migration makes.
create table if not exists {schema}.migration_log (
    scope      text not null check (scope in ('system', 'stream')),
    stream_id  bigint not null,
    version    integer not null,
    name       text not null,
    checksum   text not null,
    breaking   boolean not null,
    library    text not null,
    applied_at timestamptz not null default now(),
    primary key (scope, stream_id, version)
)

-- name: is_installed
-- Say whether the schema holds an installation.
select to_regclass('{schema}.migration_log') is not null as installed

-- name: list_applied
-- Read the migrations applied to the system and to every stream family (stream_id 0 is the system).
select scope, stream_id, version, name, checksum, breaking, library, applied_at
  from {schema}.migration_log
 order by scope desc, stream_id, version

-- name: record_migration
-- Write the record of a step before the step itself, so that a second starter waits here and then finds it done.
insert into {schema}.migration_log (scope, stream_id, version, name, checksum, breaking, library)
values (%(scope)s, %(stream_id)s, %(version)s, %(name)s, %(checksum)s, %(breaking)s, %(library)s)
on conflict do nothing
returning version

-- name: list_stream_ids
-- Read which stream families there are.
select id, name
  from {schema}.stream_config
 order by id

-- name: show_server
-- Read what the doctor and `system status` tell about the server and this role.
select current_setting('server_version') as version,
       current_setting('server_version_num')::int as version_number,
       current_database() as database,
       current_user as role,
       pg_is_in_recovery() as in_recovery,
       has_database_privilege(current_database(), 'CREATE') as may_create_schema,
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') as may_see_sessions,
       current_setting('fsync')::bool as fsync,
       current_setting('full_page_writes')::bool as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int
           -- New in PostgreSQL 16.
           - coalesce(current_setting('reserved_connections', true)::int, 0) as connection_limit,
       (select sum(numbackends)::int from pg_stat_database) as connections,
       clock_timestamp() as read_at

-- name: list_prepared
-- Read the prepared transactions of this database, the oldest first: they hold back claims until somebody ends them.
select '-1/' || transaction as transaction, null::int as pid, null::text as application, 'prepared' as state,
       clock_timestamp() - prepared as age, gid
  from pg_prepared_xacts
 where database = current_database()
 order by prepared

-- name: list_grants
-- Read the statements that make a role a producer, consumer, operator or manager.
select statement
  from {schema}.role_grants(%(role)s, %(kind)s) as statement

-- name: grant_role
-- Carry those statements out, and have streams to come do the same; returns them.
select statement
  from {schema}.grant_role(%(role)s, %(kind)s) as statement

-- name: role_exists
-- Say whether the server has a role.
select exists (select from pg_roles where rolname = %(role)s) as is_there

-- name: grant_family
-- Give roles that were granted something the same of a stream that was just made.
select {schema}.grant_family({stream}) is null as done

-- name: show_privileges
-- Read what this role may do with the installation.
select has_schema_privilege(%(schema)s, 'USAGE') as may_use,
       has_schema_privilege(%(schema)s, 'CREATE') as may_create,
       has_table_privilege('{schema}.stream_config', 'INSERT') as may_register,
       has_table_privilege('{schema}.claim_lease', 'INSERT') as may_consume
