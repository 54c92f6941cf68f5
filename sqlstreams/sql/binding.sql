-- name: lock_bindings
-- Let nobody else declare bindings of a group, or join it with some, until we commit.
select id
  from {schema}.consumer_group_config
 where id = %(group_id)s
   for no key update

-- name: list_declarations
-- Read which bindings wait or are held by processes that live, those declared last first.
select d.bindings, d.instance_id, i.hostname, i.pid, d.declared_by, d.declared_at
  from {schema}.binding_declaration d
  left join {schema}.consumer_instance i on i.id = d.instance_id
 where d.group_id = %(group_id)s
   and (d.instance_id is null or i.expires_at > now())
 order by d.id desc

-- name: hold_bindings
-- Enter what a process that consumes declared; the same again changes nothing.
insert into {schema}.binding_declaration (token, group_id, instance_id, bindings)
values (%(token)s, %(group_id)s, %(instance_id)s, %(bindings)s::text[])
on conflict (token) do nothing

-- name: drop_bindings
-- Hold bindings no more: the process stops consuming.
delete from {schema}.binding_declaration
 where token = %(token)s

-- name: insert_waiting_bindings
-- Have bindings wait that nobody who consumes declared so far.
insert into {schema}.binding_declaration (group_id, bindings)
values (%(group_id)s, %(bindings)s::text[])

-- name: delete_waiting_bindings
-- Forget bindings that wait for nobody in particular.
delete from {schema}.binding_declaration
 where group_id = %(group_id)s
   and instance_id is null

-- name: update_bindings
-- Put bindings in force.
update {schema}.consumer_group_config
   set bindings = %(bindings)s::text[],
       bound_at = now(),
       bound_by = session_user,
       updated_at = now()
 where id = %(group_id)s

-- name: bind_group
-- Have every claim that begins from now on take the messages that match, and no others. A claim under way ends first.
update {schema}.consumer_group_cursor
   set bindings = %(patterns)s::text[]
 where group_id = %(group_id)s
   and bindings is distinct from %(patterns)s::text[]

-- name: get_bindings
-- Read which bindings are in force, since when, and who declared them.
select bindings, bound_at, bound_by
  from {schema}.consumer_group_config
 where id = %(group_id)s
