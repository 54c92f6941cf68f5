-- name: claim
-- Finish ranges and lease the next one: the contiguous run of visible ids behind the cursor, and across holes up to
-- `settled`, the id below which nothing can appear any more. The ids are read first and the messages in a second
-- pass, which is cheaper than carrying payloads through (benchmarks/consume.py). When the first id behind the cursor is
-- missing although later ones can be seen, the answer is one row of nulls. A gated claim is followed by `gate`, and
-- waits until the ranges leased without it are finished.
with finished as (
    delete from {schema}.claim_lease
     where token = any(%(finished)s::uuid[])
       and instance_id = %(instance_id)s
),
cursor as materialized (
    -- A crash of the server may undo this and only repeat a delivery, so the commit need not wait for the disk.
    select claimed, set_config('synchronous_commit', 'off', true) as lazily
      from {schema}.consumer_group_cursor
     where group_id = %(group_id)s
       and bindings is null  -- else it is for claim_bound, and this claims nothing
       for update
),
scanned as materialized (
    select id, row_number() over (order by id) as position
      from {schema}.message_log_{stream}
     where id > (select claimed from cursor)
     order by id
     limit %(limit)s
),
taken as materialized (
    select (select claimed from cursor) as claimed, max(id) as high
      from scanned
     where (id = (select claimed from cursor) + position or id <= %(settled)s)
       -- Where keys matter: earlier ranges have been through the gate, and none lies about that nobody has taken over.
       and not (%(gated)s and exists (select
                                        from {schema}.claim_lease l
                                        left join {schema}.consumer_instance i on i.id = l.instance_id
                                       where l.group_id = %(group_id)s
                                         and (not l.gated or i.id is null or i.expires_at < now())))
),
lease as (
    insert into {schema}.claim_lease (token, group_id, instance_id, low, high, resolved, gated)
    select %(token)s, %(group_id)s, %(instance_id)s, claimed + 1, high, claimed, %(gated)s
      from taken
     where high is not null
),
moved as (
    update {schema}.consumer_group_cursor c
       set claimed = taken.high
      from taken
     where c.group_id = %(group_id)s
       and taken.high is not null
)
select m.id, m.payload, m.message_key, m.routing_key, m.options, m.schema_version, m.created_at, m.compaction_rank
  from {schema}.message_log_{stream} m
 where m.id > (select claimed from taken)
   and m.id <= (select high from taken)
 union all
select null, null, null, null, null, null, null, null
  from taken
 where high is null
   and exists (select from scanned)
 order by id

-- name: claim_bound
-- Claim as above for a group with bindings: the limit counts the messages that match, and `scan` ids are looked through
-- for them. What does not match is passed, and a range without a match needs no lease. One row at least: the
-- range passed, whether anything is behind the cursor, and whether the claim was big enough.
with finished as (
    delete from {schema}.claim_lease
     where token = any(%(finished)s::uuid[])
       and instance_id = %(instance_id)s
),
cursor as materialized (
    select claimed, bindings, set_config('synchronous_commit', 'off', true) as lazily
      from {schema}.consumer_group_cursor
     where group_id = %(group_id)s
       for update
),
reach as materialized (
    -- A bound for ids: for a limit that large, a log never analyzed would be read to its end and sorted. From the first
    -- visible one on, so that no run of missing ids is too wide to pass.
    select claimed, (select m.id
                       from {schema}.message_log_{stream} m
                      where m.id > cursor.claimed
                      order by m.id
                      limit 1) + %(scan)s - 1 as until
      from cursor
),
matching as materialized (
    select m.id
      from {schema}.message_log_{stream} m
     where m.id > (select claimed from reach)
       and m.id <= (select until from reach)
       and ((select bindings is null from cursor)
            or m.routing_key collate "C" like any((select bindings from cursor)::text[]))
     order by m.id
     limit %(limit)s
),
scanned as materialized (
    -- Every id up to the last match, since holes are judged by all of them.
    select id, row_number() over (order by id) as position
      from {schema}.message_log_{stream}
     where id > (select claimed from cursor)
       and id <= (select case when count(*) < %(limit)s then (select until from reach) else max(id) end from matching)
),
taken as materialized (
    select (select claimed from cursor) as claimed, max(id) as high
      from scanned
     where (id = (select claimed from cursor) + position or id <= %(settled)s)
       -- Where keys matter: earlier ranges have been through the gate, and none lies about that nobody has taken over.
       and not (%(gated)s and exists (select
                                        from {schema}.claim_lease l
                                        left join {schema}.consumer_instance i on i.id = l.instance_id
                                       where l.group_id = %(group_id)s
                                         and (not l.gated or i.id is null or i.expires_at < now())))
),
lease as (
    insert into {schema}.claim_lease (token, group_id, instance_id, low, high, resolved, gated, bindings)
    select %(token)s, %(group_id)s, %(instance_id)s, claimed + 1, high, claimed, %(gated)s, (select bindings from cursor)
      from taken
     where (select min(id) from matching) <= high
),
moved as (
    update {schema}.consumer_group_cursor c
       set claimed = taken.high
      from taken
     where c.group_id = %(group_id)s
       and taken.high is not null
)
select t.claimed + 1 as low, t.high, exists (select from scanned) as seen,
       (select count(*) from matching) >= %(limit)s
           or (select id
                 from {schema}.message_log_{stream}
                where id > (select until from reach)
                order by id
                limit 1) is not null as is_full,
       m.id, m.payload, m.message_key, m.routing_key, m.options, m.schema_version, m.created_at, m.compaction_rank
  from taken t
  left join {schema}.message_log_{stream} m
    on m.id > (select claimed from taken)
   and m.id <= (select high from taken)
   and m.id = any(array(select id from matching))
 order by m.id

-- name: finish
-- Give back ranges that are finished to the last message.
delete from {schema}.claim_lease
 where token = any(%(finished)s::uuid[])
   and instance_id = %(instance_id)s
returning token, set_config('synchronous_commit', 'off', true)

-- name: disown
-- Free the ranges that the server thinks we hold and we know nothing of: the answer to a claim was lost, or a crash of
-- the server undid a finish.
update {schema}.claim_lease
   set instance_id = null
 where instance_id = %(instance_id)s
   and group_id = %(group_id)s
   and token <> all(%(known)s::uuid[])
returning token, set_config('synchronous_commit', 'off', true)

-- name: lock_loose_leases
-- Wait for whoever still writes to ranges that nobody holds any more. Where keys matter, the lowest of them has to be
-- taken first, and to take what is not locked would pass it.
select l.token
  from {schema}.claim_lease l
  left join {schema}.consumer_instance i on i.id = l.instance_id
 where l.group_id = %(group_id)s
   and (i.id is null or i.expires_at < now() and i.id <> %(instance_id)s)
 order by l.low
   for update of l

-- name: take_over
-- Lease a range that nobody holds any more: freed by a clean stop, or of another process that stopped renewing
-- (recorded). Our own, when we were late to renew, are still being worked on.
-- Messages with an exception row live on there and are not delivered again from here. The message that the dead process
-- was running alone is charged with its death.
with loose as materialized (
    select l.token, l.instance_id, l.low, l.high, l.resolved, l.done, i.hostname, i.pid, i.id is not null as died,
           case when i.id is not null and l.running > l.resolved and l.running <> all(l.done) then l.running end as killer,
           set_config('synchronous_commit', 'off', true) as lazily
      from {schema}.claim_lease l
      left join {schema}.consumer_instance i on i.id = l.instance_id
     where l.group_id = %(group_id)s
       and (i.id is null or i.expires_at < now() and i.id <> %(instance_id)s)
     order by l.low
     limit 1
       for update of l skip locked
),
fenced as (
    -- Unless it renewed its leases at this very moment.
    update {schema}.consumer_instance i
       set fenced = true
      from loose
     where i.id = loose.instance_id
       and i.expires_at < now()
    returning i.id
),
taken as (
    update {schema}.claim_lease l
       set token = %(token)s,
           instance_id = %(instance_id)s,
           reclaims = l.reclaims + loose.died::int,
           done = case when loose.killer is null then l.done else l.done || loose.killer end,
           running = null,
           gated = %(gated)s,
           claimed_at = now()
      from loose
     where l.token = loose.token
       and (not loose.died or exists (select from fenced))
    returning l.low, l.high, l.resolved, l.done, l.bindings, l.reclaims, loose.died
),
charged as (
    insert into {schema}.exception_queue_{stream}
           (group_id, message_id, state, failures, can_run_after, schema_version, error_type, error, message_key,
            concurrency)
    -- Dead when it is taken again, should its retries be spent.
    select g.id, m.id, 'ready', 1, now() + g.retry_base, m.schema_version,
           'ProcessDied', 'the process died while it ran this message alone', m.message_key,
           case when m.message_key is not null
                then nullif(coalesce(m.options ->> 'concurrency', g.concurrency), 'parallel') end
      from loose
      join {schema}.message_log_{stream} m on m.id = loose.killer
      join {schema}.consumer_group_config g on g.id = %(group_id)s
    on conflict (group_id, message_id) do nothing
    returning message_id, state, error_type, error
),
logged as (
    insert into {schema}.delivery_log_{stream}
           (group_id, message_id, attempt, outcome, error_type, error, hostname, pid)
    select g.id, c.message_id, 1, case c.state when 'dead' then 'dead' else 'died' end, c.error_type, c.error,
           l.hostname, l.pid
      from charged c
      join loose l on l.killer = c.message_id
      join {schema}.consumer_group_config g on g.id = %(group_id)s and g.delivery_log <> 'off'
),
recorded as (
    insert into {schema}.reclaim_log
           (group_id, low, high, resolved, done, from_instance, from_hostname, from_pid, to_instance)
    select %(group_id)s, low, high, resolved, done, instance_id, hostname, pid, %(instance_id)s
      from loose
     where died
)
select t.low, t.high, t.died, t.reclaims, (select message_id from charged) as killer, m.id, m.payload, m.message_key, m.routing_key, m.options, m.schema_version, m.created_at, m.compaction_rank
  from taken t
  left join {schema}.message_log_{stream} m
    on m.id > t.resolved
   and m.id <= t.high
   and m.id <> all(t.done)
   and (t.bindings is null or m.routing_key collate "C" like any(t.bindings))
   -- Looked up one by one: `not exists` may become a join that reads all the dead rows of the group.
   and (select true
          from {schema}.exception_queue_{stream} e
         where e.group_id = %(group_id)s
           and e.message_id = m.id) is null
 order by m.id

-- name: record_exceptions
-- Give messages of leased ranges rows of their own, if the lease is still ours, and mark them done in it: the range
-- never delivers them again, even when the row is gone by then. The lock on the lease keeps a process that takes the
-- range over from reading it before this can be seen.
with failed as (
    select f.token, f.message_id, f.outcome, f.state, f.pause, f.error_type, f.error, f.schema_version, f.message_key,
           f.concurrency
      from unnest(%(tokens)s::uuid[], %(message_ids)s::bigint[], %(outcomes)s::text[], %(states)s::text[],
                  %(pauses)s::float8[], %(error_types)s::text[], %(errors)s::text[], %(schema_versions)s::int[],
                  %(message_keys)s::text[], %(concurrencies)s::text[])
        as f (token, message_id, outcome, state, pause, error_type, error, schema_version, message_key, concurrency)
),
held as materialized (
    select token, resolved, done
      from {schema}.claim_lease
     where token = any(%(tokens)s::uuid[])
       and instance_id = %(instance_id)s
       for update
),
fresh as (
    -- When the answer was lost this is asked again, and the row may have been handled and removed meanwhile.
    select f.message_id, f.outcome, f.state, f.pause, f.error_type, f.error, f.schema_version, f.message_key,
           f.concurrency, f.token
      from failed f
      join held h using (token)
     where f.message_id > h.resolved
       and f.message_id <> all(h.done)
),
marked as (
    update {schema}.claim_lease l
       set done = l.done || f.message_ids
      from (select token, array_agg(message_id) as message_ids from fresh group by token) as f
     where l.token = f.token
),
recorded as (
    insert into {schema}.exception_queue_{stream}
           (group_id, message_id, state, failures, delays, can_run_after, schema_version, error_type, error, message_key,
            concurrency)
    select %(group_id)s,
           f.message_id,
           f.state,
           (f.outcome in ('failed', 'dead'))::int,
           (f.outcome = 'delayed')::int,
           clock_timestamp() + make_interval(secs => f.pause),
           f.schema_version,
           nullif(f.error_type, ''),
           nullif(f.error, ''),
           f.message_key,
           f.concurrency
      from fresh f
    on conflict (group_id, message_id) do nothing
    returning message_id, state, failures, delays, error_type, error, can_run_after
),
logged as (
    insert into {schema}.delivery_log_{stream}
           (group_id, message_id, attempt, outcome, error_type, error, hostname, pid)
    select g.id, r.message_id, r.failures + r.delays,
           case when r.state = 'dead' then 'dead' when r.delays > 0 then 'delayed' else 'failed' end,
           r.error_type, r.error, i.hostname, i.pid
      from recorded r
      join {schema}.consumer_group_config g on g.id = %(group_id)s and g.delivery_log <> 'off'
      left join {schema}.consumer_instance i on i.id = %(instance_id)s
     where r.failures + r.delays > 0  -- else it was no delivery
)
-- Committed durably: with the range finished after a crash of the server, the row is all that is left of the message.
select message_id, state, extract(epoch from can_run_after - clock_timestamp())::float8 as due_in
  from recorded

-- name: claim_exceptions
-- Take rows that are due, the longest due first, and such of `versions` as no process could read that met them. As many
-- as handlers are `free` start at once, and say so; a row that may be a killer says so right before it starts. A row
-- whose key matters needs the key as well, and brings the messages that wait right behind it; without the key it waits
-- for that. Such a key is named in a row without an id: whoever had it may have given it up before anyone could see that
-- something waits.
with retries as materialized (
    select message_id, message_key, concurrency, alone, can_run_after,
           set_config('synchronous_commit', 'off', true) as lazily
      from {schema}.exception_queue_{stream}
     where group_id = %(group_id)s
       and state = 'ready'
       and can_run_after <= now()
     order by can_run_after
     limit %(limit)s
       for update skip locked
),
unread as materialized (
    select message_id, message_key, concurrency, alone, can_run_after
      from {schema}.exception_queue_{stream}
     where group_id = %(group_id)s
       and state = 'unread'
       and schema_version = any(%(versions)s::int[])
     limit %(limit)s
       for update skip locked
),
waited as materialized (
    -- Messages that were produced for later, at their time: fresh ones, and as many at a time as of those.
    select message_id, message_key, concurrency, alone, can_run_after
      from {schema}.exception_queue_{stream}
     where group_id = %(group_id)s
       and state = 'waiting'
       and can_run_after <= now()
     order by can_run_after
     limit %(waited)s
       for update skip locked
),
due as materialized (
    select message_id, message_key, concurrency, alone, can_run_after from retries
     union all
    select message_id, message_key, concurrency, alone, can_run_after from waited
     union all
    select message_id, message_key, concurrency, alone, can_run_after from unread
),
first_of_key as materialized (
    select distinct on (d.message_key) d.message_id, d.message_key, d.alone
      from due d
     where d.concurrency is not null
       and not (d.concurrency = 'ordered'
                and exists (select
                              from {schema}.exception_queue_{stream} e
                             where e.group_id = %(group_id)s
                               and e.message_key = d.message_key
                               and e.concurrency = 'ordered'
                               and (e.state in ('ready', 'inflight', 'deferred', 'unread')
                                    or e.state = 'waiting' and e.concurrency = 'ordered')
                               and e.message_id < d.message_id))
     order by d.message_key, d.message_id
),
acquired as (
    insert into {schema}.message_key_lease (group_id, message_key, instance_id)
    select %(group_id)s, message_key, %(instance_id)s
      from first_of_key
     order by message_key
    on conflict (group_id, message_key) do nothing
    returning message_key
),
heads as materialized (
    select d.message_id, d.alone, row_number() over (order by d.alone, d.can_run_after) <= %(free)s as starts
      from due d
     where d.concurrency is null
        or d.message_id in (select f.message_id from first_of_key f join acquired a using (message_key))
),
led as materialized (
    -- Keys of which nothing else is under way: what is deferred behind them may come along.
    select f.message_id, f.message_key
      from first_of_key f
      join acquired a using (message_key)
     where not f.alone
       -- Looked up one by one, each by the index of what is under way: the key may have any number of deferred rows.
       and (select true
              from {schema}.exception_queue_{stream} o
             where o.group_id = %(group_id)s
               and o.message_key = f.message_key
               and o.concurrency is not null
               and (o.state in ('ready', 'inflight', 'unread') or o.state = 'waiting' and o.concurrency = 'ordered')
               and o.message_id <> f.message_id
             limit 1) is null
),
followers as materialized (
    select e.message_id
      from led l
     cross join lateral (
           -- Up to the first that has to run alone: those behind it must not pass it.
           select message_id, bool_or(alone) over (order by message_id) as waits_longer
             from (select message_id, alone
                     from {schema}.exception_queue_{stream}
                    where group_id = %(group_id)s
                      and message_key = l.message_key
                      and message_id > l.message_id
                      and state = 'deferred'
                      and concurrency is not null
                    order by message_id
                    limit %(followers)s) as behind) as e
     where not e.waits_longer
     order by l.message_key, e.message_id
     limit %(followers)s
),
taken as (
    update {schema}.exception_queue_{stream} e
       set state = 'inflight',
           instance_id = %(instance_id)s,
           token = %(token)s,
           started = e.message_id in (select message_id from heads where starts and not alone),
           updated_at = now()
     where e.group_id = %(group_id)s
       -- Arrays, since for a join the planner may read all the dead rows of the group.
       and e.message_id = any(array(select message_id from heads union all select message_id from followers))
       and e.state in ('waiting', 'ready', 'deferred', 'unread')
    returning e.message_id, e.failures, e.delays, e.concurrency, e.alone
),
blocked as (
    update {schema}.exception_queue_{stream} e
       set state = 'deferred',
           updated_at = now()
     where e.group_id = %(group_id)s
       and e.message_id = any(array(select message_id from due except select message_id from heads))
    returning e.message_key
)
select m.id, m.payload, m.message_key, m.routing_key, m.options, m.schema_version, m.created_at,
       m.compaction_rank, t.failures, t.delays, t.concurrency, t.alone
  from taken t
  join {schema}.message_log_{stream} m on m.id = t.message_id
 union all
select null, null, message_key, null, null, null, null, null, null, null, null, null
  from blocked
 order by id

-- name: complete_exceptions
-- Remove rows whose message was handled, if they are still ours; the history has it where it keeps successes.
with completed as (
    delete from {schema}.exception_queue_{stream}
     where group_id = %(group_id)s
       and message_id = any(%(message_ids)s::bigint[])
       and state = 'inflight'  -- as the token says, and now there is an index without the dead rows
       and token = %(token)s
    returning message_id, failures, delays, set_config('synchronous_commit', 'off', true) as lazily
),
logged as (
    insert into {schema}.delivery_log_{stream} (group_id, message_id, attempt, outcome, hostname, pid)
    select g.id, c.message_id, c.failures + c.delays + 1, 'succeeded', i.hostname, i.pid
      from completed c
      join {schema}.consumer_group_config g on g.id = %(group_id)s and g.delivery_log = 'all'
      left join {schema}.consumer_instance i on i.id = %(instance_id)s
)
select message_id, lazily
  from completed

-- name: record_successes
-- Keep in the history that messages of leased ranges were handled, if the lease is still ours, and mark them done in it:
-- with the one goes the other, so that no success is kept twice and none is taken for done that was not kept.
with succeeded as (
    select s.token, s.message_id
      from unnest(%(tokens)s::uuid[], %(message_ids)s::bigint[]) as s (token, message_id)
),
held as materialized (
    select token, resolved, done, set_config('synchronous_commit', 'off', true) as lazily
      from {schema}.claim_lease
     where token = any(%(tokens)s::uuid[])
       and instance_id = %(instance_id)s
       for update
),
fresh as (
    -- As for record_exceptions, this may be asked again.
    select s.token, s.message_id
      from succeeded s
      join held h using (token)
     where s.message_id > h.resolved
       and s.message_id <> all(h.done)
),
marked as (
    update {schema}.claim_lease l
       set done = l.done || f.message_ids
      from (select token, array_agg(message_id) as message_ids from fresh group by token) as f
     where l.token = f.token
)
insert into {schema}.delivery_log_{stream} (group_id, message_id, attempt, outcome, hostname, pid)
select g.id, f.message_id, 1, 'succeeded', i.hostname, i.pid
  from fresh f
  join {schema}.consumer_group_config g on g.id = %(group_id)s and g.delivery_log = 'all'
  left join {schema}.consumer_instance i on i.id = %(instance_id)s

-- name: complete_in_transaction
-- Record messages of a leased range as done in the transaction of their handler; it fails unless the lease is still ours
-- and none of them is done. The last statement before the commit, for until then nobody else can write to the lease.
with completed as (
    update {schema}.claim_lease l
       set resolved = greatest(l.resolved, %(resolved)s),
           done = array(select id
                          from unnest(l.done || %(message_ids)s::bigint[]) as d (id)
                         where id > greatest(l.resolved, %(resolved)s))
     where l.token = %(token)s
       and l.instance_id = %(instance_id)s
       and l.resolved < all(%(message_ids)s::bigint[])
       and not l.done && %(message_ids)s::bigint[]
    returning l.group_id, l.instance_id
),
logged as (
    insert into {schema}.delivery_log_{stream} (group_id, message_id, attempt, outcome, hostname, pid)
    select g.id, d.message_id, 1, 'succeeded', i.hostname, i.pid
      from completed c
      join {schema}.consumer_group_config g on g.id = c.group_id and g.delivery_log = 'all'
      left join {schema}.consumer_instance i on i.id = c.instance_id
     cross join unnest(%(message_ids)s::bigint[]) as d (message_id)
)
select {schema}.require_lease(exists (select from completed))

-- name: complete_exceptions_in_transaction
-- Remove rows in the transaction of their messages' handler; it fails unless all of them are still ours.
with completed as (
    delete from {schema}.exception_queue_{stream}
     where group_id = %(group_id)s
       and message_id = any(%(message_ids)s::bigint[])
       and state = 'inflight'
       and token = %(token)s
    returning message_id, failures, delays
),
logged as (
    insert into {schema}.delivery_log_{stream} (group_id, message_id, attempt, outcome, hostname, pid)
    select g.id, c.message_id, c.failures + c.delays + 1, 'succeeded', i.hostname, i.pid
      from completed c
      join {schema}.consumer_group_config g on g.id = %(group_id)s and g.delivery_log = 'all'
      left join {schema}.consumer_instance i on i.id = %(instance_id)s
)
select {schema}.require_lease((select count(*) from completed) = cardinality(%(message_ids)s::bigint[]))

-- name: return_exceptions
-- Put rows back after a failed or delayed delivery, if they are still ours.
with returned as (
    update {schema}.exception_queue_{stream} e
       set state = f.state,
           failures = e.failures + (f.outcome in ('failed', 'dead'))::int,
           delays = e.delays + (f.outcome = 'delayed')::int,
           can_run_after = clock_timestamp() + make_interval(secs => f.pause),
           instance_id = null,
           token = null,
           started = false,
           first_failed_at = case when e.failures + e.delays = 0 then now() else e.first_failed_at end,
           -- What was not handled this time keeps the error of the time before.
           error_type = coalesce(nullif(f.error_type, ''), e.error_type),
           error = coalesce(nullif(f.error, ''), e.error),
           updated_at = now()
      from unnest(%(message_ids)s::bigint[], %(outcomes)s::text[], %(states)s::text[], %(pauses)s::float8[],
                  %(error_types)s::text[], %(errors)s::text[])
        as f (message_id, outcome, state, pause, error_type, error)
     where e.group_id = %(group_id)s
       and e.message_id = f.message_id
       and e.message_id = any(%(message_ids)s::bigint[])  -- or all the dead rows of the group may be read for the join
       and e.state = 'inflight'
       and e.token = %(token)s
    returning e.message_id, e.state, e.failures, e.delays, e.error_type, e.error, e.can_run_after, f.outcome,
              set_config('synchronous_commit', 'off', true) as lazily
),
logged as (
    insert into {schema}.delivery_log_{stream}
           (group_id, message_id, attempt, outcome, error_type, error, hostname, pid)
    select g.id, r.message_id, r.failures + r.delays, case r.state when 'dead' then 'dead' else r.outcome end,
           r.error_type, r.error, i.hostname, i.pid
      from returned r
      join {schema}.consumer_group_config g on g.id = %(group_id)s and g.delivery_log <> 'off'
      left join {schema}.consumer_instance i on i.id = %(instance_id)s
     where r.outcome in ('failed', 'delayed', 'dead', 'spent')
)
select message_id, state, extract(epoch from can_run_after - clock_timestamp())::float8 as due_in, lazily
  from returned

-- name: release_exceptions
-- Put rows back untouched that we took and do not know of or will not handle to an end.
update {schema}.exception_queue_{stream}
   set state = case when concurrency is null then 'ready' else 'deferred' end,
       instance_id = null,
       token = null,
       started = false,
       updated_at = now()
 where group_id = %(group_id)s
   and state = 'inflight'
   and instance_id = %(instance_id)s
   and token <> all(%(known)s::uuid[])
returning message_id

-- name: free_exceptions
-- Put back the rows of other processes that stopped renewing: those that were said to start are charged once. Of the
-- others, which waited for a handler, any may have started all the same: they say so first from now on.
with orphaned as materialized (
    select e.message_id, e.token, e.started, i.hostname, i.pid, i.id, set_config('synchronous_commit', 'off', true) as lazily
      from {schema}.exception_queue_{stream} e
      left join {schema}.consumer_instance i on i.id = e.instance_id
     where e.group_id = %(group_id)s
       and e.state = 'inflight'
       and (i.id is null or i.expires_at < now() and i.id <> %(instance_id)s)
     limit 1000
       for update of e skip locked
),
recorded as (
    insert into {schema}.reclaim_log
           (group_id, low, high, resolved, done, from_instance, from_hostname, from_pid, to_instance)
    select %(group_id)s, message_id, message_id, message_id - 1, '{}', id, hostname, pid, null
      from orphaned
),
freed as (
    update {schema}.exception_queue_{stream} e
       set state = case when not o.started and e.concurrency is not null then 'deferred'
                        else 'ready'  -- and dead when it is taken again, should its retries be spent
                   end,
           failures = e.failures + o.started::int,
           can_run_after = case when o.started then now() + g.retry_base else now() end,
           instance_id = null,
           token = null,
           started = false,
           alone = e.alone or not o.started,
           error_type = case when o.started then 'ProcessDied' else e.error_type end,
           error = case when o.started then 'the process stopped renewing its lease while it worked on this message'
                        else e.error end,
           updated_at = now()
      from orphaned o
      join {schema}.consumer_group_config g on g.id = %(group_id)s
     where e.group_id = %(group_id)s
       and e.message_id = o.message_id
       and e.message_id = any(array(select message_id from orphaned))  -- see claim_exceptions
       and e.token = o.token
    returning e.message_id, e.state, e.failures, e.delays, e.error_type, e.error, e.can_run_after,
              o.started, o.hostname, o.pid
),
logged as (
    insert into {schema}.delivery_log_{stream}
           (group_id, message_id, attempt, outcome, error_type, error, hostname, pid)
    select g.id, f.message_id, f.failures + f.delays, case f.state when 'dead' then 'dead' else 'died' end,
           f.error_type, f.error, f.hostname, f.pid
      from freed f
      join {schema}.consumer_group_config g on g.id = %(group_id)s and g.delivery_log <> 'off'
     where f.started
)
select message_id, state, extract(epoch from can_run_after - clock_timestamp())::float8 as due_in
  from freed

-- name: start_exception
-- Note that the handler of a row that may be a killer starts now.
update {schema}.exception_queue_{stream}
   set started = true,
       updated_at = now()
 where group_id = %(group_id)s
   and message_id = %(message_id)s
   and token = %(token)s
returning message_id, set_config('synchronous_commit', 'off', true)

-- name: note_running
-- Note, before a message of a taken-over range begins, that it runs alone now: if the process dies, it was this one. And
-- afterwards, with null, that none does.
update {schema}.claim_lease
   set running = %(message_id)s::bigint,
       resolved = greatest(resolved, %(resolved)s)
 where token = %(token)s
   and instance_id = %(instance_id)s
returning token, set_config('synchronous_commit', 'off', true)

-- name: list_unread_versions
-- Read of which versions messages wait for a process that can read them, and how many.
select schema_version, count(*) as waiting, min(message_id) as first_id, min(updated_at) as since
  from {schema}.exception_queue_{stream}
 where group_id = %(group_id)s
   and state = 'unread'
 group by schema_version
 order by schema_version
