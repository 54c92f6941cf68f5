-- name: lock_position
-- Keep the processes of a group from claiming until we commit, and read the last id that was handed to one.
select claimed as id
  from {schema}.consumer_group_cursor
 where group_id = %(group_id)s
   for update

-- name: lock_leases
-- Keep a group's open ranges as they are until we commit: nothing more of them can be recorded before that.
select token
  from {schema}.claim_lease
 where group_id = %(group_id)s
 order by low
   for update

-- name: get_claimed
-- Read the last id of a group that was handed to a process.
select claimed as id
  from {schema}.consumer_group_cursor
 where group_id = %(group_id)s

-- name: list_leases_above
-- Read the open ranges of a group that hold ids behind a position, the lowest first.
select low, high, resolved
  from {schema}.claim_lease
 where group_id = %(group_id)s
   and high > %(position)s
 order by low

-- name: measure_messages
-- Count the visible messages behind one id and up to another, and read the first and the last of them.
select n.messages, f.id as first_id, l.id as last_id, f.created_at as first_at, l.created_at as last_at
  from (select count(*) as messages
          from {schema}.message_log_{stream}
         where id > %(above)s
           and id <= %(through)s) as n
  left join (select id, created_at
               from {schema}.message_log_{stream}
              where id > %(above)s
                and id <= %(through)s
              order by id
              limit 1) as f on true
  left join (select id, created_at
               from {schema}.message_log_{stream}
              where id > %(above)s
                and id <= %(through)s
              order by id desc
              limit 1) as l on true

-- name: count_exceptions_above
-- Count the exception rows of a group behind a position.
select count(*) filter (where state = 'waiting') as waiting,
       count(*) filter (where state = 'ready') as ready,
       count(*) filter (where state = 'deferred') as deferred,
       count(*) filter (where state = 'inflight') as inflight,
       count(*) filter (where state = 'unread') as unread,
       count(*) filter (where state = 'dead') as dead,
       count(*) filter (where state = 'superseded') as superseded
  from {schema}.exception_queue_{stream}
 where group_id = %(group_id)s
   and message_id > %(position)s

-- name: delete_leases_above
-- Take the ranges behind a position from whoever has them: their tokens prove nothing any more.
delete from {schema}.claim_lease
 where group_id = %(group_id)s
   and high > %(position)s

-- name: delete_exceptions_above
-- Remove the exception rows of a group behind a position, whose messages are about to be delivered afresh. After the
-- ranges are gone, since until then a process may add rows.
delete from {schema}.exception_queue_{stream}
 where group_id = %(group_id)s
   and message_id > %(position)s

-- name: move_cursor
-- Have a group go on behind an id.
update {schema}.consumer_group_cursor
   set claimed = %(position)s
 where group_id = %(group_id)s

-- name: log_position
-- Keep who moved a group, from where to where, and what that meant.
insert into {schema}.position_log
       (group_id, action, claimed, position, messages, first_id, last_id, leases, exceptions)
values (%(group_id)s, %(action)s, %(claimed)s, %(position)s, %(messages)s, %(first_id)s, %(last_id)s, %(leases)s,
        %(exceptions)s)

-- name: list_positions
-- Read how a group was moved, the latest move first.
select action, claimed, position, messages, first_id, last_id, leases, exceptions, changed_by, changed_at
  from {schema}.position_log
 where group_id = %(group_id)s
 order by id desc
 limit %(limit)s
