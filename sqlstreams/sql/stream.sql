-- name: insert_stream
-- Register a stream, unless there is one of this name; a second caller waits for the first to commit.
insert into {schema}.stream_config (name, max_payload, partition_rows, retention, keep_unread, compact_after,
                                     idempotency_ttl)
values (%(name)s, %(max_payload)s, %(partition_rows)s, %(retention)s, %(keep_unread)s,
        %(compact_after)s, %(idempotency_ttl)s)
on conflict (name) do nothing
returning id, name, max_payload, partition_rows, retention, keep_unread, compact_after, idempotency_ttl, created_at,
          updated_at

-- name: get_stream
-- Read one stream by name.
select id, name, max_payload, partition_rows, retention, keep_unread, compact_after, idempotency_ttl, created_at, updated_at
  from {schema}.stream_config
 where name = %(name)s

-- name: lock_stream
-- Read one stream by name and keep others from changing it until we commit.
select id, name, max_payload, partition_rows, retention, keep_unread, compact_after, idempotency_ttl, created_at, updated_at
  from {schema}.stream_config
 where name = %(name)s
   for update

-- name: update_stream
-- Give a stream the settings that were declared last.
update {schema}.stream_config
   set max_payload = %(max_payload)s,
       partition_rows = %(partition_rows)s,
       retention = %(retention)s,
       keep_unread = %(keep_unread)s,
       compact_after = %(compact_after)s,
       idempotency_ttl = %(idempotency_ttl)s,
       updated_at = now()
 where id = %(id)s
returning id, name, max_payload, partition_rows, retention, keep_unread, compact_after, idempotency_ttl, created_at,
          updated_at

-- name: mark_keyed
-- Have the consumers of a stream look at the keys of single messages, before the first that asks for it is produced.
update {schema}.stream_config
   set keyed = true
 where id = %(stream_id)s
   and not keyed
returning id

-- name: rename_stream
-- Give a stream another name; its id and its tables stay.
update {schema}.stream_config
   set name = %(new_name)s,
       updated_at = now()
 where id = %(id)s
   and not exists (select from {schema}.stream_config where name = %(new_name)s)
returning id, name, max_payload, partition_rows, retention, keep_unread, compact_after, idempotency_ttl, created_at,
          updated_at

-- name: delete_stream
-- Remove a stream's registration, and with it its groups and their leases.
delete from {schema}.stream_config
 where id = %(id)s

-- name: drop_family
-- Remove a stream's tables with everything in them.
drop table if exists {schema}.message_log_{stream}, {schema}.exception_queue_{stream},
                     {schema}.delivery_log_{stream}, {schema}.compaction_head_{stream},
                     {schema}.idempotency_key_{stream}

-- name: forget_family
-- Remove the record of a dropped family's migrations.
delete from {schema}.migration_log
 where scope = 'stream'
   and stream_id = %(stream_id)s

-- name: log_stream
-- Keep what was declared, by whom and when.
insert into {schema}.stream_config_log (stream_id, action, config)
select %(stream_id)s, %(action)s, %(config)s::jsonb

-- name: list_streams
-- Read every stream by name.
select id, name, max_payload, partition_rows, retention, keep_unread, compact_after, idempotency_ttl, created_at, updated_at
  from {schema}.stream_config
 order by name

-- name: get_stream_status
-- Read what one stream's log holds.
select name, id, head, last_at, partitions, size, groups, kept_from, oldest_at, held_back_by
  from {schema}.stream_status
 where name = %(name)s

-- name: insert_payload_schema
-- Record the shape of a payload type, unless this version has one.
insert into {schema}.payload_schema (stream_id, schema_version, fingerprint, json_schema)
values (%(stream_id)s, %(schema_version)s, %(fingerprint)s, %(json_schema)s::jsonb)
on conflict do nothing
returning schema_version

-- name: get_payload_schema
-- Read the recorded shape of one version.
select fingerprint, json_schema
  from {schema}.payload_schema
 where stream_id = %(stream_id)s
   and schema_version = %(schema_version)s

-- name: read_messages
-- Read messages of a log in the order of their ids, from one id on.
select id, payload, message_key, routing_key, options, schema_version, created_at
  from {schema}.message_log_{stream}
 where id >= %(from_id)s
 order by id
 limit %(limit)s

-- name: read_last_messages
-- Read the last visible messages of a log, the newest first.
select id, payload, message_key, routing_key, options, schema_version, created_at
  from {schema}.message_log_{stream}
 order by id desc
 limit %(limit)s

-- name: read_settled_head
-- Read the visible head and who could still fill a hole below it. The head comes from the statement's snapshot, the
-- locks are read while it runs, that is later: whoever took an id up to this head and is not among these has ended.
with locks as materialized (
    select pid, locktype, mode, granted, database, relation, transactionid, virtualtransaction
      from pg_locks
),
holders as (
    select distinct virtualtransaction, pid
      from locks
     where locktype = 'relation'
       and mode = 'RowExclusiveLock'
       and granted
       and database = (select oid from pg_database where datname = current_database())
       -- The partitions too: someone may write into one without going through the log.
       and (relation = '{schema}.message_log_{stream}'::regclass
            or relation in (select inhrelid
                              from pg_inherits
                             where inhparent = '{schema}.message_log_{stream}'::regclass))
)
select m.head,
       -- A prepared transaction goes by its real id: its virtual one is another after a restart.
       coalesce(x.transactionid::text, h.virtualtransaction) as transaction,
       h.pid,
       a.application_name as application,
       a.state,
       clock_timestamp() - coalesce(a.xact_start, p.prepared) as age,
       p.gid
  from (select (select id from {schema}.message_log_{stream} order by id desc limit 1) as head) as m
  left join holders h on true
  left join pg_stat_activity a on a.pid = h.pid
  left join locks x
    on h.pid is null
   and x.pid is null
   and x.locktype = 'transactionid'
   and x.virtualtransaction = h.virtualtransaction
  left join pg_prepared_xacts p on p.transaction = x.transactionid

-- name: find_position
-- Read the id behind which a reader begins at a time, or at the head; see read_settled_head for what it is told.
select {schema}.settled_position({stream}, %(at)s, %(head)s, %(held_for)s) as id

-- name: list_versions
-- Read which groups have messages of which version left. Reads the log from the slowest group's committed cursor on.
with reading as (
    select g.id, g.name, least(c.claimed, (select min(l.resolved)
                                             from {schema}.claim_lease l
                                            where l.group_id = g.id)) as committed
      from {schema}.consumer_group_config g
      join {schema}.consumer_group_cursor c on c.group_id = g.id
     where g.stream_id = %(stream_id)s
),
left_over as (
    select r.name as group_name, m.schema_version, 1 as waiting, 0 as unread, 0 as dead
      from reading r
      join {schema}.message_log_{stream} m on m.id > r.committed
     where not exists (select
                         from {schema}.exception_queue_{stream} e
                        where e.group_id = r.id
                          and e.message_id = m.id)
     union all
    select r.name, e.schema_version, (e.state not in ('dead', 'superseded', 'cancelled'))::int, (e.state = 'unread')::int,
           (e.state = 'dead')::int
      from reading r
      join {schema}.exception_queue_{stream} e on e.group_id = r.id
),
used as (
    select group_name, schema_version, sum(waiting) as waiting, sum(unread) as unread, sum(dead) as dead
      from left_over
     group by group_name, schema_version
)
select coalesce(p.schema_version, u.schema_version) as schema_version, p.registered_at, u.group_name,
       coalesce(u.waiting, 0)::bigint as waiting, coalesce(u.unread, 0)::bigint as unread,
       coalesce(u.dead, 0)::bigint as dead
  from (select schema_version, registered_at from {schema}.payload_schema where stream_id = %(stream_id)s) as p
  full join used u on u.schema_version = p.schema_version
 order by 1, u.group_name

-- name: preview_bindings
-- Read the routing keys of the last messages, how many have each, and whether patterns match it.
select routing_key, count(*) as messages, max(id) as last_id,
       coalesce(%(patterns)s::text[] is null or routing_key collate "C" like any(%(patterns)s::text[]), false) as matches
  from (select id, routing_key
          from {schema}.message_log_{stream}
         order by id desc
         limit %(last)s) as m
 group by routing_key
 order by matches desc, messages desc, last_id desc
