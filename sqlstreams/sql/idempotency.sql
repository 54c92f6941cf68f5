-- name: take_idempotency_keys
-- Take keys that nobody has; whoever is taking one of them at this moment is waited for.
insert into {schema}.idempotency_key_{stream} (idempotency_key, fingerprint, expires_at)
select k.idempotency_key, k.fingerprint, statement_timestamp() + c.idempotency_ttl
  from unnest(%(keys)s::text[], %(fingerprints)s::bytea[]) as k (idempotency_key, fingerprint)
 cross join (select idempotency_ttl from {schema}.stream_config where id = {stream}) as c
 -- All in the same order, so that no two producers wait for each other.
 order by k.idempotency_key collate "C"
on conflict (idempotency_key) do nothing
returning idempotency_key

-- name: find_idempotency_keys
-- Read which messages keys are of. Asked after take_idempotency_keys, so as to see what that has waited for.
select k.idempotency_key, k.fingerprint, k.message_id, k.expires_at <= statement_timestamp() as is_expired
  from unnest(%(keys)s::text[]) as asked (key)
 -- Looked up one by one: a plain join may read through all of them.
 cross join lateral (select idempotency_key, fingerprint, message_id, expires_at
                       from {schema}.idempotency_key_{stream}
                      where idempotency_key = asked.key
                      limit 1) as k

-- name: renew_idempotency_keys
-- Take keys that expired, or that were swept away since they were looked at.
insert into {schema}.idempotency_key_{stream} as taken (idempotency_key, fingerprint, expires_at)
select k.idempotency_key, k.fingerprint, statement_timestamp() + c.idempotency_ttl
  from unnest(%(keys)s::text[], %(fingerprints)s::bytea[]) as k (idempotency_key, fingerprint)
 cross join (select idempotency_ttl from {schema}.stream_config where id = {stream}) as c
 order by k.idempotency_key collate "C"
on conflict (idempotency_key) do update
   set fingerprint = excluded.fingerprint,
       message_id = null,
       expires_at = excluded.expires_at
 where taken.expires_at <= statement_timestamp()
returning idempotency_key

-- name: record_idempotent_messages
-- Write down which message each key that we took is of.
insert into {schema}.idempotency_key_{stream} (idempotency_key, fingerprint, message_id, expires_at)
select idempotency_key, '', message_id, 'infinity'
  from unnest(%(keys)s::text[], %(ids)s::bigint[]) as k (idempotency_key, message_id)
-- All of them are there. An update could read through the table, by a plan that was made when it was small.
on conflict (idempotency_key) do update
   set message_id = excluded.message_id

-- name: list_expired_keys
-- Read whether a stream has keys that expired. One statement for many streams.
select {stream}::bigint as stream_id
 where (select min(expires_at) from {schema}.idempotency_key_{stream}) <= statement_timestamp()

-- name: forget_idempotency_keys
-- Remove keys that expired, the oldest first. Those that somebody renews at this moment are left alone.
with forgotten as (
    delete from {schema}.idempotency_key_{stream}
     where idempotency_key = any(array(select idempotency_key
                                         from {schema}.idempotency_key_{stream}
                                        where expires_at <= statement_timestamp()
                                        order by expires_at
                                        limit %(limit)s
                                          for update skip locked))
    returning 1
)
select count(*) from forgotten
