-- name: insert_instance
-- Enter this process among the consumers, for as long as its heartbeat renews it.
insert into {schema}.consumer_instance (token, hostname, pid, library, expires_at)
values (%(token)s, %(hostname)s, %(pid)s, %(library)s, now() + make_interval(secs => %(ttl)s))
returning id

-- name: delete_forgotten_instances
-- Remove processes that expired a day ago and hold nothing any more.
delete from {schema}.consumer_instance i
 where i.expires_at < now() - interval '1 day'
   and not exists (select from {schema}.claim_lease where instance_id = i.id)

-- name: renew_instance
-- Push back the end of all our leases, if they are still ours. Not once somebody took the first of them: what we hold of
-- an ordered key would pass what he has of it.
update {schema}.consumer_instance
   set renewed_at = now(),
       expires_at = now() + make_interval(secs => %(ttl)s)
 where id = %(id)s
   and token = %(token)s
   and not fenced
returning set_config('synchronous_commit', 'off', true)

-- name: checkpoint
-- Record how far ranges are finished, and return the leases that are still ours. What was recorded once stays: an
-- older look at the range may arrive later.
update {schema}.claim_lease l
   set resolved = greatest(l.resolved, c.resolved),
       done = array(select distinct id
                      from unnest(l.done || c.done::bigint[]) as d (id)
                     where id > greatest(l.resolved, c.resolved))
  from unnest(%(tokens)s::uuid[], %(resolved)s::bigint[], %(done)s::text[]) as c (token, resolved, done)
 where l.token = c.token
   and l.instance_id = %(instance_id)s
returning l.token, set_config('synchronous_commit', 'off', true)

-- name: release_leases
-- Free ranges at once for any process of the group, keeping what is done of them.
update {schema}.claim_lease l
   set resolved = greatest(l.resolved, c.resolved),
       done = array(select distinct id
                      from unnest(l.done || c.done::bigint[]) as d (id)
                     where id > greatest(l.resolved, c.resolved)),
       instance_id = null
  from unnest(%(tokens)s::uuid[], %(resolved)s::bigint[], %(done)s::text[]) as c (token, resolved, done)
 where l.token = c.token
   and l.instance_id = %(instance_id)s
returning l.token

-- name: delete_instance
-- Leave: whatever this process still holds is free for others from now on.
delete from {schema}.consumer_instance
 where id = %(id)s
   and token = %(token)s

-- name: list_instances
-- Read the processes that hold or held work of a group.
select distinct i.id, i.hostname, i.pid, i.started_at, i.expires_at
  from {schema}.consumer_instance i
  join {schema}.claim_lease l on l.instance_id = i.id
 where l.group_id = %(group_id)s
 order by i.id

-- name: poll
-- Ask in one go, for the groups of one stream: is there anything to claim, to take over or to free, when is the
-- next retry due (in seconds, null for none), and which versions wait for a process that can read them?
select c.group_id,
       g.updated_at,
       g.concurrency <> 'parallel' or s.keyed as gated,
       c.bindings is not null as bound,
       -- In order: `exists` drops an order, and may read through what is claimed.
       (select m.id from {schema}.message_log_{stream} m where m.id > c.claimed order by m.id limit 1) is not null as fresh,
       exists (select
                 from {schema}.claim_lease l
                 left join {schema}.consumer_instance i on i.id = l.instance_id
                where l.group_id = c.group_id
                  and (i.id is null or i.expires_at < now())) as loose,
       exists (select
                 from {schema}.exception_queue_{stream} e
                 left join {schema}.consumer_instance i on i.id = e.instance_id
                where e.group_id = c.group_id
                  and e.state = 'inflight'
                  and (i.id is null or i.expires_at < now())) as orphaned,
       exists (select
                 from {schema}.message_key_lease h
                where h.group_id = c.group_id
                  and h.instance_id is null)
       or exists (select
                    from {schema}.consumer_instance i
                    join {schema}.message_key_lease h on h.instance_id = i.id
                   where i.expires_at < now()
                     and h.group_id = c.group_id) as keys_left,
       extract(epoch from least((select min(e.can_run_after)
                                   from {schema}.exception_queue_{stream} e
                                  where e.group_id = c.group_id
                                    and e.state = 'ready'),
                                (select min(e.can_run_after)
                                   from {schema}.exception_queue_{stream} e
                                  where e.group_id = c.group_id
                                    and e.state = 'waiting')) - now())::double precision as due_in,
       -- From one version to the next, however many messages wait.
       array(with recursive waiting (schema_version) as (
                 (select e.schema_version
                    from {schema}.exception_queue_{stream} e
                   where e.group_id = c.group_id
                     and e.state = 'unread'
                   order by e.schema_version
                   limit 1)
                  union all
                 select (select e.schema_version
                           from {schema}.exception_queue_{stream} e
                          where e.group_id = c.group_id
                            and e.state = 'unread'
                            and e.schema_version > w.schema_version
                          order by e.schema_version
                          limit 1)
                   from waiting w
                  where w.schema_version is not null
             )
             select schema_version from waiting where schema_version is not null) as unread,
       -- Bindings wait, and no process that lives holds those in force.
       exists (select
                 from {schema}.binding_declaration d
                where d.group_id = c.group_id
                  and d.bindings <> g.bindings)
       and not exists (select
                         from {schema}.binding_declaration d
                         join {schema}.consumer_instance i on i.id = d.instance_id
                        where d.group_id = c.group_id
                          and d.bindings = g.bindings
                          and i.expires_at > now()) as unheld
  from {schema}.consumer_group_cursor c
  join {schema}.consumer_group_config g on g.id = c.group_id
  join {schema}.stream_config s on s.id = g.stream_id
 where c.group_id = any(%(group_ids_{stream})s::bigint[])
