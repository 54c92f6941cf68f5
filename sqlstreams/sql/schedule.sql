-- name: insert_schedule
-- Register a schedule, unless there is one of this name; a second caller waits for the first to commit.
insert into {schema}.schedule_config
       (name, stream_id, expression, timezone, payload, schema_version, fingerprint, concurrency, timeout_ns, catch_up,
        catch_up_window, jitter, start_at, end_at, compaction)
values (%(name)s, %(stream_id)s, %(expression)s, %(timezone)s, %(payload)s::json, %(schema_version)s, %(fingerprint)s,
        %(concurrency)s, %(timeout_ns)s, %(catch_up)s, %(catch_up_window)s, %(jitter)s, %(start_at)s, %(end_at)s,
        %(compaction)s)
on conflict (name) do nothing
returning id

-- name: read_clock
-- Read the database's clock, whenever the transaction began.
select clock_timestamp() as now

-- name: insert_schedule_cursor
-- Have a new schedule fire for the first time.
insert into {schema}.schedule_cursor (schedule_id, next_slot, due_at, zone_data)
values (%(schedule_id)s, %(next_slot)s, %(due_at)s, %(zone_data)s)

-- name: update_schedule
-- Give a schedule what was declared last.
update {schema}.schedule_config
   set stream_id = %(stream_id)s,
       expression = %(expression)s,
       timezone = %(timezone)s,
       payload = %(payload)s::json,
       schema_version = %(schema_version)s,
       fingerprint = %(fingerprint)s,
       concurrency = %(concurrency)s,
       timeout_ns = %(timeout_ns)s,
       catch_up = %(catch_up)s,
       catch_up_window = %(catch_up_window)s,
       jitter = %(jitter)s,
       start_at = %(start_at)s,
       end_at = %(end_at)s,
       compaction = %(compaction)s,
       revision = revision + 1,
       updated_at = now()
 where id = %(schedule_id)s

-- name: suspend_schedule
-- Stop a schedule, or let it go on.
update {schema}.schedule_config
   set suspended_at = case when %(suspended)s then now() end,
       revision = revision + 1,
       updated_at = now()
 where id = %(schedule_id)s

-- name: set_schedule_cursor
-- Say which slot of a schedule is the next and when it is due.
update {schema}.schedule_cursor
   set next_slot = %(next_slot)s,
       due_at = %(due_at)s,
       zone_data = %(zone_data)s
 where schedule_id = %(schedule_id)s

-- name: get_schedule
-- Read one schedule by name.
select s.id, s.name, t.name as stream, s.stream_id, s.expression, s.timezone, convert_to(s.payload::text, 'UTF8') as payload,
       s.schema_version, s.fingerprint, s.concurrency, s.timeout_ns, s.catch_up, s.catch_up_window, s.jitter, s.start_at,
       s.end_at, s.compaction, s.suspended_at, s.revision, c.next_slot, s.created_at, s.updated_at
  from {schema}.schedule_config s
  join {schema}.stream_config t on t.id = s.stream_id
  join {schema}.schedule_cursor c on c.schedule_id = s.id
 where s.name = %(name)s

-- name: list_schedules
-- Read every schedule, or those of one stream.
select s.id, s.name, t.name as stream, s.stream_id, s.expression, s.timezone, convert_to(s.payload::text, 'UTF8') as payload,
       s.schema_version, s.fingerprint, s.concurrency, s.timeout_ns, s.catch_up, s.catch_up_window, s.jitter, s.start_at,
       s.end_at, s.compaction, s.suspended_at, s.revision, c.next_slot, s.created_at, s.updated_at
  from {schema}.schedule_config s
  join {schema}.stream_config t on t.id = s.stream_id
  join {schema}.schedule_cursor c on c.schedule_id = s.id
 where %(stream_id)s::bigint is null
    or s.stream_id = %(stream_id)s::bigint
 order by s.name

-- name: lock_schedule
-- Read one schedule by name, and keep others from changing or firing it until we commit.
select s.id, s.name, t.name as stream, s.stream_id, s.expression, s.timezone, convert_to(s.payload::text, 'UTF8') as payload,
       s.schema_version, s.fingerprint, s.concurrency, s.timeout_ns, s.catch_up, s.catch_up_window, s.jitter, s.start_at,
       s.end_at, s.compaction, s.suspended_at, s.revision, c.next_slot, s.created_at, s.updated_at
  from {schema}.schedule_config s
  join {schema}.stream_config t on t.id = s.stream_id
  join {schema}.schedule_cursor c on c.schedule_id = s.id
 where s.name = %(name)s
   for update of s, c

-- name: lock_schedules_of_stream
-- Keep the schedules of a stream from firing: before its log is locked, which a fire under way still needs.
select s.id, s.name, t.name as stream, s.stream_id, s.expression, s.timezone, convert_to(s.payload::text, 'UTF8') as payload,
       s.schema_version, s.fingerprint, s.concurrency, s.timeout_ns, s.catch_up, s.catch_up_window, s.jitter, s.start_at,
       s.end_at, s.compaction, s.suspended_at, s.revision, c.next_slot, s.created_at, s.updated_at
  from {schema}.schedule_config s
  join {schema}.stream_config t on t.id = s.stream_id
  join {schema}.schedule_cursor c on c.schedule_id = s.id
 where s.stream_id = %(stream_id)s
 order by s.id
   for update of s, c

-- name: delete_schedule
-- Remove a schedule with its cursor and its history.
delete from {schema}.schedule_config
 where id = %(schedule_id)s

-- name: log_schedule
-- Keep what was declared, by whom and when.
insert into {schema}.schedule_config_log (schedule_id, name, action, config)
select %(schedule_id)s, %(name)s, %(action)s, %(config)s::json

-- name: list_schedule_edits
-- Read what was declared for a name, the latest first.
select schedule_id, action, config::text, changed_by, changed_at
  from {schema}.schedule_config_log
 where name = %(name)s
 order by id desc
 limit %(limit)s

-- name: announce_schedules
-- Tell whoever fires schedules that one has changed; he hears of it when we commit.
select pg_notify(%(channel)s, 'schedules')

-- name: get_schedule_status
-- Read where one schedule stands, and how many slots were fired and skipped.
select v.name, v.id, v.stream, s.stream_id, v.suspended, v.next_slot, v.due_at, v.last_slot, v.last_fired_at,
       v.last_message_id, v.consecutive_failures, v.last_error, v.failed_at,
       (select count(*) from {schema}.schedule_fire f where f.schedule_id = v.id) as fires,
       (select coalesce(sum(k.slots), 0)::bigint from {schema}.schedule_skip k where k.schedule_id = v.id) as skipped_slots
  from {schema}.schedule_status v
  join {schema}.schedule_config s on s.id = v.id
 where v.name = %(name)s

-- name: list_fires
-- Read what a schedule fired, the latest slot first.
select scheduled_for, fired_at, kind, message_id, fired_by
  from {schema}.schedule_fire
 where schedule_id = %(schedule_id)s
 order by scheduled_for desc
 limit %(limit)s

-- name: list_skips
-- Read the ranges of slots that were not fired, the latest first.
select first_slot, last_slot, slots, reason, recorded_at
  from {schema}.schedule_skip
 where schedule_id = %(schedule_id)s
 order by id desc
 limit %(limit)s

-- name: list_due_schedules
-- Read what is due within some seconds, and in how many seconds the next is; all by the clock of the database. Payloads are
-- read later.
with due as materialized (
    select schedule_id, next_slot, due_at, consecutive_failures
      from {schema}.schedule_cursor
     where due_at <= now() + make_interval(secs => %(within)s)
     order by due_at
     limit %(limit)s
)
select now() as now,
       (select extract(epoch from min(due_at) - now())::double precision
          from {schema}.schedule_cursor
         where due_at > now() + make_interval(secs => %(within)s)) as due_in,
       s.id, s.name, s.revision, s.stream_id, s.schema_version, s.expression, s.timezone, s.start_at, s.end_at, s.jitter,
       s.catch_up, s.catch_up_window, s.concurrency, s.timeout_ns, s.compaction, d.next_slot, d.due_at,
       pg_column_size(s.payload) as size, d.consecutive_failures
  from (select) as one
  left join (due d
             -- Looked up one by one: a plain join may read through all the schedules.
             cross join lateral (select id, name, revision, stream_id, schema_version, expression, timezone, start_at,
                                        end_at, jitter, catch_up, catch_up_window, concurrency, timeout_ns, compaction,
                                        payload
                                   from {schema}.schedule_config
                                  where id = d.schedule_id
                                  limit 1) as s) on true
 order by d.due_at, s.id

-- name: list_coming_schedules
-- Read the slots that are due within some seconds, so that those behind them can be computed before.
select s.expression, s.timezone, s.start_at, s.end_at, c.next_slot
  from {schema}.schedule_cursor c
  join {schema}.schedule_config s on s.id = c.schedule_id
 where c.due_at > now()
   and c.due_at <= now() + make_interval(secs => %(within)s)
 order by c.due_at
 limit %(limit)s

-- name: wait_briefly
-- Let the transaction fail rather than wait long for a lock: somebody may hold the key of one schedule for hours. And let
-- it end when we say nothing more: the next manager cannot fire what a frozen one has locked.
select set_config('lock_timeout', '500ms', true), set_config('idle_in_transaction_session_timeout', '15s', true)

-- name: fire_slots
-- Fire one slot of each of some schedules of a stream, in a single statement: the usual case, a thousand times a second.
-- What is not returned is left as it was: changed since it was planned, held by another, or refused. A key or a slot that
-- was used before fails the whole, and so does a log that has no room; the statements below find out which.
with planned as (
    select schedule_id, revision, slot, kind, idempotency_key, options, rank, next_slot, due_at
      from json_to_recordset(%(slots)s::json)
        as p (schedule_id bigint, revision bigint, slot timestamptz, kind text, idempotency_key text, options json,
              rank bigint, next_slot timestamptz, due_at timestamptz)
),
locked as materialized (
    select p.schedule_id, p.slot, p.kind, p.idempotency_key, p.options, p.rank, p.next_slot, p.due_at, s.name,
           s.schema_version, s.payload, t.idempotency_ttl
      from planned p
      -- Looked up one by one: a plain join may read through all the schedules.
     cross join lateral (select
                           from {schema}.schedule_cursor
                          where schedule_id = p.schedule_id
                            and next_slot = p.slot
                            and due_at <= now()
                          limit 1
                            for no key update skip locked) as c
     cross join lateral (select name, schema_version, payload, fingerprint
                           from {schema}.schedule_config
                          where id = p.schedule_id
                            and revision = p.revision
                          limit 1
                            for share skip locked) as s
      join {schema}.stream_config t on t.id = {stream}
      left join {schema}.payload_schema r
        on r.stream_id = {stream}
       and r.schema_version = s.schema_version
     where (s.fingerprint is null or s.fingerprint = r.fingerprint)
       and octet_length(s.payload::text) <= t.max_payload
),
fired as materialized (
    select schedule_id, slot, kind, idempotency_key, options, rank, next_slot, due_at, name, schema_version, payload,
           idempotency_ttl, nextval('{schema}.message_log_{stream}_id') as message_id
      from locked
),
keyed as (
    insert into {schema}.idempotency_key_{stream} (idempotency_key, fingerprint, message_id, expires_at)
    select idempotency_key, sha256(convert_to(payload::text, 'UTF8')), message_id, statement_timestamp() + idempotency_ttl
      from fired
     order by idempotency_key collate "C"
),
appended as (
    insert into {schema}.message_log_{stream} (id, payload, message_key, schema_version, options, compaction_rank)
    select message_id, payload, name, schema_version, options, rank
      from fired
),
moved_heads as (
    insert into {schema}.compaction_head_{stream} as h (message_key, schema_version, rank, id)
    select name, schema_version, rank, message_id
      from fired
     where rank is not null
     order by name collate "C"
    on conflict (message_key) do update
       set schema_version = excluded.schema_version,
           rank = excluded.rank,
           id = excluded.id
     where (h.schema_version, h.rank, h.id) < (excluded.schema_version, excluded.rank, excluded.id)
),
recorded as (
    insert into {schema}.schedule_fire (schedule_id, scheduled_for, kind, message_id, fired_by)
    select schedule_id, slot, kind, message_id, %(fired_by)s
      from fired
),
moved as (
    update {schema}.schedule_cursor c
       set next_slot = f.next_slot,
           due_at = f.due_at,
           last_slot = f.slot,
           last_fired_at = clock_timestamp(),
           last_message_id = f.message_id,
           consecutive_failures = 0,
           zone_data = %(zone_data)s
      from fired f
     where c.schedule_id = f.schedule_id
)
select schedule_id
  from fired

-- name: lock_due_schedules
-- Take what is due for this transaction, with all that its messages need. Both rows are locked, and so read again where
-- somebody changed them meanwhile: nobody fires a definition that was replaced. What another is changing or firing is
-- left to him, so that nobody waits for anybody.
select s.id, s.name, s.revision, c.next_slot, s.stream_id, s.schema_version, convert_to(s.payload::text, 'UTF8') as payload,
       s.concurrency, s.timeout_ns, s.compaction, s.fingerprint, p.fingerprint as recorded, t.max_payload
  from {schema}.schedule_cursor c
  join {schema}.schedule_config s on s.id = c.schedule_id
  join {schema}.stream_config t on t.id = s.stream_id
  left join {schema}.payload_schema p
    on p.stream_id = s.stream_id
   and p.schema_version = s.schema_version
 where c.schedule_id = any(%(schedule_ids)s::bigint[])
   and c.due_at <= now()
 order by s.id
   for share of s skip locked
   for no key update of c skip locked

-- name: lock_schedule_to_fire
-- Take one schedule, due or not, suspended or not, with all that its messages need; wait for whoever has it.
select s.id, s.name, s.revision, c.next_slot, s.stream_id, s.schema_version, convert_to(s.payload::text, 'UTF8') as payload,
       s.concurrency, s.timeout_ns, s.compaction, s.fingerprint, p.fingerprint as recorded, t.max_payload
  from {schema}.schedule_config s
  join {schema}.schedule_cursor c on c.schedule_id = s.id
  join {schema}.stream_config t on t.id = s.stream_id
  left join {schema}.payload_schema p
    on p.stream_id = s.stream_id
   and p.schema_version = s.schema_version
 where s.id = %(schedule_id)s
   for share of s
   for no key update of c

-- name: list_fired
-- Read which of some slots have fired. Exact only for schedules that we have locked.
select f.schedule_id, f.scheduled_for, f.message_id
  from unnest(%(schedule_ids)s::bigint[], %(slots)s::timestamptz[]) as w (schedule_id, slot)
  join {schema}.schedule_fire f
    on f.schedule_id = w.schedule_id
   and f.scheduled_for = w.slot

-- name: insert_fires
-- Record which slots fired, and the messages.
insert into {schema}.schedule_fire (schedule_id, scheduled_for, kind, message_id, fired_by)
select f.schedule_id, f.slot, f.kind, f.message_id, %(fired_by)s
  from unnest(%(schedule_ids)s::bigint[], %(slots)s::timestamptz[], %(kinds)s::text[], %(message_ids)s::bigint[])
    as f (schedule_id, slot, kind, message_id)

-- name: insert_skips
-- Record ranges of slots that are not fired, and why.
insert into {schema}.schedule_skip (schedule_id, first_slot, last_slot, slots, reason)
select k.schedule_id, k.first_slot, k.last_slot, k.slots, k.reason
  from unnest(%(schedule_ids)s::bigint[], %(first_slots)s::timestamptz[], %(last_slots)s::timestamptz[],
              %(counts)s::bigint[], %(reasons)s::text[])
    as k (schedule_id, first_slot, last_slot, slots, reason)

-- name: move_schedule_cursors
-- Go on to the next slots. Where nothing fired, the last fire stays what it was.
update {schema}.schedule_cursor c
   set next_slot = m.next_slot,
       due_at = m.due_at,
       last_slot = coalesce(m.last_slot, c.last_slot),
       last_fired_at = case when m.last_slot is null then c.last_fired_at else clock_timestamp() end,
       last_message_id = coalesce(m.message_id, c.last_message_id),
       consecutive_failures = 0,
       zone_data = %(zone_data)s
  from unnest(%(schedule_ids)s::bigint[], %(next_slots)s::timestamptz[], %(due_ats)s::timestamptz[],
              %(last_slots)s::timestamptz[], %(message_ids)s::bigint[])
    as m (schedule_id, next_slot, due_at, last_slot, message_id)
 where c.schedule_id = m.schedule_id

-- name: note_message
-- Remember the last message of a schedule that was fired out of turn.
update {schema}.schedule_cursor
   set last_message_id = %(message_id)s,
       last_fired_at = clock_timestamp()
 where schedule_id = %(schedule_id)s

-- name: fail_schedules
-- Charge schedules with a try that failed, and have them tried again: after 1 s, and twice as long each time up to five
-- minutes. Somebody may have changed one meanwhile, which is then as good as new.
update {schema}.schedule_cursor c
   set consecutive_failures = c.consecutive_failures + 1,
       last_error = f.error,
       failed_at = clock_timestamp(),
       due_at = clock_timestamp() + make_interval(
           secs => least(300, power(2, least(c.consecutive_failures, 20))) * (0.75 + random() / 4))
  from unnest(%(schedule_ids)s::bigint[], %(revisions)s::bigint[], %(slots)s::timestamptz[], %(errors)s::text[])
    as f (schedule_id, revision, slot, error)
  join {schema}.schedule_config s on s.id = f.schedule_id and s.revision = f.revision
 where c.schedule_id = f.schedule_id
   and c.next_slot = f.slot
   and c.due_at <= clock_timestamp()
returning c.schedule_id, c.consecutive_failures

-- name: list_zone_data
-- Read with which versions of the zone data the next slots were computed. Asked seldom, so that no fire has to keep an
-- index of them.
select distinct zone_data
  from {schema}.schedule_cursor

-- name: list_outdated_schedules
-- Read schedules whose next slots were computed with one version of the zone data.
select s.id, s.expression, s.timezone, s.start_at, s.end_at, s.jitter, s.revision, c.next_slot, c.last_slot,
       s.suspended_at is not null as suspended, now() as now
  from (select schedule_id, next_slot, last_slot
          from {schema}.schedule_cursor
         where zone_data = %(zone_data)s
         order by schedule_id
         limit %(limit)s) as c
 cross join lateral (select id, expression, timezone, start_at, end_at, jitter, revision, suspended_at
                       from {schema}.schedule_config
                      where id = c.schedule_id
                      limit 1) as s
 order by c.schedule_id

-- name: retime_schedules
-- Replace next slots that were computed with older zone data, unless somebody moved on meanwhile.
update {schema}.schedule_cursor c
   set next_slot = r.next_slot,
       due_at = case when r.retimed and c.due_at is not null then r.due_at else c.due_at end,
       zone_data = %(zone_data)s
  from unnest(%(schedule_ids)s::bigint[], %(revisions)s::bigint[], %(known_slots)s::timestamptz[],
              %(next_slots)s::timestamptz[], %(due_ats)s::timestamptz[], %(retimed)s::boolean[])
    as r (schedule_id, revision, known_slot, next_slot, due_at, retimed)
  join {schema}.schedule_config s on s.id = r.schedule_id and s.revision = r.revision
 where c.schedule_id = r.schedule_id
   and c.next_slot is not distinct from r.known_slot

-- name: list_outcomes
-- Read what became of some messages in every group of their stream. Without an exception row, a message behind the
-- cursor that no open range holds is done. A group that began behind a message, or was moved past it, never had it.
select m.message_id, g.name as consumer_group,
       case when e.state is not null then e.state
            when m.message_id > c.claimed then 'pending'
            when exists (select
                           from {schema}.claim_lease l
                          where l.group_id = g.id
                            and l.low <= m.message_id
                            and l.high >= m.message_id
                            and l.resolved < m.message_id
                            and m.message_id <> all(l.done)) then 'inflight'
            when c.bindings is not null
             and not coalesce(log.routing_key collate "C" like any(c.bindings), false) then 'not bound'
            when g.start_at <> 'beginning' and g.created_at > log.created_at
              or exists (select
                           from {schema}.position_log p
                          where p.group_id = g.id
                            and p.action = 'skipped'
                            and p.claimed < m.message_id
                            and p.position >= m.message_id) then 'skipped'
            else 'succeeded'
       end as outcome,
       e.failures, e.error_type, e.error, e.can_run_after
  from unnest(%(message_ids)s::bigint[]) as m (message_id)
 cross join {schema}.consumer_group_config g
  join {schema}.consumer_group_cursor c on c.group_id = g.id
  left join {schema}.message_log_{stream} log on log.id = m.message_id
  left join {schema}.exception_queue_{stream} e
    on e.group_id = g.id
   and e.message_id = m.message_id
 where g.stream_id = {stream}
 order by m.message_id desc, g.name

-- name: list_group_logs
-- Read what the groups of a stream keep of their deliveries.
select distinct delivery_log
  from {schema}.consumer_group_config
 where stream_id = %(stream_id)s
