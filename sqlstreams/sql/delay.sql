-- name: wait_until_due
-- For a range just leased: give messages that were produced for later rows of their own, in which they wait until they
-- are due. Those that were cancelled get one too, for good. Nobody cancels any of them until we commit, so that each is
-- either cancelled here or found waiting. By the clock of this server, as everything that is due.
with lease as materialized (
    select resolved, high, done, bindings
      from {schema}.claim_lease
     where token = %(token)s
),
asked as materialized (
    select m.id, m.schema_version, m.message_key, m.options, m.created_at
      from lease l
      join {schema}.message_log_{stream} m
        on m.id > l.resolved
       and m.id <= l.high
       and m.id <> all(l.done)
       and (l.bindings is null or m.routing_key collate "C" like any(l.bindings))
     where m.options is not null
       and m.options::text ~ '"(deliver_at|delay)":'
       and (select true
              from {schema}.exception_queue_{stream} e
             where e.group_id = %(group_id)s
               and e.message_id = m.id) is null
     order by m.id
       for share of m
),
judged as materialized (
    select a.id, a.schema_version, a.message_key, a.options, d.due_at,
           coalesce(a.options ->> 'cancelled' = 'true', false) as is_cancelled
      from asked a
     cross join lateral (select {schema}.due_at(a.options, a.created_at) as due_at offset 0) as d
),
recorded as (
    insert into {schema}.exception_queue_{stream}
           (group_id, message_id, state, can_run_after, schema_version, message_key, concurrency)
    select g.id, j.id, case when j.is_cancelled then 'cancelled' else 'waiting' end, coalesce(j.due_at, now()),
           j.schema_version, j.message_key,
           case when j.message_key is not null
                then nullif(coalesce(j.options ->> 'concurrency', g.concurrency), 'parallel') end
      from judged j
      join {schema}.consumer_group_config g on g.id = %(group_id)s
     where j.is_cancelled
        or j.due_at > clock_timestamp()
    returning message_id, state, can_run_after
),
marked as (
    update {schema}.claim_lease
       set done = done || array(select message_id from recorded)
     where token = %(token)s
       and exists (select from recorded)
)
select message_id, state, extract(epoch from can_run_after - clock_timestamp())::float8 as due_in
  from recorded

-- name: mark_cancelled
-- Note in the log that a message which was produced for later is not to be delivered any more: what claims it from now
-- on knows. The one thing of a message that ever changes.
update {schema}.message_log_{stream}
   set options = (options::jsonb || '{"cancelled": true}')::json
 where id = %(message_id)s
   and {schema}.due_at(options, created_at) is not null
returning id

-- name: cancel_deliveries
-- Once it is noted in the log: end the waiting of a message in every group that takes it, and read what became of it in
-- each. A row that somebody took in this moment is not ours to change. A key that the message kept from others comes along.
with reading as materialized (
    select g.id, g.name, c.claimed, c.bindings
      from {schema}.consumer_group_config g
      join {schema}.consumer_group_cursor c on c.group_id = g.id
     where g.stream_id = {stream}
),
cancelled as (
    update {schema}.exception_queue_{stream} e
       set state = 'cancelled',
           updated_at = now()
     where e.group_id = any(array(select id from reading))
       and e.message_id = %(message_id)s
       and e.state in ('waiting', 'ready', 'deferred', 'unread')
    returning e.group_id, case when e.concurrency is not null then e.message_key end as key
)
select r.name as group, r.id as group_id, c.key,
       case when c.group_id is not null or e.state = 'cancelled' then 'cancelled'
            when e.state in ('dead', 'superseded') then e.state
            when e.state is not null then 'inflight'
            when r.claimed < m.id then 'cancelled'
            when exists (select
                           from {schema}.claim_lease l
                          where l.group_id = r.id
                            and m.id > l.resolved
                            and m.id between l.low and l.high
                            and m.id <> all(l.done)) then 'inflight'
            else 'done' end as outcome
  from reading r
  join {schema}.message_log_{stream} m on m.id = %(message_id)s
  left join cancelled c on c.group_id = r.id
  left join {schema}.exception_queue_{stream} e on e.group_id = r.id and e.message_id = m.id
 where c.group_id is not null
    or e.group_id is not null
    or r.bindings is null
    or m.routing_key collate "C" like any(r.bindings)
 order by r.name

-- name: list_waiting
-- Read the messages that wait until they are due, the first due first: those of one group, or of every group.
select g.name as group, w.message_id as id, m.message_key as key, w.can_run_after as due_at, m.created_at
  from {schema}.consumer_group_config g
 cross join lateral (select e.message_id, e.can_run_after
                       from {schema}.exception_queue_{stream} e
                      where e.group_id = g.id
                        and e.state = 'waiting'
                      order by e.can_run_after
                      limit %(limit)s) as w
  left join lateral (select message_key, created_at
                       from {schema}.message_log_{stream}
                      where id = w.message_id
                      limit 1) as m on true
 where g.stream_id = {stream}
   and (%(of_group)s::bigint is null or g.id = %(of_group)s::bigint)
 order by w.can_run_after, w.message_id, g.name
 limit %(limit)s
