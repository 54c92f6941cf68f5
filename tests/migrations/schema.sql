table binding_declaration
    id bigint not null generated always as identity
    token uuid
    group_id bigint not null
    instance_id bigint
    bindings text[] not null
    declared_by text not null default SESSION_USER
    declared_at timestamp with time zone not null default now()
    constraint binding_declaration_check CHECK (((token IS NULL) = (instance_id IS NULL)))
    constraint binding_declaration_group_id_fkey FOREIGN KEY (group_id) REFERENCES sqlstreams.consumer_group_config(id) ON DELETE CASCADE
    constraint binding_declaration_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES sqlstreams.consumer_instance(id) ON DELETE CASCADE
    constraint binding_declaration_pkey PRIMARY KEY (id)
    constraint binding_declaration_token_key UNIQUE (token)
CREATE INDEX binding_declaration_group ON sqlstreams.binding_declaration USING btree (group_id)
CREATE INDEX binding_declaration_instance ON sqlstreams.binding_declaration USING btree (instance_id)
CREATE UNIQUE INDEX binding_declaration_pkey ON sqlstreams.binding_declaration USING btree (id)
CREATE UNIQUE INDEX binding_declaration_token_key ON sqlstreams.binding_declaration USING btree (token)

sequence binding_declaration_id_seq as bigint start 1 increment 1 cache 1

table claim_lease with (fillfactor=50)
    token uuid not null
    group_id bigint not null
    instance_id bigint
    low bigint not null
    high bigint not null
    resolved bigint not null
    done bigint[] not null default '{}'::bigint[]
    reclaims integer not null default 0
    gated boolean not null default false
    running bigint
    bindings text[]
    claimed_at timestamp with time zone not null default now()
    constraint claim_lease_check CHECK ((high >= low))
    constraint claim_lease_group_id_fkey FOREIGN KEY (group_id) REFERENCES sqlstreams.consumer_group_config(id) ON DELETE CASCADE
    constraint claim_lease_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES sqlstreams.consumer_instance(id) ON DELETE SET NULL
    constraint claim_lease_pkey PRIMARY KEY (token)
CREATE INDEX claim_lease_group ON sqlstreams.claim_lease USING btree (group_id, low)
CREATE INDEX claim_lease_instance ON sqlstreams.claim_lease USING btree (instance_id)
CREATE UNIQUE INDEX claim_lease_pkey ON sqlstreams.claim_lease USING btree (token)

table compaction_head_1 with (fillfactor=70)
    message_key text not null
    schema_version integer not null
    rank bigint not null
    id bigint not null
    constraint compaction_head_1_pkey PRIMARY KEY (message_key)
CREATE INDEX compaction_head_1_id ON sqlstreams.compaction_head_1 USING btree (id)
CREATE UNIQUE INDEX compaction_head_1_pkey ON sqlstreams.compaction_head_1 USING btree (message_key)

table consumer_group_config
    id bigint not null generated always as identity
    stream_id bigint not null
    name text not null
    timeout interval
    max_retries integer not null
    max_delays integer
    retry_base interval not null
    retry_exponent double precision not null
    retry_cap interval not null
    concurrency text not null
    limits json not null
    delivery_log text not null
    start_at text not null
    bindings text[] not null default '{}'::text[]
    bound_at timestamp with time zone not null default now()
    bound_by text not null default SESSION_USER
    created_at timestamp with time zone not null default now()
    updated_at timestamp with time zone not null default now()
    constraint consumer_group_config_check CHECK ((retry_cap >= retry_base))
    constraint consumer_group_config_concurrency_check CHECK ((concurrency = ANY (ARRAY['parallel'::text, 'exclusive'::text, 'ordered'::text])))
    constraint consumer_group_config_delivery_log_check CHECK ((delivery_log = ANY (ARRAY['failures'::text, 'all'::text, 'off'::text])))
    constraint consumer_group_config_max_delays_check CHECK (((max_delays >= 0) AND (max_delays <= 1000000)))
    constraint consumer_group_config_max_retries_check CHECK (((max_retries >= 0) AND (max_retries <= 1000000)))
    constraint consumer_group_config_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'::text))
    constraint consumer_group_config_pkey PRIMARY KEY (id)
    constraint consumer_group_config_retry_base_check CHECK ((retry_base >= '00:00:00'::interval))
    constraint consumer_group_config_retry_exponent_check CHECK (((retry_exponent >= (1)::double precision) AND (retry_exponent <= (10)::double precision)))
    constraint consumer_group_config_stream_id_fkey FOREIGN KEY (stream_id) REFERENCES sqlstreams.stream_config(id) ON DELETE CASCADE
    constraint consumer_group_config_stream_id_name_key UNIQUE (stream_id, name)
    constraint consumer_group_config_timeout_check CHECK ((timeout > '00:00:00'::interval))
CREATE UNIQUE INDEX consumer_group_config_pkey ON sqlstreams.consumer_group_config USING btree (id)
CREATE UNIQUE INDEX consumer_group_config_stream_id_name_key ON sqlstreams.consumer_group_config USING btree (stream_id, name)

sequence consumer_group_config_id_seq as bigint start 1 increment 1 cache 1

table consumer_group_config_log
    id bigint not null generated always as identity
    group_id bigint not null
    stream_id bigint not null
    action text not null
    config jsonb not null
    changed_by text not null default SESSION_USER
    changed_at timestamp with time zone not null default now()
    constraint consumer_group_config_log_action_check CHECK ((action = ANY (ARRAY['registered'::text, 'changed'::text, 'renamed'::text, 'destroyed'::text])))
    constraint consumer_group_config_log_pkey PRIMARY KEY (id)
CREATE UNIQUE INDEX consumer_group_config_log_pkey ON sqlstreams.consumer_group_config_log USING btree (id)

sequence consumer_group_config_log_id_seq as bigint start 1 increment 1 cache 1

table consumer_group_cursor with (fillfactor=50)
    group_id bigint not null
    claimed bigint not null
    bindings text[]
    constraint consumer_group_cursor_group_id_fkey FOREIGN KEY (group_id) REFERENCES sqlstreams.consumer_group_config(id) ON DELETE CASCADE
    constraint consumer_group_cursor_pkey PRIMARY KEY (group_id)
CREATE UNIQUE INDEX consumer_group_cursor_pkey ON sqlstreams.consumer_group_cursor USING btree (group_id)

view consumer_group_status
    stream text  -- the stream it reads
    name text  -- the group
    id bigint  -- its id
    head bigint  -- the last visible message id of the stream
    claimed bigint  -- the last id handed to a process
    committed bigint  -- everything up to this id was handled, or has an exception row
    lag bigint  -- ids between committed and head; rolled-back ones count until passed
    lag_time interval  -- how long ago the first message behind committed was produced
    leases integer  -- ranges that are leased to processes or free to be taken over
    processes integer  -- how many processes hold one
    waiting bigint  -- messages that were produced for later and are not due; this and the next six count up to 100,000
    next_due_at timestamp with time zone  -- when the first of them is due
    ready bigint  -- failed or delayed messages that wait for their next delivery
    inflight bigint  -- such messages that are being delivered
    deferred bigint  -- messages that wait for an earlier one of their key
    unread bigint  -- messages of a schema version that no process could read so far
    dead bigint  -- messages whose retries are spent, or that can never succeed
    superseded bigint  -- messages that were not delivered, since a newer one of their key came first; until compaction removes them
    reclaims bigint  -- how often work was taken over from a process that died
    lost bigint  -- messages that retention removed before the group had done them
 SELECT s.name AS stream,
    g.name,
    g.id,
    h.head,
    c.claimed,
    p.committed,
    GREATEST(h.head - p.committed, 0::bigint) AS lag,
    b.lag_time,
    l.leases,
    l.processes,
    b.waiting,
    b.next_due_at,
    b.ready,
    b.inflight,
    b.deferred,
    b.unread,
    b.dead,
    b.superseded,
    ( SELECT count(*) AS count
           FROM sqlstreams.reclaim_log r
          WHERE r.group_id = g.id) AS reclaims,
    ( SELECT COALESCE(sum(o.messages), 0::numeric)::bigint AS "coalesce"
           FROM sqlstreams.position_log o
          WHERE o.group_id = g.id AND o.action = 'lost'::text) AS lost
   FROM sqlstreams.consumer_group_config g
     JOIN sqlstreams.stream_config s ON s.id = g.stream_id
     JOIN sqlstreams.consumer_group_cursor c ON c.group_id = g.id
     CROSS JOIN LATERAL sqlstreams.log_head(s.id) h(head, last_at)
     CROSS JOIN LATERAL ( SELECT count(*)::integer AS leases,
            count(DISTINCT claim_lease.instance_id)::integer AS processes,
            min(claim_lease.resolved) AS resolved
           FROM sqlstreams.claim_lease
          WHERE claim_lease.group_id = g.id) l
     CROSS JOIN LATERAL ( SELECT LEAST(c.claimed, l.resolved) AS committed) p
     CROSS JOIN LATERAL sqlstreams.group_backlog(s.id, g.id, p.committed) b(lag_time, waiting, next_due_at, ready, inflight, deferred, unread, dead, superseded);

table consumer_instance with (fillfactor=50)
    id bigint not null generated always as identity
    token uuid not null
    hostname text not null
    pid integer not null
    library text not null
    started_at timestamp with time zone not null default now()
    renewed_at timestamp with time zone not null default now()
    expires_at timestamp with time zone not null
    fenced boolean not null default false
    constraint consumer_instance_pkey PRIMARY KEY (id)
CREATE UNIQUE INDEX consumer_instance_pkey ON sqlstreams.consumer_instance USING btree (id)

sequence consumer_instance_id_seq as bigint start 1 increment 1 cache 1

view dead_letters
    stream text  -- the stream it was produced to
    consumer_group text  -- the group in which it is dead
    message_id bigint  -- its id
    message_key text  -- its key
    error_type text  -- the class of the last exception
    error text  -- the text of the last exception and its place
    failures integer  -- deliveries that failed, since it was redriven if it was
    delays integer  -- deliveries that the handler put off
    first_failed_at timestamp with time zone  -- when it first did not succeed
    dead_since timestamp with time zone  -- when its last delivery failed
    created_at timestamp with time zone  -- when it was produced
    payload json  -- what it says; null when the log does not hold it any more
 SELECT s.name AS stream,
    g.name AS consumer_group,
    d.message_id,
    d.message_key,
    d.error_type,
    d.error,
    d.failures,
    d.delays,
    d.first_failed_at,
    d.dead_since,
    d.created_at,
    d.payload
   FROM sqlstreams.consumer_group_config g
     JOIN sqlstreams.stream_config s ON s.id = g.stream_id
     CROSS JOIN LATERAL sqlstreams.group_dead_letters(s.id, g.id) d(message_id, message_key, error_type, error, failures, delays, first_failed_at, dead_since, created_at, payload);

table deadline_aside
    deadline_id bigint not null
    key text not null
    failures integer not null default 1
    last_error text not null
    since timestamp with time zone not null default now()
    retry_at timestamp with time zone not null
    constraint deadline_aside_deadline_id_fkey FOREIGN KEY (deadline_id) REFERENCES sqlstreams.deadline_config(id) ON DELETE CASCADE
    constraint deadline_aside_pkey PRIMARY KEY (deadline_id, key)
CREATE UNIQUE INDEX deadline_aside_pkey ON sqlstreams.deadline_aside USING btree (deadline_id, key)
CREATE INDEX deadline_aside_retry ON sqlstreams.deadline_aside USING btree (deadline_id, retry_at)

table deadline_config
    id bigint not null generated always as identity
    name text not null
    stream_id bigint not null
    schema_version integer not null
    fingerprint text
    table_schema text not null
    table_name text not null
    key_column text not null
    key_type text not null
    deadline_column text not null
    state_column text not null
    from_state text not null
    to_state text not null
    batch integer not null
    payload_columns text[]
    mode text not null
    only_rows json not null
    suspended_at timestamp with time zone
    revision bigint not null default 1
    created_at timestamp with time zone not null default now()
    updated_at timestamp with time zone not null default now()
    constraint deadline_config_batch_check CHECK (((batch >= 1) AND (batch <= 10000)))
    constraint deadline_config_check CHECK ((to_state <> from_state))
    constraint deadline_config_mode_check CHECK ((mode = ANY (ARRAY['active'::text, 'observe'::text])))
    constraint deadline_config_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'::text))
    constraint deadline_config_name_key UNIQUE (name)
    constraint deadline_config_pkey PRIMARY KEY (id)
    constraint deadline_config_schema_version_check CHECK ((schema_version >= 1))
    constraint deadline_config_stream_id_fkey FOREIGN KEY (stream_id) REFERENCES sqlstreams.stream_config(id) ON DELETE CASCADE
CREATE UNIQUE INDEX deadline_config_name_key ON sqlstreams.deadline_config USING btree (name)
CREATE UNIQUE INDEX deadline_config_pkey ON sqlstreams.deadline_config USING btree (id)
CREATE INDEX deadline_config_stream ON sqlstreams.deadline_config USING btree (stream_id)

sequence deadline_config_id_seq as bigint start 1 increment 1 cache 1

table deadline_config_log
    id bigint not null generated always as identity
    deadline_id bigint not null
    name text not null
    action text not null
    config json not null
    changed_by text not null default SESSION_USER
    changed_at timestamp with time zone not null default now()
    constraint deadline_config_log_action_check CHECK ((action = ANY (ARRAY['registered'::text, 'changed'::text, 'activated'::text, 'observed'::text, 'suspended'::text, 'unsuspended'::text, 'destroyed'::text])))
    constraint deadline_config_log_pkey PRIMARY KEY (id)
CREATE INDEX deadline_config_log_name ON sqlstreams.deadline_config_log USING btree (name, id)
CREATE UNIQUE INDEX deadline_config_log_pkey ON sqlstreams.deadline_config_log USING btree (id)

sequence deadline_config_log_id_seq as bigint start 1 increment 1 cache 1

table deadline_cursor with (fillfactor=50)
    deadline_id bigint not null
    moved bigint not null default 0
    replayed bigint not null default 0
    last_run_at timestamp with time zone
    last_moved_at timestamp with time zone
    observed_due bigint
    observed_at timestamp with time zone
    consecutive_failures integer not null default 0
    last_error text
    failed_at timestamp with time zone
    retry_at timestamp with time zone
    constraint deadline_cursor_deadline_id_fkey FOREIGN KEY (deadline_id) REFERENCES sqlstreams.deadline_config(id) ON DELETE CASCADE
    constraint deadline_cursor_pkey PRIMARY KEY (deadline_id)
CREATE UNIQUE INDEX deadline_cursor_pkey ON sqlstreams.deadline_cursor USING btree (deadline_id)

view deadline_status
    name text  -- the deadline
    id bigint  -- its id
    stream text  -- the stream it produces to
    table_name text  -- the table whose rows come due
    mode text  -- active: it moves rows; observe: it only counts them
    suspended boolean  -- whether it is stopped until somebody unsuspends it
    moved bigint  -- rows moved, each with a message, since it was registered
    replayed bigint  -- messages produced again by replays
    last_run_at timestamp with time zone  -- when somebody last looked and it is known
    last_moved_at timestamp with time zone  -- when rows were last moved
    observed_due bigint  -- rows that were due when it was last observed; counted up to 100,000
    observed_at timestamp with time zone  -- when that was
    aside bigint  -- rows that could not be moved and are tried again one by one
    consecutive_failures integer  -- runs that failed since the last that did not
    last_error text  -- why the last run that failed did
    failed_at timestamp with time zone  -- when that was
    retry_at timestamp with time zone  -- when it is tried again
 SELECT d.name,
    d.id,
    s.name AS stream,
    format('%I.%I'::text, d.table_schema, d.table_name) AS table_name,
    d.mode,
    d.suspended_at IS NOT NULL AS suspended,
    c.moved,
    c.replayed,
    c.last_run_at,
    c.last_moved_at,
    c.observed_due,
    c.observed_at,
    ( SELECT count(*) AS count
           FROM sqlstreams.deadline_aside a
          WHERE a.deadline_id = d.id) AS aside,
    c.consecutive_failures,
    c.last_error,
    c.failed_at,
    c.retry_at
   FROM sqlstreams.deadline_config d
     JOIN sqlstreams.stream_config s ON s.id = d.stream_id
     JOIN sqlstreams.deadline_cursor c ON c.deadline_id = d.id;

table delivery_log_1
    id bigint not null generated always as identity  -- the order of the entries of a message
    group_id bigint not null  -- the consumer group
    message_id bigint not null  -- the message
    attempt integer not null  -- which delivery it was, counted from 1 and from 1 again after a redrive; of the last one where outcome is redriven or discarded
    outcome text not null  -- succeeded (where successes are kept), failed (again later), delayed (the handler asked for it), died (with its process, again later), dead (the last one), redriven, discarded
    error_type text  -- the class of the exception
    error text  -- its text and place; the reason where outcome is discarded
    hostname text  -- where the process ran
    pid integer  -- the process
    changed_by text  -- the role that redrove or discarded it
    at timestamp with time zone not null default clock_timestamp()  -- when it was recorded
    constraint delivery_log_1_outcome_check CHECK ((outcome = ANY (ARRAY['succeeded'::text, 'failed'::text, 'delayed'::text, 'dead'::text, 'died'::text, 'redriven'::text, 'discarded'::text])))
    constraint delivery_log_1_pkey PRIMARY KEY (group_id, message_id, id)
CREATE UNIQUE INDEX delivery_log_1_pkey ON sqlstreams.delivery_log_1 USING btree (group_id, message_id, id)

sequence delivery_log_1_id_seq as bigint start 1 increment 1 cache 1

table duty_status with (fillfactor=50)
    name text not null  -- the duty
    suspended boolean not null default false  -- whether the manager leaves it alone for now
    runs bigint not null default 0  -- how often it ran, failures included
    done bigint not null default 0  -- how much it did in all that time; each duty counts things of its own
    last_run_at timestamp with time zone  -- when it last ended, also by a failure
    last_took interval  -- how long that run took
    last_done bigint  -- how much that run did
    running_since timestamp with time zone  -- since when it runs, if the manager last told that it does
    next_run_at timestamp with time zone  -- when it runs next, unless something comes up before
    failures integer not null default 0  -- how often it failed since it last succeeded
    last_error text  -- why it last failed, also when it succeeded since
    last_failed_at timestamp with time zone  -- when that was
    constraint duty_status_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'::text))
    constraint duty_status_pkey PRIMARY KEY (name)
CREATE UNIQUE INDEX duty_status_pkey ON sqlstreams.duty_status USING btree (name)

table exception_queue_1 with (fillfactor=70)
    group_id bigint not null
    message_id bigint not null
    state text not null
    failures integer not null default 0
    delays integer not null default 0
    can_run_after timestamp with time zone not null
    schema_version integer not null default 1
    instance_id bigint
    token uuid
    message_key text
    concurrency text
    started boolean not null default false
    alone boolean not null default false
    error_type text
    error text
    first_failed_at timestamp with time zone not null default now()
    updated_at timestamp with time zone not null default now()
    constraint exception_queue_1_check CHECK (((state = 'inflight'::text) = (token IS NOT NULL)))
    constraint exception_queue_1_concurrency_check CHECK ((concurrency = ANY (ARRAY['exclusive'::text, 'ordered'::text])))
    constraint exception_queue_1_pkey PRIMARY KEY (group_id, message_id)
    constraint exception_queue_1_state_check CHECK ((state = ANY (ARRAY['waiting'::text, 'ready'::text, 'inflight'::text, 'deferred'::text, 'unread'::text, 'dead'::text, 'superseded'::text, 'cancelled'::text])))
CREATE INDEX exception_queue_1_dead ON sqlstreams.exception_queue_1 USING btree (group_id, message_id) WHERE (state = 'dead'::text)
CREATE INDEX exception_queue_1_due ON sqlstreams.exception_queue_1 USING btree (group_id, can_run_after) WHERE (state = 'ready'::text)
CREATE INDEX exception_queue_1_inflight ON sqlstreams.exception_queue_1 USING btree (group_id, instance_id) WHERE (state = 'inflight'::text)
CREATE INDEX exception_queue_1_keys ON sqlstreams.exception_queue_1 USING btree (group_id, message_key, message_id) WHERE ((concurrency IS NOT NULL) AND ((state = ANY (ARRAY['ready'::text, 'inflight'::text, 'deferred'::text, 'unread'::text])) OR ((state = 'waiting'::text) AND (concurrency = 'ordered'::text))))
CREATE INDEX exception_queue_1_open ON sqlstreams.exception_queue_1 USING btree (group_id, message_key) WHERE ((concurrency IS NOT NULL) AND ((state = ANY (ARRAY['ready'::text, 'inflight'::text, 'unread'::text])) OR ((state = 'waiting'::text) AND (concurrency = 'ordered'::text))))
CREATE UNIQUE INDEX exception_queue_1_pkey ON sqlstreams.exception_queue_1 USING btree (group_id, message_id)
CREATE INDEX exception_queue_1_superseded ON sqlstreams.exception_queue_1 USING btree (group_id, message_id) WHERE (state = 'superseded'::text)
CREATE INDEX exception_queue_1_unread ON sqlstreams.exception_queue_1 USING btree (group_id, schema_version) WHERE (state = 'unread'::text)
CREATE INDEX exception_queue_1_waiting ON sqlstreams.exception_queue_1 USING btree (group_id, can_run_after) WHERE (state = 'waiting'::text)

table idempotency_key_1 with (fillfactor=50)
    idempotency_key text not null
    fingerprint bytea not null
    message_id bigint
    expires_at timestamp with time zone not null
    constraint idempotency_key_1_pkey PRIMARY KEY (idempotency_key)
CREATE INDEX idempotency_key_1_expires ON sqlstreams.idempotency_key_1 USING btree (expires_at)
CREATE UNIQUE INDEX idempotency_key_1_pkey ON sqlstreams.idempotency_key_1 USING btree (idempotency_key)

table message_key_lease with (fillfactor=70)
    group_id bigint not null
    message_key text not null
    instance_id bigint
    constraint message_key_lease_group_id_fkey FOREIGN KEY (group_id) REFERENCES sqlstreams.consumer_group_config(id) ON DELETE CASCADE
    constraint message_key_lease_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES sqlstreams.consumer_instance(id) ON DELETE SET NULL
    constraint message_key_lease_pkey PRIMARY KEY (group_id, message_key)
CREATE INDEX message_key_lease_instance ON sqlstreams.message_key_lease USING btree (instance_id)
CREATE UNIQUE INDEX message_key_lease_pkey ON sqlstreams.message_key_lease USING btree (group_id, message_key)

table message_log_1 partition by RANGE (id)
    id bigint not null default nextval('sqlstreams.message_log_1_id'::regclass)
    payload json not null
    routing_key text
    message_key text
    schema_version integer not null default 1
    compaction_rank bigint
    options json
    created_at timestamp with time zone not null default statement_timestamp()
    constraint message_log_1_pkey PRIMARY KEY (id)
CREATE INDEX message_log_1_compaction ON ONLY sqlstreams.message_log_1 USING btree (message_key, id) WHERE (compaction_rank IS NOT NULL)
CREATE UNIQUE INDEX message_log_1_pkey ON ONLY sqlstreams.message_log_1 USING btree (id)

table message_log_1_from_0 partition of sqlstreams.message_log_1 FOR VALUES FROM ('0') TO ('1000000')
    id bigint not null default nextval('sqlstreams.message_log_1_id'::regclass)
    payload json not null
    routing_key text
    message_key text
    schema_version integer not null default 1
    compaction_rank bigint
    options json
    created_at timestamp with time zone not null default statement_timestamp()
    constraint message_log_1_from_0_pkey PRIMARY KEY (id)
CREATE INDEX message_log_1_from_0_message_key_id_idx ON sqlstreams.message_log_1_from_0 USING btree (message_key, id) WHERE (compaction_rank IS NOT NULL)
CREATE UNIQUE INDEX message_log_1_from_0_pkey ON sqlstreams.message_log_1_from_0 USING btree (id)

sequence message_log_1_id as bigint start 1 increment 1 cache 1

table migration_log
    scope text not null
    stream_id bigint not null
    version integer not null
    name text not null
    checksum text not null
    breaking boolean not null
    library text not null
    applied_at timestamp with time zone not null default now()
    constraint migration_log_pkey PRIMARY KEY (scope, stream_id, version)
    constraint migration_log_scope_check CHECK ((scope = ANY (ARRAY['system'::text, 'stream'::text])))
CREATE UNIQUE INDEX migration_log_pkey ON sqlstreams.migration_log USING btree (scope, stream_id, version)

table payload_schema
    stream_id bigint not null
    schema_version integer not null
    fingerprint text not null
    json_schema jsonb not null
    registered_at timestamp with time zone not null default now()
    constraint payload_schema_pkey PRIMARY KEY (stream_id, schema_version)
    constraint payload_schema_schema_version_check CHECK ((schema_version >= 1))
    constraint payload_schema_stream_id_fkey FOREIGN KEY (stream_id) REFERENCES sqlstreams.stream_config(id) ON DELETE CASCADE
CREATE UNIQUE INDEX payload_schema_pkey ON sqlstreams.payload_schema USING btree (stream_id, schema_version)

table position_log
    id bigint not null generated always as identity
    group_id bigint not null
    action text not null
    claimed bigint not null
    position bigint not null
    messages bigint not null
    first_id bigint
    last_id bigint
    leases integer not null
    exceptions bigint not null
    changed_by text not null default SESSION_USER
    changed_at timestamp with time zone not null default now()
    constraint position_log_action_check CHECK ((action = ANY (ARRAY['rewound'::text, 'skipped'::text, 'lost'::text])))
    constraint position_log_group_id_fkey FOREIGN KEY (group_id) REFERENCES sqlstreams.consumer_group_config(id) ON DELETE CASCADE
    constraint position_log_pkey PRIMARY KEY (id)
CREATE INDEX position_log_group ON sqlstreams.position_log USING btree (group_id, id)
CREATE UNIQUE INDEX position_log_pkey ON sqlstreams.position_log USING btree (id)

sequence position_log_id_seq as bigint start 1 increment 1 cache 1

table reclaim_log
    id bigint not null generated always as identity
    group_id bigint not null
    low bigint not null
    high bigint not null
    resolved bigint not null
    done bigint[] not null
    from_instance bigint
    from_hostname text
    from_pid integer
    to_instance bigint
    reclaimed_at timestamp with time zone not null default now()
    constraint reclaim_log_group_id_fkey FOREIGN KEY (group_id) REFERENCES sqlstreams.consumer_group_config(id) ON DELETE CASCADE
    constraint reclaim_log_pkey PRIMARY KEY (id)
CREATE INDEX reclaim_log_group ON sqlstreams.reclaim_log USING btree (group_id, low)
CREATE UNIQUE INDEX reclaim_log_pkey ON sqlstreams.reclaim_log USING btree (id)

sequence reclaim_log_id_seq as bigint start 1 increment 1 cache 1

table role_grant
    role_name text not null
    kind text not null
    granted_by text not null default SESSION_USER
    granted_at timestamp with time zone not null default now()
    constraint role_grant_kind_check CHECK ((kind = ANY (ARRAY['producer'::text, 'consumer'::text, 'operator'::text, 'manager'::text])))
    constraint role_grant_pkey PRIMARY KEY (role_name, kind)
CREATE UNIQUE INDEX role_grant_pkey ON sqlstreams.role_grant USING btree (role_name, kind)

table schedule_config
    id bigint not null generated always as identity
    name text not null
    stream_id bigint not null
    expression text not null
    timezone text not null
    payload json not null
    schema_version integer not null
    fingerprint text
    concurrency text not null
    timeout_ns bigint not null
    catch_up text not null
    catch_up_window interval not null
    jitter interval
    start_at timestamp with time zone
    end_at timestamp with time zone
    compaction boolean not null
    suspended_at timestamp with time zone
    revision bigint not null default 1
    created_at timestamp with time zone not null default now()
    updated_at timestamp with time zone not null default now()
    constraint schedule_config_catch_up_check CHECK ((catch_up = ANY (ARRAY['newest'::text, 'oldest'::text, 'all'::text, 'skip'::text])))
    constraint schedule_config_catch_up_window_check CHECK ((catch_up_window >= '00:00:00'::interval))
    constraint schedule_config_check CHECK ((end_at >= start_at))
    constraint schedule_config_check1 CHECK ((NOT (compaction AND (concurrency = 'ordered'::text))))
    constraint schedule_config_concurrency_check CHECK ((concurrency = ANY (ARRAY['parallel'::text, 'exclusive'::text, 'ordered'::text])))
    constraint schedule_config_jitter_check CHECK ((jitter > '00:00:00'::interval))
    constraint schedule_config_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'::text))
    constraint schedule_config_name_key UNIQUE (name)
    constraint schedule_config_pkey PRIMARY KEY (id)
    constraint schedule_config_schema_version_check CHECK ((schema_version >= 1))
    constraint schedule_config_stream_id_fkey FOREIGN KEY (stream_id) REFERENCES sqlstreams.stream_config(id) ON DELETE CASCADE
    constraint schedule_config_timeout_ns_check CHECK ((timeout_ns > 0))
CREATE UNIQUE INDEX schedule_config_name_key ON sqlstreams.schedule_config USING btree (name)
CREATE UNIQUE INDEX schedule_config_pkey ON sqlstreams.schedule_config USING btree (id)
CREATE INDEX schedule_config_stream ON sqlstreams.schedule_config USING btree (stream_id)

sequence schedule_config_id_seq as bigint start 1 increment 1 cache 1

table schedule_config_log
    id bigint not null generated always as identity
    schedule_id bigint not null
    name text not null
    action text not null
    config json not null
    changed_by text not null default SESSION_USER
    changed_at timestamp with time zone not null default now()
    constraint schedule_config_log_action_check CHECK ((action = ANY (ARRAY['registered'::text, 'changed'::text, 'suspended'::text, 'unsuspended'::text, 'destroyed'::text])))
    constraint schedule_config_log_pkey PRIMARY KEY (id)
CREATE INDEX schedule_config_log_name ON sqlstreams.schedule_config_log USING btree (name, id)
CREATE UNIQUE INDEX schedule_config_log_pkey ON sqlstreams.schedule_config_log USING btree (id)

sequence schedule_config_log_id_seq as bigint start 1 increment 1 cache 1

table schedule_cursor with (fillfactor=70)
    schedule_id bigint not null
    next_slot timestamp with time zone
    due_at timestamp with time zone
    last_slot timestamp with time zone
    last_fired_at timestamp with time zone
    last_message_id bigint
    consecutive_failures integer not null default 0
    last_error text
    failed_at timestamp with time zone
    zone_data text not null
    constraint schedule_cursor_pkey PRIMARY KEY (schedule_id)
    constraint schedule_cursor_schedule_id_fkey FOREIGN KEY (schedule_id) REFERENCES sqlstreams.schedule_config(id) ON DELETE CASCADE
CREATE INDEX schedule_cursor_due ON sqlstreams.schedule_cursor USING btree (due_at) WHERE (due_at IS NOT NULL)
CREATE UNIQUE INDEX schedule_cursor_pkey ON sqlstreams.schedule_cursor USING btree (schedule_id)

table schedule_fire
    schedule_id bigint not null
    scheduled_for timestamp with time zone not null
    fired_at timestamp with time zone not null default clock_timestamp()
    kind text not null
    message_id bigint not null
    fired_by text not null
    constraint schedule_fire_kind_check CHECK ((kind = ANY (ARRAY['slot'::text, 'catch_up'::text, 'backfill'::text, 'manual'::text])))
    constraint schedule_fire_pkey PRIMARY KEY (schedule_id, scheduled_for)
    constraint schedule_fire_schedule_id_fkey FOREIGN KEY (schedule_id) REFERENCES sqlstreams.schedule_config(id) ON DELETE CASCADE
CREATE UNIQUE INDEX schedule_fire_pkey ON sqlstreams.schedule_fire USING btree (schedule_id, scheduled_for)

table schedule_skip
    id bigint not null generated always as identity
    schedule_id bigint not null
    first_slot timestamp with time zone not null
    last_slot timestamp with time zone not null
    slots bigint not null
    reason text not null
    recorded_at timestamp with time zone not null default now()
    constraint schedule_skip_check CHECK ((last_slot >= first_slot))
    constraint schedule_skip_pkey PRIMARY KEY (id)
    constraint schedule_skip_reason_check CHECK ((reason = ANY (ARRAY['catch_up'::text, 'window'::text, 'suspended'::text, 'edited'::text])))
    constraint schedule_skip_schedule_id_fkey FOREIGN KEY (schedule_id) REFERENCES sqlstreams.schedule_config(id) ON DELETE CASCADE
    constraint schedule_skip_slots_check CHECK ((slots > 0))
CREATE UNIQUE INDEX schedule_skip_pkey ON sqlstreams.schedule_skip USING btree (id)
CREATE INDEX schedule_skip_schedule ON sqlstreams.schedule_skip USING btree (schedule_id, id)

sequence schedule_skip_id_seq as bigint start 1 increment 1 cache 1

view schedule_status
    name text  -- the schedule, and the key of its messages
    id bigint  -- its id
    stream text  -- the stream it produces to
    expression text  -- when it is due, as a cron expression
    timezone text  -- the zone that the expression is read in
    catch_up text  -- which slots are fired after a time when nobody fired them
    suspended boolean  -- whether it is stopped until somebody unsuspends it
    next_slot timestamp with time zone  -- the first slot neither fired nor skipped; null when none is left
    due_at timestamp with time zone  -- when it is looked at: the slot and its jitter, or the next try after a failure; null while suspended
    last_slot timestamp with time zone  -- the last slot that fired
    last_fired_at timestamp with time zone  -- when it fired
    last_message_id bigint  -- the message of that fire
    consecutive_failures integer  -- tries that failed since the last fire
    last_error text  -- why the last try that failed did
    failed_at timestamp with time zone  -- when that was
 SELECT s.name,
    s.id,
    t.name AS stream,
    s.expression,
    s.timezone,
    s.catch_up,
    s.suspended_at IS NOT NULL AS suspended,
    c.next_slot,
    c.due_at,
    c.last_slot,
    c.last_fired_at,
    c.last_message_id,
    c.consecutive_failures,
    c.last_error,
    c.failed_at
   FROM sqlstreams.schedule_config s
     JOIN sqlstreams.stream_config t ON t.id = s.stream_id
     JOIN sqlstreams.schedule_cursor c ON c.schedule_id = s.id;

table stream_config
    id bigint not null generated always as identity
    name text not null
    max_payload integer not null
    partition_rows bigint not null
    keyed boolean not null default false
    retention interval
    keep_unread boolean not null
    kept_from bigint not null default 1
    expired_before timestamp with time zone
    compact_after interval
    idempotency_ttl interval not null
    created_at timestamp with time zone not null default now()
    updated_at timestamp with time zone not null default now()
    constraint stream_config_compact_after_check CHECK ((compact_after > '00:00:00'::interval))
    constraint stream_config_idempotency_ttl_check CHECK ((idempotency_ttl > '00:00:00'::interval))
    constraint stream_config_max_payload_check CHECK (((max_payload >= 1) AND (max_payload <= 268435456)))
    constraint stream_config_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'::text))
    constraint stream_config_name_key UNIQUE (name)
    constraint stream_config_partition_rows_check CHECK (((partition_rows >= 1000) AND (partition_rows <= 1000000000)))
    constraint stream_config_pkey PRIMARY KEY (id)
    constraint stream_config_retention_check CHECK ((retention > '00:00:00'::interval))
CREATE UNIQUE INDEX stream_config_name_key ON sqlstreams.stream_config USING btree (name)
CREATE UNIQUE INDEX stream_config_pkey ON sqlstreams.stream_config USING btree (id)

sequence stream_config_id_seq as bigint start 1 increment 1 cache 1

table stream_config_log
    id bigint not null generated always as identity
    stream_id bigint not null
    action text not null
    config jsonb not null
    changed_by text not null default SESSION_USER
    changed_at timestamp with time zone not null default now()
    constraint stream_config_log_action_check CHECK ((action = ANY (ARRAY['registered'::text, 'changed'::text, 'renamed'::text, 'destroyed'::text])))
    constraint stream_config_log_pkey PRIMARY KEY (id)
CREATE UNIQUE INDEX stream_config_log_pkey ON sqlstreams.stream_config_log USING btree (id)

sequence stream_config_log_id_seq as bigint start 1 increment 1 cache 1

view stream_status
    name text  -- the stream
    id bigint  -- its id, the suffix of its tables
    head bigint  -- the last visible message id; of an empty log, the id before kept_from
    last_at timestamp with time zone  -- when that message was produced
    partitions integer  -- how many partitions the log has
    size bigint  -- bytes of the log with its index
    groups integer  -- how many consumer groups read it
    retention interval  -- how old its messages become; null when they stay
    keep_unread boolean  -- whether messages that a group has not done stay beyond that
    kept_from bigint  -- the first id that is kept
    oldest_at timestamp with time zone  -- when the first message that is kept was produced
    held_back_by text  -- which group keeps messages beyond the retention, and the first of them
 SELECT s.name,
    s.id,
    h.head,
    h.last_at,
    p.partitions,
    p.size,
    (( SELECT count(*) AS count
           FROM sqlstreams.consumer_group_config g
          WHERE g.stream_id = s.id))::integer AS groups,
    s.retention,
    s.keep_unread,
    s.kept_from,
    t.oldest_at,
    t.held_back_by
   FROM sqlstreams.stream_config s
     CROSS JOIN LATERAL sqlstreams.log_head(s.id) h(head, last_at)
     CROSS JOIN LATERAL sqlstreams.log_tail(s.id) t(oldest_at, held_back_by)
     CROSS JOIN LATERAL ( SELECT count(*)::integer AS partitions,
            COALESCE(sum(pg_total_relation_size(i.inhrelid::regclass)), 0::numeric)::bigint AS size
           FROM pg_inherits i
          WHERE i.inhparent = to_regclass(format('%I.%I'::text, 'sqlstreams', 'message_log_'::text || s.id))::oid) p;

table worker_config
    name text not null  -- the work; manager: schedules and the upkeep of the tables
    target_instances integer not null default 1  -- how many processes may do it at once; 0: none
    suspended boolean not null default false  -- whether nobody does it for now
    term bigint not null default 0  -- how often a process has begun to do it
    constraint worker_config_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'::text))
    constraint worker_config_pkey PRIMARY KEY (name)
    constraint worker_config_target_instances_check CHECK (((target_instances >= 0) AND (target_instances <= 1000)))
CREATE UNIQUE INDEX worker_config_pkey ON sqlstreams.worker_config USING btree (name)

table worker_instance with (fillfactor=50)
    id bigint not null generated always as identity  -- its id
    worker text not null  -- the work
    term bigint not null  -- rises with each process that begins
    token uuid not null  -- by which the process knows its row
    hostname text not null  -- where it runs
    pid integer not null  -- the process
    library text not null  -- its version of sqlstreams
    started_at timestamp with time zone not null default clock_timestamp()  -- since when it does the work
    renewed_at timestamp with time zone not null default clock_timestamp()  -- when it last said that it still does
    expires_at timestamp with time zone not null  -- when another may begin, unless it is renewed before
    constraint worker_instance_pkey PRIMARY KEY (id)
    constraint worker_instance_token_key UNIQUE (token)
    constraint worker_instance_worker_fkey FOREIGN KEY (worker) REFERENCES sqlstreams.worker_config(name) ON DELETE CASCADE
    constraint worker_instance_worker_term_key UNIQUE (worker, term)
CREATE UNIQUE INDEX worker_instance_pkey ON sqlstreams.worker_instance USING btree (id)
CREATE UNIQUE INDEX worker_instance_token_key ON sqlstreams.worker_instance USING btree (token)
CREATE UNIQUE INDEX worker_instance_worker_term_key ON sqlstreams.worker_instance USING btree (worker, term)

sequence worker_instance_id_seq as bigint start 1 increment 1 cache 1

CREATE OR REPLACE FUNCTION sqlstreams.append_messages(of_stream bigint, payloads json[], message_keys text[], routing_keys text[], options json[], compaction_ranks bigint[], idempotency_keys text[], place text)
 RETURNS bigint[]
 LANGUAGE plpgsql
AS $function$
declare
    log      text := pg_catalog.format('%I.%I', 'sqlstreams', 'message_log_' || of_stream);
    has_keys boolean := exists (select from pg_catalog.unnest(idempotency_keys) k where k is not null);
    -- Of each message the id it is a duplicate of; below 0, of which message of these; null where it is to be appended.
    known    bigint[];
    last_id  bigint;
    fresh    bigint[];
    ids      bigint[];
begin
    if has_keys then
        known := "sqlstreams".take_idempotency_keys(of_stream, payloads, idempotency_keys, place);
    end if;
    -- Far from the edge there is room for everyone who inserts at this moment; near it the log is extended first. No
    -- exception block: each would be a subtransaction, and many of those in one transaction slow the whole server.
    execute pg_catalog.format('select last_value from %s', log || '_id') into last_id;
    perform "sqlstreams".extend_log(of_stream, last_id + 10000 + pg_catalog.cardinality(payloads));
    execute pg_catalog.format(
        'with appended as ('
        '  insert into %s (payload, message_key, routing_key, options, compaction_rank)'
        '  select m.payload, m.message_key, m.routing_key, m.options, m.compaction_rank'
        '    from unnest($1, $2, $3, $4, $5) with ordinality'
        '      as m (payload, message_key, routing_key, options, compaction_rank, position)'
        '   where ($6)[m.position] is null'
        '  returning id)'
        'select array_agg(id order by id) from appended', log)
       into fresh
      using payloads, message_keys, routing_keys, options, compaction_ranks, known;
    if not has_keys then
        ids := fresh;
    else
        select pg_catalog.array_agg(coalesce(k.id, fresh[k.nth]) order by k.position) into ids
          from (select u.id, u.position, count(*) filter (where u.id is null) over (order by u.position) as nth
                  from pg_catalog.unnest(known) with ordinality as u (id, position)) as k;
        select pg_catalog.array_agg(case when u.id < 0 then ids[-u.id] else u.id end order by u.position) into ids
          from pg_catalog.unnest(ids) with ordinality as u (id, position);
        execute pg_catalog.format(
            'update %I.%I k set message_id = m.id'
            '  from unnest($1, $2, $3) as m (key, id, known)'
            ' where k.idempotency_key = m.key and m.known is null',
            'sqlstreams', 'idempotency_key_' || of_stream)
          using idempotency_keys, ids, known;
    end if;
    if exists (select from pg_catalog.unnest(compaction_ranks) r where r is not null) then
        -- What is for later counts when it is delivered.
        execute pg_catalog.format(
            'insert into %I.%I as h (message_key, schema_version, rank, id)'
            ' select m.key, 1, (max(array[m.rank, m.id]))[1], (max(array[m.rank, m.id]))[2]'
            '   from unnest($1, $2, $3, $4, $5) as m (key, rank, id, known, options)'
            '  where m.rank is not null and m.known is null'
            '    and coalesce(m.options ->> ''deliver_at'', m.options ->> ''delay'') is null'
            '  group by m.key order by m.key collate "C"'
            ' on conflict (message_key) do update'
            '    set schema_version = excluded.schema_version, rank = excluded.rank, id = excluded.id'
            '  where (h.schema_version, h.rank, h.id) < (excluded.schema_version, excluded.rank, excluded.id)',
            'sqlstreams', 'compaction_head_' || of_stream)
          using message_keys, compaction_ranks, ids, known, options;
    end if;
    return ids;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.check_delivery(message_key text, concurrency text, timeout interval, max_retries integer, max_delays integer, retry_base interval, retry_exponent double precision, retry_cap interval, place text)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
declare
    longest constant interval := interval '3650 days';
    field   text;
    problem text;
begin
    if concurrency not in ('parallel', 'exclusive', 'ordered') then
        field := 'concurrency';
        problem := pg_catalog.format('must be one of parallel, exclusive, ordered, got %L', concurrency);
    elsif concurrency <> 'parallel' and message_key is null then
        field := 'concurrency';
        problem := pg_catalog.format('of %L needs a key', concurrency);
    elsif timeout not between interval '1 millisecond' and longest then
        field := 'timeout';
        problem := pg_catalog.format('must be between 1 ms and %s, got %s', longest, timeout);
    elsif max_retries not between 0 and 1000000 then
        field := 'max_retries';
        problem := pg_catalog.format('must be between 0 and 1000000, got %s', max_retries);
    elsif max_delays not between 0 and 1000000 then
        field := 'max_delays';
        problem := pg_catalog.format('must be between 0 and 1000000, got %s', max_delays);
    elsif retry_base not between interval '0' and longest then
        field := 'retry_base';
        problem := pg_catalog.format('must be between 0 and %s, got %s', longest, retry_base);
    elsif retry_exponent not between 1 and 10 then  -- NaN is above all numbers
        field := 'retry_exponent';
        problem := pg_catalog.format('must be between 1 and 10, got %s', retry_exponent);
    elsif retry_cap not between interval '0' and longest then
        field := 'retry_cap';
        problem := pg_catalog.format('must be between 0 and %s, got %s', longest, retry_cap);
    end if;
    if field is not null then
        raise exception '% %', place || field, problem
            using errcode = 'SS010', column = field, hint = 'sqlstreams explain SQL0010';
    end if;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.check_due(deliver_at timestamp with time zone, delay interval, place text)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
declare
    longest constant interval := interval '3650 days';
    field   text;
    problem text;
begin
    if deliver_at is not null and delay is not null then
        field := 'delay';
        problem := 'goes without deliver_at';
    elsif deliver_at not between timestamptz '0001-01-01 00:00:00Z' and timestamptz '9999-12-31 23:59:59.999999Z' then
        field := 'deliver_at';
        problem := pg_catalog.format('must be in the years 1 to 9999, got %s', deliver_at);
    elsif delay not between interval '0' and longest then
        field := 'delay';
        problem := pg_catalog.format('must be between 0 and %s, got %s', longest, delay);
    end if;
    if field is not null then
        raise exception '% %', place || field, problem
            using errcode = 'SS010', column = field, hint = 'sqlstreams explain SQL0010';
    end if;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.check_message(payload json, message_key text, routing_key text, headers json, compaction_rank bigint, idempotency_key text, max_payload integer, place text)
 RETURNS void
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
declare
    field   text;
    problem text;
begin
    if payload is null then
        field := 'payload';
        problem := 'must not be null';
    elsif pg_catalog.octet_length(payload::text) > max_payload then
        field := 'payload';
        problem := pg_catalog.format('must have at most %s bytes as JSON, got %s', max_payload,
            pg_catalog.octet_length(payload::text));
    elsif payload::text ~* '\\u(0000|d[89a-f])' and not "sqlstreams".is_text(payload) then
        field := 'payload';
        problem := 'must not contain the character NUL or a lone surrogate';
    elsif payload::text ~* '[0-9]e\+?[0-9]{2}|[0-9]{200}[0-9]{109}\.' and not "sqlstreams".has_numbers(payload) then
        field := 'payload';
        problem := 'must not contain a number beyond what a double holds';
    elsif pg_catalog.octet_length(message_key) not between 1 and 512 then
        field := 'message_key';
        problem := pg_catalog.format('must have 1 to 512 bytes, got %s', pg_catalog.octet_length(message_key));
    elsif pg_catalog.octet_length(routing_key) not between 1 and 512 then
        field := 'routing_key';
        problem := pg_catalog.format('must have 1 to 512 bytes, got %s', pg_catalog.octet_length(routing_key));
    elsif compaction_rank is not null and message_key is null then
        field := 'compaction_rank';
        problem := 'needs a message_key';
    elsif pg_catalog.octet_length(idempotency_key) not between 1 and 512 then
        field := 'idempotency_key';
        problem := pg_catalog.format('must have 1 to 512 bytes, got %s', pg_catalog.octet_length(idempotency_key));
    elsif headers is not null and pg_catalog.json_typeof(headers) <> 'object' then
        field := 'headers';
        problem := 'must be a JSON object of texts';
    elsif headers::text ~* '\\u(0000|d[89a-f])' and not "sqlstreams".is_text(headers) then
        field := 'headers';
        problem := 'must not contain the character NUL or a lone surrogate';
    elsif headers is not null and exists (
        select from pg_catalog.json_each(headers) h where pg_catalog.json_typeof(h.value) <> 'string') then
        field := 'headers';
        problem := 'must be a JSON object of texts';
    elsif pg_catalog.octet_length(headers::text) > 16384 then
        field := 'headers';
        problem := pg_catalog.format('must have at most 16384 bytes together, got %s',
            pg_catalog.octet_length(headers::text));
    end if;
    if field is not null then
        raise exception '% %', place || field, problem
            using errcode = 'SS010', column = field, hint = 'sqlstreams explain SQL0010';
    end if;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.drop_detached(of_stream bigint, below bigint)
 RETURNS integer
 LANGUAGE plpgsql
 SET lock_timeout TO '2s'
 SET client_min_messages TO 'warning'
AS $function$
declare
    part    text;
    dropped integer := 0;
begin
    for part in
        select c.relname
          from pg_catalog.pg_class c
          join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         where n.nspname = 'sqlstreams'
           and c.relkind = 'r'
           and not c.relispartition
           and c.relname ~ ('^message_log_' || of_stream || '_from_[0-9]+$')
           and substring(c.relname from '[0-9]+$')::bigint < below
    loop
        -- Another one may have dropped it while we waited for the lock.
        execute pg_catalog.format('drop table if exists %I.%I', 'sqlstreams', part);
        dropped := dropped + 1;
    end loop;
    return dropped;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.due_at(options json, created_at timestamp with time zone)
 RETURNS timestamp with time zone
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
    return coalesce((options ->> 'deliver_at')::timestamptz,
                    created_at + make_interval(secs => (options ->> 'delay')::double precision));
exception when data_exception then
    return null;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.extend_log(of_stream bigint, through_id bigint)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET lock_timeout TO '5s'
AS $function$
declare
    parent text := pg_catalog.format('%I.%I', 'sqlstreams', 'message_log_' || of_stream);
    part   text;
    size   bigint;
    edge   bigint := "sqlstreams".log_edge(of_stream);
begin
    if edge > through_id then
        return edge;
    end if;
    perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(parent, 0));
    select partition_rows into strict size from "sqlstreams".stream_config where id = of_stream;
    edge := "sqlstreams".log_edge(of_stream);
    execute pg_catalog.format('select least($1, last_value + greatest(10000000, 10 * $2)) from %s', parent || '_id')
       into through_id using through_id, size;
    while edge <= through_id loop
        part := pg_catalog.format('%I.%I', 'sqlstreams', 'message_log_' || of_stream || '_from_' || edge);
        execute pg_catalog.format(
            'create table %s (like %s including defaults including constraints including indexes including storage)',
            part, parent);
        execute pg_catalog.format('alter table %s attach partition %s for values from (%s) to (%s)',
            parent, part, edge, edge + size);
        edge := edge + size;
    end loop;
    return edge;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.family_grants(kind text, of_stream bigint)
 RETURNS SETOF text
 LANGUAGE sql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    select format('grant %s on %s %I.%I to ', g.privileges, g.type, 'sqlstreams', format(g.object, of_stream))
      from (values
            ('{producer,operator}'::text[], 'insert, select (id)', 'table', 'message_log_%s'),
            ('{producer,operator}', 'usage, select', 'sequence', 'message_log_%s_id'),
            ('{producer,operator}', 'select, insert, update', 'table', 'compaction_head_%s'),
            ('{producer,operator}', 'select, insert, update', 'table', 'idempotency_key_%s'),
            ('{consumer,operator}', 'select', 'table', 'message_log_%s'),
            -- Messages for later are locked against their cancellation, and count for their key from their delivery on.
            ('{consumer,operator}', 'update (options)', 'table', 'message_log_%s'),
            ('{consumer}', 'select, insert, update', 'table', 'compaction_head_%s'),
            ('{consumer,operator}', 'select, insert, update, delete', 'table', 'exception_queue_%s'),
            ('{consumer,operator}', 'select, insert', 'table', 'delivery_log_%s')
           ) as g (kinds, privileges, type, object)
     where family_grants.kind = any(g.kinds)
$function$

CREATE OR REPLACE FUNCTION sqlstreams.find_stream(stream text, OUT id bigint, OUT max_payload integer)
 RETURNS record
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
    select c.id, c.max_payload into id, max_payload from "sqlstreams".stream_config c where c.name = find_stream.stream;
    if not found then
        raise exception 'there is no stream named %', pg_catalog.quote_nullable(stream)
            using errcode = 'SS012', hint = 'sqlstreams explain SQL0012';
    end if;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.grant_family(of_stream bigint)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
declare
    statement text;
begin
    for statement in
        select f || pg_catalog.quote_ident(g.role_name)
          from "sqlstreams".role_grant g
          join pg_catalog.pg_roles r on r.rolname = g.role_name
         cross join "sqlstreams".family_grants(g.kind, of_stream) as f
         order by 1
    loop
        execute statement;
    end loop;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.grant_role(role_name text, kind text)
 RETURNS SETOF text
 LANGUAGE plpgsql
AS $function$
declare
    statement text;
begin
    for statement in select g from "sqlstreams".role_grants(role_name, kind) as g loop
        execute statement;
        return next statement;
    end loop;
    insert into "sqlstreams".role_grant (role_name, kind)
    values (grant_role.role_name, grant_role.kind)
    on conflict on constraint role_grant_pkey do nothing;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.group_backlog(of_stream bigint, of_group bigint, committed bigint, OUT lag_time interval, OUT waiting bigint, OUT next_due_at timestamp with time zone, OUT ready bigint, OUT inflight bigint, OUT deferred bigint, OUT unread bigint, OUT dead bigint, OUT superseded bigint)
 RETURNS record
 LANGUAGE plpgsql
 STABLE
 SET enable_bitmapscan TO 'off'
AS $function$
begin
    execute pg_catalog.format('select clock_timestamp() - created_at from %I.%I where id > $1 order by id limit 1',
        'sqlstreams', 'message_log_' || of_stream) into lag_time using committed;
    execute pg_catalog.format(
        'select (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''waiting'''
        '                               order by can_run_after limit 100000) as e),'
        '       (select min(can_run_after) from %1$I.%2$I where group_id = $1 and state = ''waiting''),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''ready'''
        '                               order by can_run_after limit 100000) as e),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''inflight'''
        '                               order by instance_id limit 100000) as e),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''deferred'''
        '                              and concurrency is not null order by message_key, message_id limit 100000) as e),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''unread'''
        '                               order by schema_version limit 100000) as e),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''dead'''
        '                               order by message_id limit 100000) as e),'
        '       (select count(*) from (select from %1$I.%2$I where group_id = $1 and state = ''superseded'''
        '                               order by message_id limit 100000) as e)',
        'sqlstreams', 'exception_queue_' || of_stream)
       into waiting, next_due_at, ready, inflight, deferred, unread, dead, superseded
      using of_group;
    lag_time := coalesce(lag_time, interval '0');
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.group_dead_letters(of_stream bigint, of_group bigint, OUT message_id bigint, OUT message_key text, OUT error_type text, OUT error text, OUT failures integer, OUT delays integer, OUT first_failed_at timestamp with time zone, OUT dead_since timestamp with time zone, OUT created_at timestamp with time zone, OUT payload json)
 RETURNS SETOF record
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
    return query execute pg_catalog.format(
        'select e.message_id, m.message_key, e.error_type, e.error, e.failures, e.delays, e.first_failed_at,'
        '       e.updated_at, m.created_at, m.payload'
        '  from %I.%I e left join %I.%I m on m.id = e.message_id'
        ' where e.group_id = $1 and e.state = ''dead'' order by e.message_id',
        'sqlstreams', 'exception_queue_' || of_stream, 'sqlstreams', 'message_log_' || of_stream)
      using of_group;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.has_numbers(payload json)
 RETURNS boolean
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
begin
    return not exists (
        select from pg_catalog.jsonb_path_query(payload::jsonb, 'strict $.** ? (@.type() == "number")') n
         where pg_catalog.abs((n #>> array[]::text[])::numeric) > 1.7976931348623157e308);
exception when numeric_value_out_of_range then
    return false;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.is_text(payload json)
 RETURNS boolean
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
begin
    perform payload::jsonb;
    return true;
exception when untranslatable_character or invalid_text_representation or numeric_value_out_of_range then
    return false;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.is_value(value text, type text)
 RETURNS boolean
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
    execute pg_catalog.format('select pg_catalog.quote_literal(%L::%s)', value, type);
    return true;
exception when data_exception or integrity_constraint_violation then
    return false;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.last_id_before(of_stream bigint, at timestamp with time zone)
 RETURNS bigint
 LANGUAGE plpgsql
 STABLE
AS $function$
declare
    log        text := pg_catalog.format('%I.%I', 'sqlstreams', 'message_log_' || of_stream);
    low        bigint;
    high       bigint;
    middle     bigint;
    found_id   bigint;
    found_at   timestamptz;
begin
    execute pg_catalog.format('select id from %s order by id limit 1', log) into low;
    execute pg_catalog.format('select id from %s order by id desc limit 1', log) into high;
    -- From here on everything below `low` is too old, and the first that is not lies at or below `high`, or nowhere.
    while high - low > 100 loop
        middle := low + (high - low) / 2;
        execute pg_catalog.format('select id, created_at from %s where id >= $1 order by id limit 1', log)
           into found_id, found_at using middle;
        if found_at < at - interval '1 minute' then
            low := found_id;
        else
            high := middle;
        end if;
    end loop;
    execute pg_catalog.format('select id from %s where id >= $1 and created_at >= $2 order by id limit 1', log)
       into found_id using low, at;
    execute pg_catalog.format('select id from %s where id < $1 or $1 is null order by id desc limit 1', log)
       into found_id using found_id;
    return coalesce(found_id, 0);
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.log_edge(of_stream bigint)
 RETURNS bigint
 LANGUAGE sql
 STABLE
AS $function$
    select coalesce(max((regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''(\d+)''\)'))[1]::bigint), 0)
      from pg_catalog.pg_inherits i
      join pg_catalog.pg_class c on c.oid = i.inhrelid
     where i.inhparent = pg_catalog.to_regclass(
               pg_catalog.format('%I.%I', 'sqlstreams', 'message_log_' || of_stream))
$function$

CREATE OR REPLACE FUNCTION sqlstreams.log_head(of_stream bigint, OUT head bigint, OUT last_at timestamp with time zone)
 RETURNS record
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
    execute pg_catalog.format('select id, created_at from %I.%I order by id desc limit 1',
        'sqlstreams', 'message_log_' || of_stream) into head, last_at;
    head := coalesce(head, (select kept_from - 1 from "sqlstreams".stream_config where id = of_stream), 0);
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.log_tail(of_stream bigint, OUT oldest_at timestamp with time zone, OUT held_back_by text)
 RETURNS record
 LANGUAGE plpgsql
 STABLE
AS $function$
declare
    config record;
begin
    select retention, keep_unread, kept_from into config from "sqlstreams".stream_config where id = of_stream;
    execute pg_catalog.format('select created_at from %I.%I where id >= $1 order by id limit 1',
        'sqlstreams', 'message_log_' || of_stream) into oldest_at using config.kept_from;
    if config.keep_unread and oldest_at < now() - config.retention then
        select u.reason into held_back_by
          from "sqlstreams".unread_from(of_stream) u
         where u.first_id <= "sqlstreams".last_id_before(of_stream, now() - config.retention)
         order by u.first_id
         limit 1;
    end if;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.message_options(headers json, concurrency text, timeout interval, max_retries integer, max_delays integer, retry_base interval, retry_exponent double precision, retry_cap interval, deliver_at timestamp with time zone, delay interval)
 RETURNS json
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
declare
    seconds constant numeric := nullif(extract(epoch from delay), 0);
begin
    if pg_catalog.num_nonnulls(headers, concurrency, timeout, max_retries, max_delays, retry_base, retry_exponent, retry_cap,
        deliver_at, seconds) = 0
    then
        return null;
    end if;
    return pg_catalog.json_strip_nulls(pg_catalog.json_build_object(
        'headers', headers,
        'concurrency', concurrency,
        'timeout', 'PT' || extract(epoch from timeout) || 'S',
        'max_retries', max_retries,
        'max_delays', max_delays,
        'retry_base', 'PT' || extract(epoch from retry_base) || 'S',
        'retry_exponent', retry_exponent,
        'retry_cap', 'PT' || extract(epoch from retry_cap) || 'S',
        'deliver_at', pg_catalog.to_char(deliver_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'delay', seconds));
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.produce(stream text, payload json, message_key text DEFAULT NULL::text, routing_key text DEFAULT NULL::text, headers json DEFAULT NULL::json, compaction_rank bigint DEFAULT NULL::bigint, concurrency text DEFAULT NULL::text, timeout interval DEFAULT NULL::interval, max_retries integer DEFAULT NULL::integer, max_delays integer DEFAULT NULL::integer, retry_base interval DEFAULT NULL::interval, retry_exponent double precision DEFAULT NULL::double precision, retry_cap interval DEFAULT NULL::interval, idempotency_key text DEFAULT NULL::text, deliver_at timestamp with time zone DEFAULT NULL::timestamp with time zone, delay interval DEFAULT NULL::interval)
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
declare
    config  record;
    log     text;
    last_id bigint;
    ids     bigint[];
    options json;
begin
    select f.id, f.max_payload into config from "sqlstreams".find_stream(stream) f;
    perform "sqlstreams".check_message(
        payload, message_key, routing_key, headers, compaction_rank, idempotency_key, config.max_payload, '');
    perform "sqlstreams".check_delivery(
        message_key, concurrency, timeout, max_retries, max_delays, retry_base, retry_exponent, retry_cap, '');
    perform "sqlstreams".check_due(deliver_at, delay, '');
    if concurrency in ('exclusive', 'ordered') then
        update "sqlstreams".stream_config c set keyed = true where c.id = config.id and not c.keyed;
    end if;
    options := "sqlstreams".message_options(
        headers, concurrency, timeout, max_retries, max_delays, retry_base, retry_exponent, retry_cap, deliver_at, delay);
    if compaction_rank is null and idempotency_key is null then
        -- As append_messages does it, and half again as fast for one message (benchmarks/produce.py).
        log := pg_catalog.format('%I.%I', 'sqlstreams', 'message_log_' || config.id);
        execute pg_catalog.format('select last_value from %s', log || '_id') into last_id;
        perform "sqlstreams".extend_log(config.id, last_id + 10000);
        execute pg_catalog.format(
            'insert into %s (payload, message_key, routing_key, options) values ($1, $2, $3, $4) returning id', log)
           into last_id
          using payload, message_key, routing_key, options;
        return last_id;
    end if;
    ids := "sqlstreams".append_messages(
        config.id, array[payload], array[message_key], array[routing_key], array[options], array[compaction_rank],
        array[idempotency_key], '');
    return ids[1];
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.produce_many(stream text, messages json)
 RETURNS SETOF bigint
 LANGUAGE plpgsql
AS $function$
declare
    names  constant text[] := array['payload', 'message_key', 'routing_key', 'headers', 'compaction_rank', 'concurrency',
        'timeout', 'max_retries', 'max_delays', 'retry_base', 'retry_exponent', 'retry_cap', 'idempotency_key',
        'deliver_at', 'delay'];
    texts  constant text[] := array['message_key', 'routing_key', 'concurrency', 'timeout', 'retry_base', 'retry_cap',
        'idempotency_key', 'deliver_at', 'delay'];
    config            record;
    member            record;
    message           json;
    m                 record;
    n                 integer := 0;
    field             text;
    place             text := '';
    problem           text;
    payloads          json[];
    message_keys      text[];
    routing_keys      text[];
    options           json[];
    compaction_ranks  bigint[];
    idempotency_keys  text[];
    keyed             boolean := false;
begin
    select f.id, f.max_payload into config from "sqlstreams".find_stream(stream) f;
    if pg_catalog.json_typeof(messages) is distinct from 'array' then
        raise exception 'messages must be a JSON array of objects'
            using errcode = 'SS010', column = 'messages', hint = 'sqlstreams explain SQL0010';
    end if;
    -- One exception block for all, around what writes nothing: so it is no subtransaction that others would notice.
    begin
        for message in select e.value from pg_catalog.json_array_elements(messages) e loop
            place := pg_catalog.format('messages[%s].', n);
            field := 'messages';
            n := n + 1;
            if pg_catalog.json_typeof(message) <> 'object' then
                field := 'messages';
                problem := pg_catalog.format('messages[%s] must be a JSON object', n - 1);
                exit;
            end if;
            for member in select e.key, pg_catalog.json_typeof(e.value) as kind from pg_catalog.json_each(message) e loop
                field := member.key;
                if member.key <> all(names) then
                    problem := pg_catalog.format('%s%s is unknown; there are %s', place, member.key,
                        pg_catalog.array_to_string(names, ', '));
                elsif member.key = any(texts) and member.kind not in ('string', 'null') then
                    problem := pg_catalog.format('%s%s must be a text, got a JSON %s', place, member.key, member.kind);
                elsif member.key = 'deliver_at' and message ->> 'deliver_at' !~ '(Z|[+-][0-9]{2}(:?[0-9]{2})?)$' then
                    problem := pg_catalog.format('%sdeliver_at must have a zone, got %s', place, message -> 'deliver_at');
                end if;
                exit when problem is not null;
            end loop;
            exit when problem is not null;
            field := 'messages';
            select r.* into m
              from pg_catalog.json_to_record(message) as r (
                   message_key text, routing_key text, headers json, compaction_rank bigint, concurrency text,
                   timeout interval, max_retries integer, max_delays integer, retry_base interval,
                   retry_exponent double precision, retry_cap interval, idempotency_key text,
                   deliver_at timestamptz, delay interval);
            perform "sqlstreams".check_message(
                message -> 'payload', m.message_key, m.routing_key, m.headers, m.compaction_rank, m.idempotency_key,
                config.max_payload, place);
            perform "sqlstreams".check_delivery(
                m.message_key, m.concurrency, m.timeout, m.max_retries, m.max_delays, m.retry_base, m.retry_exponent,
                m.retry_cap, place);
            perform "sqlstreams".check_due(m.deliver_at, m.delay, place);
            keyed := keyed or coalesce(m.concurrency in ('exclusive', 'ordered'), false);
            payloads[n] := message -> 'payload';
            message_keys[n] := m.message_key;
            routing_keys[n] := m.routing_key;
            options[n] := "sqlstreams".message_options(
                m.headers, m.concurrency, m.timeout, m.max_retries, m.max_delays, m.retry_base, m.retry_exponent,
                m.retry_cap, m.deliver_at, m.delay);
            compaction_ranks[n] := m.compaction_rank;
            idempotency_keys[n] := m.idempotency_key;
        end loop;
    exception when data_exception then
        problem := pg_catalog.rtrim(place, '.') || ' cannot be read: ' || sqlerrm;
    end;
    if problem is not null then
        raise exception '%', problem using errcode = 'SS010', column = field, hint = 'sqlstreams explain SQL0010';
    end if;
    if n = 0 then
        return;
    end if;
    if keyed then
        update "sqlstreams".stream_config c set keyed = true where c.id = config.id and not c.keyed;
    end if;
    return query select pg_catalog.unnest("sqlstreams".append_messages(
        config.id, payloads, message_keys, routing_keys, options, compaction_ranks, idempotency_keys, 'messages[%s].'));
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.report_duties(reports json)
 RETURNS void
 LANGUAGE sql
AS $function$
    insert into "sqlstreams".duty_status as d (
        name, runs, done, last_run_at, last_took, last_done, running_since, next_run_at, failures, last_error,
        last_failed_at)
    select r.name, r.runs, r.done, clock_timestamp() - make_interval(secs => r.ran_ago),
           make_interval(secs => r.took), r.last_done, clock_timestamp() - make_interval(secs => r.running_for),
           clock_timestamp() + make_interval(secs => r.next_in), r.failures, r.error,
           clock_timestamp() - make_interval(secs => r.failed_ago)
      from json_to_recordset(reports) as r (
           name text, runs bigint, done bigint, ran_ago double precision, took double precision, last_done bigint,
           running_for double precision, next_in double precision, failures integer, error text,
           failed_ago double precision)
     order by r.name
    on conflict (name) do update
       set runs = d.runs + excluded.runs,
           done = d.done + excluded.done,
           last_run_at = greatest(d.last_run_at, excluded.last_run_at),
           last_took = case when d.last_run_at > excluded.last_run_at then d.last_took
                            else coalesce(excluded.last_took, d.last_took) end,
           last_done = case when d.last_run_at > excluded.last_run_at then d.last_done
                            else coalesce(excluded.last_done, d.last_done) end,
           running_since = excluded.running_since,
           next_run_at = excluded.next_run_at,
           failures = case when d.last_run_at > excluded.last_run_at or excluded.last_run_at is null then d.failures
                           else excluded.failures end,
           last_error = coalesce(excluded.last_error, d.last_error),
           last_failed_at = greatest(d.last_failed_at, excluded.last_failed_at)
$function$

CREATE OR REPLACE FUNCTION sqlstreams.require_lease(held boolean)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
begin
    if not held then
        raise exception 'the lease on this delivery was lost' using errcode = 'SQ040';
    end if;
    return true;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.role_grants(role_name text, kind text)
 RETURNS SETOF text
 LANGUAGE sql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    select format('grant usage on schema %I to %I', 'sqlstreams', role_name)
     where role_grants.kind <> 'manager'
     union all
    select format('grant %I to %I', pg_get_userbyid(n.nspowner), role_name)
      from pg_namespace n
     where role_grants.kind = 'manager'
       and n.nspname = 'sqlstreams'
     union all
    select statement || quote_ident(role_name)
      from "sqlstreams".shared_grants(role_grants.kind) as statement
     union all
    select statement || quote_ident(role_name)
      from (select id from "sqlstreams".stream_config order by id) as s,
           "sqlstreams".family_grants(role_grants.kind, s.id) as statement
$function$

CREATE OR REPLACE FUNCTION sqlstreams.settled_position(of_stream bigint, at timestamp with time zone, head bigint, held_for interval)
 RETURNS bigint
 LANGUAGE plpgsql
 STABLE
AS $function$
declare
    place   bigint := head;
    missing bigint;
begin
    if at is not null then
        place := least(head, "sqlstreams".last_id_before(of_stream, at));
    end if;
    if held_for is not null then
        -- A message may be stamped a little before its transaction took the id: by up to the minute of last_id_before.
        execute pg_catalog.format(
            'select lag + 1'
            '  from (select id, lag(id, 1, $1) over (order by id) as lag from %I.%I where id > $1 and id <= $2) as m'
            ' where id > lag + 1'
            ' order by id'
            ' limit 1', 'sqlstreams', 'message_log_' || of_stream)
           into missing
          using "sqlstreams".last_id_before(of_stream, clock_timestamp() - held_for - interval '1 minute'), place;
    end if;
    return coalesce(missing - 1, place);
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.shared_grants(kind text)
 RETURNS SETOF text
 LANGUAGE sql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
    select format('grant %s on %s %I.%s to ', g.privileges, g.type, 'sqlstreams', g.object)
      from (values
            ('{producer,consumer,operator}'::text[], 'select', 'table', 'migration_log'),
            ('{producer,consumer,operator}', 'select', 'table', 'stream_config'),
            ('{producer,consumer,operator}', 'select, insert', 'table', 'payload_schema'),
            -- What messages of one key may do; a lock on the stream needs it too.
            ('{producer,consumer,operator}', 'update (keyed)', 'table', 'stream_config'),
            ('{producer,operator}', 'execute', 'function', 'extend_log(bigint, bigint)'),
            ('{consumer}', 'select, insert, update', 'table', 'consumer_group_config'),
            ('{consumer}', 'select, insert, update', 'table', 'consumer_group_cursor'),
            ('{consumer}', 'select, insert', 'table', 'consumer_group_config_log'),
            ('{consumer}', 'select, insert', 'table', 'reclaim_log'),
            ('{consumer}', 'select, insert', 'table', 'position_log'),
            ('{consumer,operator}', 'select, insert, update, delete', 'table', 'consumer_instance'),
            ('{consumer,operator}', 'select, insert, update, delete', 'table', 'binding_declaration'),
            ('{consumer,operator}', 'select, insert, update, delete', 'table', 'claim_lease'),
            ('{consumer,operator}', 'select, insert, update, delete', 'table', 'message_key_lease'),
            ('{operator}', 'delete', 'table', 'deadline_aside'),
            ('{consumer}', 'select', 'table', 'consumer_group_status'),
            ('{consumer}', 'select', 'table', 'dead_letters')
           ) as g (kinds, privileges, type, object)
     where shared_grants.kind = any(g.kinds)
     union all
    select format('grant select, insert, update on all tables in schema %I to ', 'sqlstreams')
     where shared_grants.kind = 'operator'
$function$

CREATE OR REPLACE FUNCTION sqlstreams.take_idempotency_keys(of_stream bigint, payloads json[], idempotency_keys text[], place text)
 RETURNS bigint[]
 LANGUAGE plpgsql
AS $function$
declare
    keys    text := pg_catalog.format('%I.%I', 'sqlstreams', 'idempotency_key_' || of_stream);
    prints  bytea[] := array(select pg_catalog.sha256(pg_catalog.convert_to(p.payload::text, 'UTF8'))
                               from pg_catalog.unnest(payloads) with ordinality as p (payload, position)
                              order by p.position);
    -- The first message of each key: its place among the messages.
    firsts  bigint[] := array(select min(k.position)
                                from pg_catalog.unnest(idempotency_keys) with ordinality as k (key, position)
                               where k.key is not null
                               group by k.key);
    -- The payload that each of those has to have.
    wanted  bytea[] := prints;
    taking  constant text :=
        'with taken as ('
        '  insert into %1$s as t (idempotency_key, fingerprint, expires_at)'
        '  select $1[f], $2[f], clock_timestamp() + c.idempotency_ttl'
        '    from unnest($3) as f cross join (select idempotency_ttl from %2$I.stream_config where id = $4) as c'
        '   order by $1[f] collate "C"'
        '  on conflict (idempotency_key) %3$s'
        '  returning idempotency_key)'
        'select array(select f.first'
        '               from (select f as first, $1[f] as key from unnest($3) as f) as f'
        '               left join taken t on t.idempotency_key = f.key'
        '              where t.idempotency_key is null)';
    renewing constant text := 'do update set fingerprint = excluded.fingerprint, message_id = null,'
        ' expires_at = excluded.expires_at where t.expires_at <= clock_timestamp()';
    looking constant text :=
        'select k.fingerprint, k.message_id, f.first'
        '  from (select f as first, $1[f] as key from unnest($2) as f) as f'
        '  join %s k on k.idempotency_key = f.key'
        ' where k.expires_at > clock_timestamp()';
    lost    bigint[];
    seen    record;
    known   bigint[];
    refused record;
begin
    execute pg_catalog.format(taking, keys, 'sqlstreams', 'do nothing')
       into lost using idempotency_keys, prints, firsts, of_stream;
    -- What is seen may expire or be swept away before it is taken, and be taken by another then: seldom even once.
    for looks in 1..10 loop
        exit when lost = '{}';
        for seen in execute pg_catalog.format(looking, keys) using idempotency_keys, lost loop
            wanted[seen.first] := seen.fingerprint;
            known[seen.first] := seen.message_id;
        end loop;
        lost := array(select f from pg_catalog.unnest(lost) as f where known[f] is null);
        exit when lost = '{}';
        execute pg_catalog.format(taking, keys, 'sqlstreams', renewing)
           into lost using idempotency_keys, prints, lost, of_stream;
    end loop;
    if lost <> '{}' then
        raise exception 'the idempotency key % changed hands ten times', pg_catalog.quote_literal(idempotency_keys[lost[1]])
            using errcode = 'serialization_failure';
    end if;
    select k.key, k.position, k.first into refused
      from (select u.key, u.position, min(u.position) over (partition by u.key) as first
              from pg_catalog.unnest(idempotency_keys) with ordinality as u (key, position)) as k
     where k.key is not null
       and wanted[k.first] <> prints[k.position]
     order by k.position
     limit 1;
    if found then
        raise exception '%idempotency_key % is that of %, which has another payload',
            pg_catalog.format(place, refused.position - 1), pg_catalog.quote_literal(refused.key),
            coalesce('message ' || known[refused.first], pg_catalog.format('messages[%s]', refused.first - 1))
            using errcode = 'SS014', column = 'idempotency_key', hint = 'sqlstreams explain SQL0014';
    end if;
    return array(
        select case when k.key is null then null
                    when known[k.first] is not null then known[k.first]
                    when k.first = k.position then null
                    else -k.first end
          from (select u.key, u.position, min(u.position) over (partition by u.key) as first
                  from pg_catalog.unnest(idempotency_keys) with ordinality as u (key, position)) as k
         order by k.position);
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.take_or_renew(of_worker text, of_token uuid, of_hostname text, of_pid integer, of_library text, ttl double precision, OUT id bigint, OUT term bigint, OUT retry_in double precision)
 RETURNS record
 LANGUAGE plpgsql
AS $function$
declare
    places integer;
begin
    select case when c.suspended then 0 else c.target_instances end into places
      from "sqlstreams".worker_config c where c.name = of_worker;
    -- Where places became fewer, those that came first stay.
    update "sqlstreams".worker_instance i
       set renewed_at = clock_timestamp(),
           expires_at = clock_timestamp() + make_interval(secs => ttl)
     where i.token = of_token
       and i.worker = of_worker
       and (select count(*) from "sqlstreams".worker_instance o where o.worker = of_worker and o.term < i.term) < places
    returning i.id, i.term into id, term;
    if found then
        -- A renewal that a crash of the server takes along only makes the lease end sooner.
        perform pg_catalog.set_config('synchronous_commit', 'off', true);
        return;
    end if;
    delete from "sqlstreams".worker_instance i where i.token = of_token;
    if (select count(*) from "sqlstreams".worker_instance i
         where i.worker = of_worker and i.expires_at > clock_timestamp()) < places then
        select case when c.suspended then 0 else c.target_instances end into places
          from "sqlstreams".worker_config c where c.name = of_worker for no key update;
        delete from "sqlstreams".worker_instance i where i.worker = of_worker and i.expires_at <= clock_timestamp();
        -- Rows, not leases: one that is renewed right now, a little late, is kept by the statement before.
        if (select count(*) from "sqlstreams".worker_instance i where i.worker = of_worker) < places then
            update "sqlstreams".worker_config c set term = c.term + 1 where c.name = of_worker returning c.term into term;
            insert into "sqlstreams".worker_instance as i (worker, term, token, hostname, pid, library, expires_at)
            values (of_worker, take_or_renew.term, of_token, of_hostname, of_pid, of_library,
                    clock_timestamp() + make_interval(secs => ttl))
            returning i.id into id;
            return;
        end if;
    end if;
    select extract(epoch from min(i.expires_at) - clock_timestamp()) into retry_in
      from "sqlstreams".worker_instance i
     where i.worker = of_worker and places > 0;
end
$function$

CREATE OR REPLACE FUNCTION sqlstreams.unread_from(of_stream bigint)
 RETURNS TABLE(group_id bigint, group_name text, first_id bigint, reason text)
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
    return query execute pg_catalog.format(
        'select g.id, g.name, u.first_id,'
        '       format(''group %%s has not done message %%s%%s'', g.name, coalesce(m.id, u.first_id),'
        '              '' of '' || to_char(m.created_at at time zone ''UTC'', ''YYYY-MM-DD HH24:MI:SS"Z"''))'
        '  from %1$I.consumer_group_config g'
        '  join %1$I.consumer_group_cursor c on c.group_id = g.id'
        ' cross join lateral (select least(c.claimed + 1,'
        '           (select min(resolved) + 1 from %1$I.claim_lease where group_id = g.id),'
        '           (select min(message_id + 0) from %1$I.%2$I where group_id = g.id and state = ''waiting''),'
        '           (select min(message_id + 0) from %1$I.%2$I where group_id = g.id and state = ''ready''),'
        '           (select min(message_id + 0) from %1$I.%2$I where group_id = g.id and state = ''inflight''),'
        '           (select min(message_id + 0) from %1$I.%2$I where group_id = g.id and state = ''unread''),'
        '           (select min(message_id + 0) from %1$I.%2$I'
        '             where group_id = g.id and state = ''deferred'' and concurrency is not null)) as first_id'
        '                       offset 0) as u'
        '  left join lateral (select id, created_at from %1$I.%3$I where id >= u.first_id order by id limit 1) as m on true'
        ' where g.stream_id = $1 order by u.first_id, g.id',
        'sqlstreams', 'exception_queue_' || of_stream, 'message_log_' || of_stream) using of_stream;
end
$function$
