-- name: bound_waiting
-- Give up a lock that cannot be had within two seconds, so that whoever waits behind us goes on; and let the transaction
-- end when we say nothing more, should this process freeze with the groups' cursors locked.
select set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '15s', true)

-- name: get_kept
-- Read the first id of a stream that is kept, before when what was removed was produced, and how old messages become.
select kept_from, expired_before, now() - retention as expires_before
  from {schema}.stream_config
 where id = %(stream_id)s

-- name: hold_kept
-- Read the first id of a stream that is kept, and have it stay until we commit.
select kept_from as id
  from {schema}.stream_config
 where id = %(stream_id)s
   for key share

-- name: move_kept
-- Declare what is removed from now on: everything below an id, all of it produced before a time.
update {schema}.stream_config
   set kept_from = %(kept_from)s,
       expired_before = %(expired_before)s
 where id = %(stream_id)s

-- name: list_expiring
-- Read the streams of which retention has something to remove, or has removed something.
select name
  from {schema}.stream_config
 where retention is not null
    or kept_from > 1
 order by id

-- name: list_partitions
-- Read the partitions of a log, the lowest first: the ids that each takes (up to `edge`, exclusive), whether it is being
-- detached, whether an open transaction wrote into it, and the last id that was taken of the whole log.
select b.bounds[1]::bigint as first_id,
       b.bounds[2]::bigint as edge,
       i.inhdetachpending as detaching,
       exists (select
                 from pg_locks l
                where l.locktype = 'relation'
                  and l.relation = i.inhrelid
                  and l.database = (select oid from pg_database where datname = current_database())
                  and l.mode = 'RowExclusiveLock'
                  and l.granted) as written,
       (select last_value from {schema}.message_log_{stream}_id) as taken
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
 cross join lateral (select regexp_match(pg_get_expr(c.relpartbound, c.oid),
                                         'FROM \(''([0-9]+)''\) TO \(''([0-9]+)''\)') as bounds) as b
 where i.inhparent = '{schema}.message_log_{stream}'::regclass
 order by 1

-- name: lock_cursors
-- Keep every group of a stream from claiming, and from being rewound, until we commit.
select c.group_id as id
  from {schema}.consumer_group_cursor c
  join {schema}.consumer_group_config g on g.id = c.group_id
 where g.stream_id = %(stream_id)s
 order by c.group_id
   for update of c

-- name: list_unread
-- Read the first id that each group has not done, the lowest first, and what that means.
select group_id, group_name, first_id, reason
  from {schema}.unread_from({stream})

-- name: find_lowest_head
-- Read the lowest message that counts for its key. Heads only move up, to messages that nobody calls settled yet.
select id, message_key
  from {schema}.compaction_head_{stream}
 order by id
 limit 1

-- name: measure_lost
-- Count the messages below an id that a group has not done: behind its cursor, in open ranges, and waiting after a
-- delivery that did not succeed. The last id that was handed out comes along.
with reading as materialized (
    select claimed, bindings
      from {schema}.consumer_group_cursor
     where group_id = %(group_id)s
),
undone as (
    select m.id, false as waiting
      from reading r
      join {schema}.message_log_{stream} m
        on m.id > r.claimed
       and (r.bindings is null or m.routing_key collate "C" like any(r.bindings))
     where m.id < %(kept_from)s
     union all
    select m.id, false
      from {schema}.claim_lease l
      join {schema}.message_log_{stream} m
        on m.id > l.resolved
       and m.id <= l.high
       and m.id <> all(l.done)
       and (l.bindings is null or m.routing_key collate "C" like any(l.bindings))
     where l.group_id = %(group_id)s
       and m.id < %(kept_from)s
     union all
    select message_id, true
      from {schema}.exception_queue_{stream}
     where group_id = %(group_id)s
       and message_id < %(kept_from)s
       and state in ('waiting', 'ready', 'inflight', 'deferred', 'unread')
)
select (select claimed from reading) as claimed, count(*) as messages, count(*) filter (where waiting) as waiting,
       min(id) as first_id, max(id) as last_id
  from undone

-- name: delete_leases_through
-- Take the ranges up to a position from whoever has them: their tokens prove nothing any more.
delete from {schema}.claim_lease
 where group_id = %(group_id)s
   and high <= %(position)s
returning token

-- name: resolve_leases_through
-- Count what lies up to a position as finished in the ranges that go on behind it.
update {schema}.claim_lease
   set resolved = %(position)s,
       done = array(select d.id from unnest(done) as d (id) where d.id > %(position)s)
 where group_id = %(group_id)s
   and resolved < %(position)s

-- name: measure_expired
-- Count what is below the first id that is kept: messages of the partition that begins with `first_id`, exception rows
-- and the history.
select (select count(*)
          from {schema}.message_log_{stream}
         where id >= %(first_id)s
           and id < %(kept_from)s) as messages,
       (select count(*)
          from {schema}.consumer_group_config g
          join {schema}.exception_queue_{stream} e on e.group_id = g.id and e.message_id < %(kept_from)s
         where g.stream_id = {stream}) as exceptions,
       (select count(*)
          from {schema}.consumer_group_config g
          join {schema}.delivery_log_{stream} d on d.group_id = g.id and d.message_id < %(kept_from)s
         where g.stream_id = {stream}) as deliveries

-- name: delete_expired_exceptions
-- Remove the next exception rows below the first id that is kept; `remain` says whether there are more, or some that
-- another transaction has locked.
with expired as materialized (
    select o.place
      from {schema}.consumer_group_config g
     cross join lateral (select e.ctid as place
                           from {schema}.exception_queue_{stream} e
                          where e.group_id = g.id
                            and e.message_id < %(kept_from)s
                          order by e.message_id
                          limit %(limit)s
                            for update skip locked) as o
     where g.stream_id = {stream}
     limit %(limit)s
),
removed as (
    -- By their place: a join might read all the dead rows of the stream.
    delete from {schema}.exception_queue_{stream}
     where ctid = any(array(select place from expired))
    returning group_id
)
select (select count(*) from removed) as deleted,
       (select count(*)
          from (select
                  from {schema}.consumer_group_config g
                 cross join lateral (select
                                       from {schema}.exception_queue_{stream} e
                                      where e.group_id = g.id
                                        and e.message_id < %(kept_from)s
                                      order by e.message_id
                                      limit %(limit)s + 1) as o
                 where g.stream_id = {stream}
                 limit %(limit)s + 1) as below) > (select count(*) from removed) as remain

-- name: delete_expired_deliveries
-- Remove the next entries of the history below the first id that is kept.
with expired as materialized (
    select o.place
      from {schema}.consumer_group_config g
     cross join lateral (select d.ctid as place
                           from {schema}.delivery_log_{stream} d
                          where d.group_id = g.id
                            and d.message_id < %(kept_from)s
                          order by d.message_id
                          limit %(limit)s) as o
     where g.stream_id = {stream}
     limit %(limit)s
),
removed as (
    delete from {schema}.delivery_log_{stream}
     where ctid = any(array(select place from expired))
    returning group_id
)
select count(*) as deleted, count(*) >= %(limit)s as remain
  from removed

-- name: delete_expired_messages
-- Remove the next messages from `first_id` on that are below the first id that is kept: of the partition that is still
-- being written.
with reach as materialized (
    -- A bound for ids: for a limit that large, a log never analyzed would be read to its end and sorted.
    select id as low, least(%(kept_from)s, id + %(limit)s) as edge
      from {schema}.message_log_{stream}
     where id >= %(first_id)s
       and id < %(kept_from)s
     order by id
     limit 1
),
removed as (
    delete from {schema}.message_log_{stream}
     where id >= (select low from reach)
       and id < (select edge from reach)
    returning id
)
select count(*) as deleted,
       (select id
          from {schema}.message_log_{stream}
         where id >= (select edge from reach)
           and id < %(kept_from)s
         order by id
         limit 1) is not null as remain
  from removed

-- name: detach_partition
-- Take a partition out of a log without a lock that anyone who produces or consumes would wait for. Not within a
-- transaction: it waits until nobody uses the log who saw the partition, and stays half done when it has to give up.
alter table {schema}.message_log_{stream}
detach partition {schema}.message_log_{stream}_from_{first_id} concurrently

-- name: finish_detaching
-- Finish taking out a partition after it had to be given up.
alter table {schema}.message_log_{stream}
detach partition {schema}.message_log_{stream}_from_{first_id} finalize

-- name: drop_detached
-- Remove the detached partitions of a log that begin below an id.
select {schema}.drop_detached({stream}, %(below)s) as dropped

-- name: list_log_users
-- Read whose transactions use a log, the oldest first: detaching waits for those that began before it.
with users as (
    select distinct virtualtransaction, pid
      from pg_locks
     where locktype = 'relation'
       and relation = '{schema}.message_log_{stream}'::regclass
       and database = (select oid from pg_database where datname = current_database())
       and granted
       and pid is distinct from pg_backend_pid()
)
select u.virtualtransaction as transaction, u.pid, a.application_name as application, a.state,
       clock_timestamp() - coalesce(a.xact_start, p.prepared) as age, p.gid
  from users u
  left join pg_stat_activity a on a.pid = u.pid
  left join pg_locks x
    on u.pid is null
   and x.pid is null
   and x.locktype = 'transactionid'
   and x.virtualtransaction = u.virtualtransaction
  left join pg_prepared_xacts p on p.transaction = x.transactionid
 order by age desc nulls last
 limit 3
