-- name: find_table
-- Find a table by its name as SQL has it, by the search path where it names no schema.
select c.oid::bigint as id, n.nspname as schema, c.relname as name, c.relkind::text as kind,
       c.relpersistence = 't' as temporary, greatest(c.reltuples, 0)::float8 as rows
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.oid = to_regclass(%(table)s)

-- name: list_columns
-- Read the columns of a table. A column is a key when a unique index has it alone and it is never null.
select a.attname as name,
       format_type(a.atttypid, a.atttypmod) as type,
       format('%%I.%%I', n.nspname, t.typname) as type_name,
       t.typcategory::text as category,
       a.attnotnull and exists (
           select from pg_catalog.pg_index i
            where i.indrelid = a.attrelid and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null
              and i.indnkeyatts = 1 and i.indkey[0] = a.attnum) as is_key
  from pg_catalog.pg_attribute a
  join pg_catalog.pg_type t on t.oid = a.atttypid
  join pg_catalog.pg_namespace n on n.oid = t.typnamespace
 where a.attrelid = %(table_id)s::bigint::oid
   and a.attnum > 0
   and not a.attisdropped
 order by a.attnum

-- name: list_indexes
-- Read the columns of each index of a table in their order, an expression as null, and the rows that it is limited to.
select c.relname as name,
       array(select a.attname::text
               from unnest(i.indkey::int2[]) with ordinality k (number, place)
               left join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
              where k.place <= i.indnkeyatts
              order by k.place) as columns,
       pg_get_expr(i.indpred, i.indrelid) as predicate
  from pg_catalog.pg_index i
  join pg_catalog.pg_class c on c.oid = i.indexrelid
  join pg_catalog.pg_am m on m.oid = c.relam
 where i.indrelid = %(table_id)s::bigint::oid
   and i.indisvalid
   and m.amname = 'btree'
 order by c.relname

-- name: are_values
-- Say of each text whether it is a value of the type beside it.
select {schema}.is_value(v.value, v.type) as is_value
  from unnest(%(values)s::text[], %(types)s::text[]) with ordinality as v (value, type, place)
 order by v.place

-- name: insert_deadline
-- Declare a new deadline; no row when there is one of this name.
with config as (
    insert into {schema}.deadline_config
           (name, stream_id, schema_version, fingerprint, table_schema, table_name, key_column, key_type,
            deadline_column, state_column, from_state, to_state, batch, payload_columns, mode, only_rows)
    values (%(name)s, %(stream_id)s, %(schema_version)s, %(fingerprint)s, %(table_schema)s, %(table_name)s,
            %(key_column)s, %(key_type)s, %(deadline_column)s, %(state_column)s, %(from_state)s, %(to_state)s,
            %(batch)s, %(payload_columns)s::text[], %(mode)s, %(only_rows)s::json)
    on conflict (name) do nothing
    returning id
)
insert into {schema}.deadline_cursor (deadline_id)
select id
  from config
returning deadline_id as id

-- name: update_deadline
-- Declare a deadline anew. Where it stands, and which rows it is narrowed down to, is left to those who operate it.
update {schema}.deadline_config
   set stream_id = %(stream_id)s, schema_version = %(schema_version)s, fingerprint = %(fingerprint)s,
       table_schema = %(table_schema)s, table_name = %(table_name)s, key_column = %(key_column)s,
       key_type = %(key_type)s, deadline_column = %(deadline_column)s, state_column = %(state_column)s,
       from_state = %(from_state)s, to_state = %(to_state)s, batch = %(batch)s,
       payload_columns = %(payload_columns)s::text[], revision = revision + 1, updated_at = now()
 where id = %(deadline_id)s

-- name: set_deadline_mode
-- Have a deadline move rows or only look, and say which rows.
update {schema}.deadline_config
   set mode = %(mode)s, only_rows = %(only_rows)s::json, revision = revision + 1, updated_at = now()
 where id = %(deadline_id)s

-- name: suspend_deadline
-- Stop a deadline, or let it go on.
update {schema}.deadline_config
   set suspended_at = case when %(suspended)s then now() end, revision = revision + 1, updated_at = now()
 where id = %(deadline_id)s

-- name: get_deadline
-- Read one deadline.
select d.id, d.name, s.name as stream, d.stream_id, format('%%I.%%I', d.table_schema, d.table_name) as shown_table,
       d.table_schema, d.table_name, d.key_column, d.key_type, d.deadline_column, d.state_column, d.from_state,
       d.to_state, d.batch, d.payload_columns, d.mode, d.only_rows::text as only_rows, d.schema_version, d.fingerprint,
       d.suspended_at, d.revision, d.created_at, d.updated_at
  from {schema}.deadline_config d
  join {schema}.stream_config s on s.id = d.stream_id
 where d.name = %(name)s

-- name: lock_deadline
-- Read one deadline, and keep others from changing it. Those that move rows by it do not keep us.
select d.id, d.name, s.name as stream, d.stream_id, format('%%I.%%I', d.table_schema, d.table_name) as shown_table,
       d.table_schema, d.table_name, d.key_column, d.key_type, d.deadline_column, d.state_column, d.from_state,
       d.to_state, d.batch, d.payload_columns, d.mode, d.only_rows::text as only_rows, d.schema_version, d.fingerprint,
       d.suspended_at, d.revision, d.created_at, d.updated_at
  from {schema}.deadline_config d
  join {schema}.stream_config s on s.id = d.stream_id
 where d.name = %(name)s
   for no key update of d

-- name: list_deadlines
-- Read every deadline, or those of one stream, by name.
select d.id, d.name, s.name as stream, d.stream_id, format('%%I.%%I', d.table_schema, d.table_name) as shown_table,
       d.table_schema, d.table_name, d.key_column, d.key_type, d.deadline_column, d.state_column, d.from_state,
       d.to_state, d.batch, d.payload_columns, d.mode, d.only_rows::text as only_rows, d.schema_version, d.fingerprint,
       d.suspended_at, d.revision, d.created_at, d.updated_at
  from {schema}.deadline_config d
  join {schema}.stream_config s on s.id = d.stream_id
 where s.id = %(stream_id)s::bigint
    or %(stream_id)s::bigint is null
 order by d.name

-- name: list_running_deadlines
-- Read every deadline that is not stopped, with the limits and the shape of what it produces. Those that failed come
-- last, and say in how many seconds they are tried again; so do rows that were put aside.
select d.id, d.name, d.revision, d.stream_id, d.schema_version, d.table_schema, d.table_name, d.key_column, d.key_type,
       d.deadline_column, d.state_column, d.from_state, d.to_state, d.payload_columns, d.only_rows::text as only_rows,
       d.batch, d.mode, s.max_payload, p.json_schema::text as json_schema,
       extract(epoch from c.retry_at - clock_timestamp())::float8 as retry_in,
       (select extract(epoch from min(a.retry_at) - clock_timestamp())::float8
          from {schema}.deadline_aside a where a.deadline_id = d.id) as aside_in
  from {schema}.deadline_config d
  join {schema}.deadline_cursor c on c.deadline_id = d.id
  join {schema}.stream_config s on s.id = d.stream_id
  left join {schema}.payload_schema p on p.stream_id = d.stream_id and p.schema_version = d.schema_version
 where d.suspended_at is null
 order by c.consecutive_failures, d.id

-- name: get_producing_deadline
-- Read one deadline, stopped or not, with the limits and the shape of what it produces.
select d.id, d.name, d.revision, d.stream_id, d.schema_version, d.table_schema, d.table_name, d.key_column, d.key_type,
       d.deadline_column, d.state_column, d.from_state, d.to_state, d.payload_columns, d.only_rows::text as only_rows,
       d.batch, d.mode, s.max_payload, p.json_schema::text as json_schema, null::float8 as retry_in,
       null::float8 as aside_in
  from {schema}.deadline_config d
  join {schema}.stream_config s on s.id = d.stream_id
  left join {schema}.payload_schema p on p.stream_id = d.stream_id and p.schema_version = d.schema_version
 where d.name = %(name)s

-- name: delete_deadline
-- Remove a deadline with what is known of it.
delete from {schema}.deadline_config
 where id = %(deadline_id)s

-- name: log_deadline
-- Keep what a deadline is from now on.
insert into {schema}.deadline_config_log (deadline_id, name, action, config)
values (%(deadline_id)s, %(name)s, %(action)s, %(config)s)

-- name: list_deadline_edits
-- Read the changes of a deadline, the latest first.
select deadline_id, action, config::text as config, changed_by, changed_at
  from {schema}.deadline_config_log
 where name = %(name)s
 order by id desc
 limit %(limit)s

-- name: announce_deadlines
-- Tell whoever moves rows that a deadline has changed; he hears of it when we commit.
select pg_notify(%(channel)s, 'deadlines')

-- name: bound_moving
-- Wait for no lock and no trigger of a user's for long: the rows of other deadlines wait behind us. And let the
-- transaction end when we say nothing more: a process that froze must not keep the user's rows locked.
select set_config('lock_timeout', '5000', true),
       set_config('statement_timeout', '60000', true),
       set_config('idle_in_transaction_session_timeout', '15s', true)

-- name: hold_deadline
-- Keep a deadline from being destroyed until we commit, if it is still what it was. Whoever changes it otherwise does
-- not wait for us: the batch that is under way is finished.
select id
  from {schema}.deadline_config
 where id = %(deadline_id)s
   and revision = %(revision)s
   for key share

-- name: find_next_due
-- Read in how many seconds the next row is due, of those that are not put aside; no row when none ever is.
select case when t.{deadline} > '-infinity' then extract(epoch from t.{deadline} - clock_timestamp()) else 0 end::float8
       as due_in
  from {table} as t
 where t.{state} = %(from_state)s
   and t.{deadline} < 'infinity'
   {narrow}
   and not exists (
       select from {schema}.deadline_aside a where a.deadline_id = %(deadline_id)s and a.key = t.{key}::text)
 order by t.{deadline}
 limit 1

-- name: claim_due_rows
-- Lock the rows that are longest due. One that somebody else changes now is left to him: it is looked at again later.
-- Who only refers to a row does not keep it from us, so not `for update`.
select t.{key}::text as key,
       case when t.{deadline} > '0001-01-02'
            then to_char(t.{deadline} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') end as deadline
  from {table} as t
 where t.{state} = %(from_state)s
   and t.{deadline} <= now()
   {narrow}
   and not exists (
       select from {schema}.deadline_aside a where a.deadline_id = %(deadline_id)s and a.key = t.{key}::text)
 order by t.{deadline}
 limit %(limit)s
   for no key update of t skip locked

-- name: claim_named_rows
-- Lock those of some rows that are due.
select t.{key}::text as key,
       case when t.{deadline} > '0001-01-02'
            then to_char(t.{deadline} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') end as deadline
  from {table} as t
 where t.{key} = any(%(keys)s::text[]::{key_type}[])
   and t.{state} = %(from_state)s
   and t.{deadline} <= now()
   {narrow}
 order by t.{deadline}
   for no key update of t skip locked

-- name: move_due_rows
-- Give rows that we have locked their new state, and read what became of them.
update {table} as t
   set {state} = %(to_state)s
 where t.{key} = any(%(keys)s::text[]::{key_type}[])
   and t.{state} = %(from_state)s
returning t.{key}::text as key,
          coalesce(t.{state} = %(to_state)s, false) as moved,
          {row}::text as payload

-- name: read_moved_rows
-- Read rows that were moved and whose deadline lies between two times.
select t.{key}::text as key,
       case when t.{deadline} > '0001-01-02'
            then to_char(t.{deadline} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') end as deadline,
       {row}::text as payload
  from {table} as t
 where t.{state} = %(to_state)s
   and t.{deadline} between %(start)s and %(until)s
   {narrow}
 order by t.{deadline}
 limit %(limit)s

-- name: sample_rows
-- Read some rows as the payloads that they would be.
select {row}::text as payload
  from {table} as t
 where t.{state} = %(from_state)s
 limit %(limit)s

-- name: find_eligible_rows
-- Say which of some rows still have the state that is to be left.
select t.{key}::text as key
  from {table} as t
 where t.{key} = any(%(keys)s::text[]::{key_type}[])
   and t.{state} = %(from_state)s

-- name: measure_due
-- Count the rows that are due, up to a limit, and read the longest due and the next deadline. Of times that a client
-- cannot hold nothing is said.
select (select count(*)
          from (select from {table} as t
                 where t.{state} = %(from_state)s and t.{deadline} <= now() {narrow}
                 limit %(limit)s) due) as due,
       (select case when t.{deadline} > '0001-01-02' then t.{deadline} end
          from {table} as t
         where t.{state} = %(from_state)s and t.{deadline} <= now() {narrow}
         order by t.{deadline} limit 1) as oldest_due,
       (select case when t.{deadline} < '9999-12-30' then t.{deadline} end
          from {table} as t
         where t.{state} = %(from_state)s and t.{deadline} > now() {narrow}
         order by t.{deadline} limit 1) as next_deadline

-- name: count_final
-- Count rows past their deadline that are in neither state, up to a limit: what was settled before it came due.
select count(*) as count
  from (select from {table} as t
         where t.{deadline} <= now()
           and t.{state} is distinct from %(from_state)s
           and t.{state} is distinct from %(to_state)s
           {narrow}
         limit %(limit)s) final

-- name: explain_claim
-- Read how the server would find the rows that are due.
explain (format json)
select t.{key}::text as key
  from {table} as t
 where t.{state} = %(from_state)s
   and t.{deadline} <= now()
   {narrow}
 order by t.{deadline}
 limit %(limit)s

-- name: note_moved
-- Count rows that were moved, in the transaction that moves them.
update {schema}.deadline_cursor
   set moved = moved + %(count)s, last_run_at = now(), last_moved_at = now()
 where deadline_id = %(deadline_id)s

-- name: note_replayed
-- Count messages that were produced again.
update {schema}.deadline_cursor
   set replayed = replayed + %(count)s
 where deadline_id = %(deadline_id)s

-- name: note_run
-- Note that somebody has looked and did not fail, and, where he only counts, what he saw.
update {schema}.deadline_cursor
   set last_run_at = now(), consecutive_failures = 0, retry_at = null,
       observed_due = coalesce(%(observed_due)s::bigint, observed_due),
       observed_at = case when %(observed_due)s::bigint is null then observed_at else now() end
 where deadline_id = %(deadline_id)s
returning set_config('synchronous_commit', 'off', true)

-- name: fail_deadline
-- Note that a deadline failed, and put it off: half a second, twice as long each time, up to five minutes.
update {schema}.deadline_cursor
   set last_run_at = now(), consecutive_failures = consecutive_failures + 1, last_error = %(error)s, failed_at = now(),
       retry_at = clock_timestamp()
                + make_interval(secs => least(300, 0.5 * power(2, least(consecutive_failures, 20))))
 where deadline_id = %(deadline_id)s
returning consecutive_failures

-- name: put_aside
-- Take rows that cannot be moved out of the way of the others, for a while that grows with each failure.
insert into {schema}.deadline_aside as a (deadline_id, key, last_error, retry_at)
select %(deadline_id)s, r.key, r.error, clock_timestamp() + interval '1 second'
  from unnest(%(keys)s::text[], %(errors)s::text[]) as r (key, error)
on conflict (deadline_id, key) do update
   set failures = a.failures + 1,
       last_error = excluded.last_error,
       retry_at = clock_timestamp() + make_interval(secs => least(300, power(2, least(a.failures, 20))))

-- name: list_asides
-- Read the rows that were put aside, the longest first.
select key, failures, last_error, since, retry_at
  from {schema}.deadline_aside
 where deadline_id = %(deadline_id)s
 order by since, key
 limit %(limit)s

-- name: find_due_asides
-- Read the keys of rows whose time to be tried again has come.
select key
  from {schema}.deadline_aside
 where deadline_id = %(deadline_id)s
   and retry_at <= clock_timestamp()
 order by retry_at
 limit %(limit)s

-- name: forget_asides
-- Forget that rows were put aside: they are moved, or there is nothing to move any more.
delete from {schema}.deadline_aside
 where deadline_id = %(deadline_id)s
   and key = any(%(keys)s::text[])

-- name: forget_all_asides
-- Forget which rows were put aside, as the deadline is another now.
delete from {schema}.deadline_aside
 where deadline_id = %(deadline_id)s

-- name: get_deadline_status
-- Read what is on record of how a deadline fares.
select name, id, stream, table_name, mode, suspended, moved, replayed, last_run_at, last_moved_at, aside,
       consecutive_failures, last_error, failed_at, retry_at
  from {schema}.deadline_status
 where name = %(name)s
