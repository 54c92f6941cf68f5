-- name: lock_cursor
-- Keep the other processes of the group from claiming until we commit; what follows sees everything they committed.
select claimed, set_config('synchronous_commit', 'off', true)
  from {schema}.consumer_group_cursor
 where group_id = %(group_id)s
   for update

-- name: gate
-- For a range just leased: take the keys that must not run beside others, and defer the messages whose key is taken or
-- which must wait behind an earlier message. Runs while the group's cursor is locked, so that earlier ranges have been
-- through here before. Messages of the keys in `chain`, which this process has already, follow what it holds of them;
-- with `steal`, keys of dead processes are taken: right only for the lowest of their ranges.
with lease as materialized (
    select resolved, high, done, bindings
      from {schema}.claim_lease
     where token = %(token)s
),
keyed as materialized (
    select m.id, m.schema_version, m.message_key, coalesce(m.options ->> 'concurrency', g.concurrency) as concurrency
      from lease l
      join {schema}.message_log_{stream} m
        on m.id > l.resolved
       and m.id <= l.high
       and m.id <> all(l.done)
       and (l.bindings is null or m.routing_key collate "C" like any(l.bindings))
      join {schema}.consumer_group_config g on g.id = %(group_id)s
     where m.message_key is not null
       and coalesce(m.options ->> 'concurrency', g.concurrency) in ('exclusive', 'ordered')
       -- Looked up one by one: of a table that was never analyzed, a join may read all the rows of the group each time.
       and (select true
              from {schema}.exception_queue_{stream} e
             where e.group_id = %(group_id)s
               and e.message_id = m.id) is null
),
behind as materialized (
    select k.message_key
      from (select message_key, max(id) as id from keyed where concurrency = 'ordered' group by message_key) as k
     where (select true
              from {schema}.exception_queue_{stream} e
             where e.group_id = %(group_id)s
               and e.message_key = k.message_key
               and e.concurrency = 'ordered'
               and (e.state in ('ready', 'inflight', 'deferred', 'unread')
                    or e.state = 'waiting' and e.concurrency = 'ordered')
               and e.message_id < k.id
             limit 1)
),
acquired as (
    -- In the order of the keys, so that no two processes wait for each other.
    insert into {schema}.message_key_lease as h (group_id, message_key, instance_id)
    select %(group_id)s, message_key, %(instance_id)s
      from keyed
     where message_key not in (select message_key from behind)
     group by message_key
     order by message_key
    on conflict (group_id, message_key) do update
       set instance_id = excluded.instance_id
     where h.instance_id = excluded.instance_id and h.message_key = any(%(chain)s::text[])
        or %(steal)s and not exists (select
                                       from {schema}.consumer_instance i
                                      where i.id = h.instance_id
                                        and i.expires_at >= now())
    returning h.message_key
),
deferred as (
    insert into {schema}.exception_queue_{stream}
           (group_id, message_id, state, can_run_after, schema_version, message_key, concurrency)
    select %(group_id)s, id, 'deferred', now(), schema_version, message_key, concurrency
      from keyed
     where message_key not in (select message_key from acquired)
    returning message_id
),
marked as (
    update {schema}.claim_lease
       set done = done || array(select message_id from deferred)
     where token = %(token)s
)
select id, message_key, concurrency,
       message_key not in (select message_key from acquired) as deferred
  from keyed
 order by id

-- name: release_keys
-- Give up keys of which this process holds no message any more.
delete from {schema}.message_key_lease
 where group_id = %(group_id)s
   and message_key = any(%(keys)s::text[])
   and instance_id = %(instance_id)s
returning message_key, set_config('synchronous_commit', 'off', true)

-- name: promote
-- Let the next message of free keys run. Asked after every change that may have freed one, in a transaction of its own:
-- of two such changes at the same time at least the later one sees the other.
with next_of_key as (
    select n.message_id
      from unnest(%(keys)s::text[]) as k (message_key)
     cross join lateral (
           -- In order the first open message is next; else the first that waits for the key is.
           select e.message_id
             from {schema}.exception_queue_{stream} e
            where e.group_id = %(group_id)s
              and e.message_key = k.message_key
              and e.concurrency is not null
              and (e.state in ('ready', 'inflight', 'deferred', 'unread')
                   or e.state = 'waiting' and e.concurrency = 'ordered')
              and (e.state = 'deferred' or e.concurrency = 'ordered')
            order by e.message_id
            limit 1) as n
     where not exists (select
                         from {schema}.message_key_lease h
                        where h.group_id = %(group_id)s
                          and h.message_key = k.message_key)
)
update {schema}.exception_queue_{stream} e
   set state = 'ready',
       can_run_after = now(),
       updated_at = now()
  from next_of_key n
 where e.group_id = %(group_id)s
   and e.message_id = n.message_id
   and e.state = 'deferred'
returning e.message_id, set_config('synchronous_commit', 'off', true)

-- name: free_keys
-- Give up keys of processes that are gone and have left nothing to take over, and name every key that messages wait for.
with freed as (
    delete from {schema}.message_key_lease h
     where h.group_id = %(group_id)s
       and not exists (select
                         from {schema}.consumer_instance i
                        where i.id = h.instance_id
                          and i.expires_at >= now())
       and not exists (select
                         from {schema}.claim_lease l
                         left join {schema}.consumer_instance i on i.id = l.instance_id
                        where l.group_id = h.group_id
                          and (i.id is null or i.expires_at < now()))
       and not exists (select
                         from {schema}.exception_queue_{stream} e
                        where e.group_id = h.group_id
                          and e.message_key = h.message_key
                          and e.concurrency is not null
                          and e.state = 'inflight')
    returning h.message_key
)
select message_key, set_config('synchronous_commit', 'off', true)
  from (select message_key from freed
         union
        select message_key
          from {schema}.exception_queue_{stream}
         where group_id = %(group_id)s
           and concurrency is not null
           and state = 'deferred') as k

-- name: list_blocked_keys
-- Read the keys whose messages wait, how many wait, and what they wait for: the first open message, or the process that
-- has the key.
select b.message_key, b.waiting, b.first_id, f.message_id as blocked_by, f.state, f.failures, f.can_run_after, f.error,
       h.instance_id, i.hostname, i.pid
  from (select message_key, count(*) as waiting, min(message_id) as first_id
          from {schema}.exception_queue_{stream}
         where group_id = %(group_id)s
           and concurrency is not null
           and state = 'deferred'
         group by message_key
         order by count(*) desc, message_key
         limit %(limit)s) as b
  left join lateral (
       select e.message_id, e.state, e.failures, e.can_run_after, e.error
         from {schema}.exception_queue_{stream} e
        where e.group_id = %(group_id)s
          and e.message_key = b.message_key
          and e.concurrency is not null
          and (e.state in ('ready', 'inflight', 'unread') or e.state = 'waiting' and e.concurrency = 'ordered')
        order by e.message_id
        limit 1) as f on true
  left join {schema}.message_key_lease h
    on h.group_id = %(group_id)s
   and h.message_key = b.message_key
  left join {schema}.consumer_instance i on i.id = h.instance_id
 order by b.waiting desc, b.message_key

-- name: disown_keys
-- Leave the keys that we know nothing of, or will not go on with, to whoever takes over the ranges of their messages.
update {schema}.message_key_lease
   set instance_id = null
 where group_id = %(group_id)s
   and instance_id = %(instance_id)s
   and message_key <> all(%(known)s::text[])
returning message_key, set_config('synchronous_commit', 'off', true)
