-- name: move_heads
-- Make messages just appended the heads of their keys, where nothing greater is; each key once. Whoever else produces one
-- of these keys waits here for our commit. A message that was produced for later comes here when it is delivered first.
insert into {schema}.compaction_head_{stream} as h (message_key, schema_version, rank, id)
select message_key, %(schema_version)s, rank, id
  from unnest(%(keys)s::text[], %(ranks)s::bigint[], %(ids)s::bigint[]) as m (message_key, rank, id)
 -- All in the same order, so that no two producers wait for each other.
 order by message_key collate "C"
on conflict (message_key) do update
   set schema_version = excluded.schema_version,
       rank = excluded.rank,
       id = excluded.id
 where (h.schema_version, h.rank, h.id) < (excluded.schema_version, excluded.rank, excluded.id)

-- name: find_heads
-- Read the committed heads of keys.
select message_key, schema_version, rank, id
  from {schema}.compaction_head_{stream}
 where message_key = any(%(keys)s::text[])

-- name: read_head
-- Read the message that is the head of a key.
select m.id, m.payload, m.message_key, m.routing_key, m.options, m.schema_version, m.created_at
  from {schema}.compaction_head_{stream} h
  join {schema}.message_log_{stream} m on m.id = h.id
 where h.message_key = %(key)s

-- name: read_history
-- Read the messages of a key that take part in compaction, the newest first.
select id, payload, message_key, routing_key, options, schema_version, created_at
  from {schema}.message_log_{stream}
 where compaction_rank is not null
   and message_key = %(key)s
 order by id desc
 limit %(limit)s

-- name: compact
-- Look at the next messages that take part in compaction, in the order of their keys, and remove those that a greater
-- one of their key has superseded for so long, that every group has passed, and of which no group has anything left to
-- do. Their rows of superseded messages go with them. What waits for its time or for a process that reads its version
-- waits no more once it is superseded, and goes next time. One row, also when there was nothing to look at.
with looked_at as materialized (
    select id, message_key, schema_version, compaction_rank, created_at
      from {schema}.message_log_{stream}
     where compaction_rank is not null
       and (message_key, id) > (%(after_key)s, %(after_id)s)
     order by message_key, id
     limit %(limit)s
),
reading as materialized (
    -- As consumer_group_status says what is committed.
    select g.id, least(c.claimed, (select min(l.resolved)
                                     from {schema}.claim_lease l
                                    where l.group_id = g.id)) as committed
      from {schema}.consumer_group_config g
      join {schema}.consumer_group_cursor c on c.group_id = g.id
     where g.stream_id = {stream}
),
outdated as materialized (
    select m.id
      from looked_at m
     -- Looked up one by one: a plain join may read through all the heads.
     cross join lateral (select schema_version, rank, id
                           from {schema}.compaction_head_{stream}
                          where message_key = m.message_key
                          limit 1) as h
     where m.created_at < now() - %(older_than)s::interval
       and (h.schema_version, h.rank, h.id) > (m.schema_version, m.compaction_rank, m.id)
       and m.id <= all(select committed from reading)
),
needed as materialized (
    select e.message_id, e.state
      from reading r
     cross join {schema}.exception_queue_{stream} e
     where e.group_id = r.id
       and e.message_id = any(array(select id from outdated))
       and e.state not in ('superseded', 'cancelled')
),
dismissed as (
    update {schema}.exception_queue_{stream} e
       set state = 'superseded',
           updated_at = now()
     where e.group_id = any(array(select id from reading))
       and e.message_id = any(array(select message_id from needed where state in ('waiting', 'unread')))
       and e.state in ('waiting', 'unread', 'superseded')  -- or all the unread rows may be read, in their own index
),
removed as (
    delete from {schema}.message_log_{stream}
     where id = any(array(select id from outdated except select message_id from needed))
    returning id
),
forgotten as (
    delete from {schema}.exception_queue_{stream}
     where group_id = any(array(select id from reading))
       and message_id = any(array(select id from removed))
       and state in ('superseded', 'cancelled')
)
select (select count(*) from removed) as removed, count(*) = %(limit)s as is_full,
       (array_agg(message_key order by message_key desc, id desc))[1] as last_key,
       (array_agg(id order by message_key desc, id desc))[1] as last_id
  from looked_at
