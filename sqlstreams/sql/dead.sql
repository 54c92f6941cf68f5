-- name: find_dead_letters
-- Read the ids of dead messages behind `after` and up to `through`, in their order; a filter that is null lets all pass.
select e.message_id as id
  from {schema}.exception_queue_{stream} e
 where e.group_id = %(group_id)s
   and e.state = 'dead'
   and e.message_id > %(after)s
   and e.message_id <= %(through)s
   and (%(message_ids)s::bigint[] is null or e.message_id = any(%(message_ids)s::bigint[]))
   and (%(error)s::text is null or strpos(concat_ws(': ', e.error_type, e.error), %(error)s::text) > 0)
   and (%(since)s::timestamptz is null or e.updated_at >= %(since)s::timestamptz)
   and (%(until)s::timestamptz is null or e.updated_at < %(until)s::timestamptz)
   -- The row knows the key only where the group minds it.
   and (%(key)s::text is null
        or %(key)s::text = (select m.message_key from {schema}.message_log_{stream} m where m.id = e.message_id))
 order by e.message_id
 limit %(limit)s

-- name: read_dead_letters
-- Read dead messages by their ids.
select e.message_id, m.message_key, e.error_type, e.error, e.failures, e.delays, e.first_failed_at, e.updated_at,
       m.created_at
  from {schema}.exception_queue_{stream} e
  -- Looked up one by one: a plain join may read through the log.
  left join lateral (select message_key, created_at
                       from {schema}.message_log_{stream}
                      where id = e.message_id
                      limit 1) as m on true
 where e.group_id = %(group_id)s
   and e.state = 'dead'
   and e.message_id = any(%(message_ids)s::bigint[])
 order by e.message_id

-- name: list_deliveries
-- Read what became of the deliveries of one message, the first one first.
select attempt, outcome, error_type, error, hostname, pid, changed_by, at
  from {schema}.delivery_log_{stream}
 where group_id = %(group_id)s
   and message_id = %(message_id)s
 order by id
 limit %(limit)s

-- name: redrive_dead_letters
-- Have dead messages delivered again as if for the first time; the history keeps what was. With a rate they are due one
-- after the other, behind those redriven earlier that still wait: so a redrive that broke off goes on at its pace.
with dead as materialized (
    -- In the order of the ids, so that no two callers wait for each other.
    select message_id, failures + delays as attempt
      from {schema}.exception_queue_{stream}
     where group_id = %(group_id)s
       and state = 'dead'
       and message_id = any(%(message_ids)s::bigint[])
     order by message_id
       for update
),
queued as materialized (
    select can_run_after as until
      from {schema}.exception_queue_{stream}
     where group_id = %(group_id)s
       and state = 'ready'
       and failures = 0
       and delays = 0
       and %(rate)s::float8 is not null
     order by can_run_after desc
     limit 1
),
paced as (
    select message_id,
           greatest(statement_timestamp(), (select until from queued))
               + make_interval(secs => coalesce(row_number() over (order by message_id) / %(rate)s::float8, 0)) as due_at
      from dead
),
redriven as (
    update {schema}.exception_queue_{stream} e
       set state = 'ready',
           failures = 0,
           delays = 0,
           can_run_after = p.due_at,
           updated_at = now()
      from paced p
     where e.group_id = %(group_id)s
       and e.message_id = p.message_id
       and e.message_id = any(%(message_ids)s::bigint[])  -- see claim_exceptions
       and e.state = 'dead'
    returning e.message_id, e.can_run_after
),
logged as (
    insert into {schema}.delivery_log_{stream} (group_id, message_id, attempt, outcome, changed_by)
    select g.id, r.message_id, d.attempt, 'redriven', session_user
      from redriven r
      join dead d using (message_id)
      join {schema}.consumer_group_config g on g.id = %(group_id)s and g.delivery_log <> 'off'
)
select count(*)::int as messages, min(can_run_after) as first_due, max(can_run_after) as last_due
  from redriven

-- name: discard_dead_letters
-- Give up dead messages for good: nothing but the history, and the log, knows of them afterwards.
with dead as materialized (
    select message_id, failures + delays as attempt
      from {schema}.exception_queue_{stream}
     where group_id = %(group_id)s
       and state = 'dead'
       and message_id = any(%(message_ids)s::bigint[])
     order by message_id
       for update
),
discarded as (
    delete from {schema}.exception_queue_{stream} e
     where e.group_id = %(group_id)s
       and e.message_id = any(array(select message_id from dead))  -- see claim_exceptions
       and e.state = 'dead'
    returning e.message_id
),
logged as (
    insert into {schema}.delivery_log_{stream} (group_id, message_id, attempt, outcome, error, changed_by)
    select g.id, r.message_id, d.attempt, 'discarded', %(reason)s, session_user
      from discarded r
      join dead d using (message_id)
      join {schema}.consumer_group_config g on g.id = %(group_id)s and g.delivery_log <> 'off'
)
select message_id as id
  from discarded
 order by message_id
