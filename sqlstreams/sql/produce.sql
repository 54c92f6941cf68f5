-- name: produce_many
-- Append messages in the order given; a column that is null for all of them may be one null instead of an array.
insert into {schema}.message_log_{stream} (payload, routing_key, message_key, schema_version, options, compaction_rank)
select m.payload, m.routing_key, m.message_key, %(schema_version)s, m.options, m.compaction_rank
  from unnest(%(payloads)s::json[], %(routing_keys)s::text[], %(message_keys)s::text[], %(options)s::json[],
              %(compaction_ranks)s::bigint[])
    as m (payload, routing_key, message_key, options, compaction_rank)
returning id

-- name: read_xact
-- Read the id of the transaction: what a lost commit is asked about afterwards.
select pg_current_xact_id()::text::bigint as xact

-- name: read_assigned_xact
-- Read the id of the transaction, null when it has written nothing.
select pg_current_xact_id_if_assigned()::text::bigint as xact

-- name: extend_log
-- Make partitions until the log can take the next `ahead` ids, and read its edge (the first id without a partition).
select {schema}.extend_log({stream}, (select last_value from {schema}.message_log_{stream}_id) + %(ahead)s) as edge

-- name: ask_commit
-- Ask what became of a transaction whose commit was not answered.
select pg_xact_status(%(xact)s::text::xid8) as status

-- name: notify
-- Wake the consumers of streams. One statement for many; the commit need not reach the disk.
select set_config('synchronous_commit', 'off', true), count(pg_notify(%(channel)s, stream_id::text))
  from unnest(%(stream_ids)s::bigint[]) as s (stream_id)
