-- name: take_or_renew
-- Renew the manager's lease if it is ours or take it if it is free, and report what the duties did.
select h.id,
       h.term,
       h.retry_in,
       array(select d.name from {schema}.duty_status d where d.suspended order by d.name) as suspended
  -- In this order: everybody locks the rows of the duties first.
  from {schema}.report_duties(%(reports)s::json) as reported
 cross join lateral {schema}.take_or_renew(
           'manager', %(token)s, %(hostname)s, %(pid)s::int, %(library)s, %(ttl)s::double precision) as h

-- name: resign
-- Give the lease back and report what the duties did; whoever stands by hears of it and takes over.
with gone as (
    delete from {schema}.worker_instance
     where worker = 'manager'
       and token = %(token)s
    returning id
)
select {schema}.report_duties(%(reports)s::json),
       (select count(pg_notify(%(channel)s, 'manager')) from gone)

-- name: get_manager
-- Read how many processes may run the manager, and whether any shall.
select target_instances, suspended, term
  from {schema}.worker_config
 where name = 'manager'

-- name: list_manager_instances
-- Read the processes that run the manager.
select id, term, hostname, pid, library, started_at, renewed_at, expires_at, expires_at <= clock_timestamp() as expired
  from {schema}.worker_instance
 where worker = 'manager'
 order by term

-- name: list_duties
-- Read what the manager does, and how that went.
select name, suspended, runs, done, last_run_at, last_took, last_done, running_since, next_run_at, failures, last_error,
       last_failed_at
  from {schema}.duty_status
 order by name

-- name: set_manager_suspended
-- Have nobody run the manager, or somebody again; those who may are told with the commit.
update {schema}.worker_config
   set suspended = %(suspended)s
 where name = 'manager'
returning pg_notify(%(channel)s, 'manager') is null

-- name: set_duty_suspended
-- Have the manager leave a duty alone, or do it again; it is told with the commit.
update {schema}.duty_status
   set suspended = %(suspended)s
 where name = %(name)s
returning pg_notify(%(channel)s, 'manager') is null

-- name: forget_expired
-- Remove processes that are long gone, a bounded number, and count them: consuming ones that hold nothing any more, and
-- the lease of a manager that nobody followed.
with consumers as (
    delete from {schema}.consumer_instance
     where id in (select i.id
                    from {schema}.consumer_instance i
                   where i.expires_at < now() - interval '1 day'
                     and not exists (select from {schema}.claim_lease where instance_id = i.id)
                   limit %(limit)s::bigint
                     for update skip locked)
    returning id
), managers as (
    delete from {schema}.worker_instance
     where expires_at < now() - interval '1 hour'
    returning id
)
select (select count(*) from consumers) + (select count(*) from managers) as count

-- name: list_logs
-- Read how far each stream's log is filled, and how far it can be.
select s.id,
       s.name,
       s.partition_rows,
       {schema}.log_edge(s.id) as edge,
       coalesce(pg_sequence_last_value(to_regclass(
           format('%%I.%%I', {schema_literal}, 'message_log_' || s.id || '_id'))), 0) as last_id
  from {schema}.stream_config s
 order by s.id

-- name: list_outdated_statistics
-- Read the logs of which the server's statistics are outdated, the worst first. It keeps those of the partitions up to
-- date by itself, but never those of a whole log: after the log has grown or shrunk by half, or is a day old, this asks
-- for them. Not of logs with many partitions: analyzing looks at each of them, and none can be added meanwhile.
select s.id, s.name
  from {schema}.stream_config s
 cross join lateral (
       select to_regclass(format('%%I.%%I', {schema_literal}, 'message_log_' || s.id)) as oid) as log
  join pg_class c on c.oid = log.oid
  left join pg_stat_user_tables told on told.relid = log.oid
 cross join lateral (
       select count(*) as partitions, coalesce(sum(t.n_live_tup), 0) as rows, coalesce(sum(t.n_tup_ins), 0) as inserted
         from pg_inherits i
         join pg_stat_user_tables t on t.relid = i.inhrelid
        where i.inhparent = log.oid) as now
 where now.partitions <= %(partitions)s::bigint
   and now.inserted > 0
   and (now.rows > 1000 + 1.5 * greatest(c.reltuples, 0)
        or now.rows < greatest(c.reltuples, 0) / 2 - 1000
        or told.last_analyze < now() - interval '1 day')
 order by abs(now.rows - greatest(c.reltuples, 0)) desc
 limit %(limit)s::bigint

-- name: analyze_log
-- Have the server look at a log as a whole, and at each partition.
analyze {schema}.message_log_{stream}
