-- name: insert_group
-- Register a consumer group, unless there is one of this name; a second caller waits for the first to commit.
insert into {schema}.consumer_group_config
       (stream_id, name, timeout, max_retries, max_delays, retry_base, retry_exponent, retry_cap, concurrency, limits,
        delivery_log, start_at, bindings)
values (%(stream_id)s, %(name)s, %(timeout)s, %(max_retries)s, %(max_delays)s, %(retry_base)s, %(retry_exponent)s,
        %(retry_cap)s, %(concurrency)s, %(limits)s, %(delivery_log)s, %(start_at)s,
        %(bindings)s::text[])
on conflict (stream_id, name) do nothing
returning id

-- name: insert_cursor
-- Give a new group its cursor: everything up to `claimed` counts as handled.
insert into {schema}.consumer_group_cursor (group_id, claimed, bindings)
values (%(group_id)s, %(claimed)s, %(patterns)s::text[])

-- name: update_group
-- Give a group the settings that were declared last, but for its bindings.
update {schema}.consumer_group_config
   set timeout = %(timeout)s,
       max_retries = %(max_retries)s,
       max_delays = %(max_delays)s,
       retry_base = %(retry_base)s,
       retry_exponent = %(retry_exponent)s,
       retry_cap = %(retry_cap)s,
       concurrency = %(concurrency)s,
       limits = %(limits)s,
       delivery_log = %(delivery_log)s,
       updated_at = now()
 where id = %(id)s

-- name: get_group
-- Read one group of a stream by name.
select g.id, s.name as stream, g.name, g.timeout, g.max_retries, g.max_delays, g.retry_base, g.retry_exponent, g.retry_cap,
       g.concurrency, g.limits, g.delivery_log, g.start_at, g.bindings, g.created_at, g.updated_at
  from {schema}.consumer_group_config g
  join {schema}.stream_config s on s.id = g.stream_id
 where g.stream_id = %(stream_id)s
   and g.name = %(name)s

-- name: reread_group
-- Read one group by its id, whatever it is called by now.
select g.id, s.name as stream, g.name, g.timeout, g.max_retries, g.max_delays, g.retry_base, g.retry_exponent, g.retry_cap,
       g.concurrency, g.limits, g.delivery_log, g.start_at, g.bindings, g.created_at, g.updated_at
  from {schema}.consumer_group_config g
  join {schema}.stream_config s on s.id = g.stream_id
 where g.id = %(group_id)s

-- name: list_groups
-- Read every group, or those of one stream.
select g.id, s.name as stream, g.name, g.timeout, g.max_retries, g.max_delays, g.retry_base, g.retry_exponent, g.retry_cap,
       g.concurrency, g.limits, g.delivery_log, g.start_at, g.bindings, g.created_at, g.updated_at
  from {schema}.consumer_group_config g
  join {schema}.stream_config s on s.id = g.stream_id
 where %(stream_id)s::bigint is null
    or g.stream_id = %(stream_id)s::bigint
 order by s.name, g.name

-- name: rename_group
-- Give a group another name; its cursor stays.
update {schema}.consumer_group_config
   set name = %(new_name)s,
       updated_at = now()
 where id = %(id)s
   and not exists (select
                     from {schema}.consumer_group_config
                    where stream_id = %(stream_id)s
                      and name = %(new_name)s)
returning id

-- name: delete_group
-- Remove a group with its cursor and leases.
delete from {schema}.consumer_group_config
 where id = %(id)s

-- name: delete_exceptions
-- Remove a group's exception rows.
delete from {schema}.exception_queue_{stream}
 where group_id = %(group_id)s

-- name: delete_deliveries
-- Remove a group's history of deliveries.
delete from {schema}.delivery_log_{stream}
 where group_id = %(group_id)s

-- name: log_group
-- Keep what was declared, by whom and when.
insert into {schema}.consumer_group_config_log (group_id, stream_id, action, config)
select %(group_id)s, %(stream_id)s, %(action)s, %(config)s::jsonb

-- name: get_group_status
-- Read where one group stands.
select stream, name, id, head, claimed, committed, lag, lag_time, leases, processes, waiting, next_due_at, ready,
       inflight, deferred, unread, dead, superseded, reclaims, lost
  from {schema}.consumer_group_status
 where id = %(group_id)s

-- name: list_reclaims
-- Read what was taken over from dead processes of a group, the latest first.
select group_id, low, high, resolved, done, from_hostname, from_pid, reclaimed_at
  from {schema}.reclaim_log
 where group_id = %(group_id)s
 order by id desc
 limit %(limit)s
