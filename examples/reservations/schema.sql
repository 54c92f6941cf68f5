-- A seat is held for a while; then it is confirmed, or it expires and is free again.
create table if not exists reservations (
    id         bigint generated always as identity primary key,
    seat       text not null,
    expires_at timestamptz not null,
    state      text not null default 'held' check (state in ('held', 'confirmed', 'expired'))
);
create index if not exists reservations_state_expires_at on reservations (state, expires_at);

-- What is done about an expired reservation, once for each.
create table if not exists released_seats (
    reservation_id bigint primary key references reservations,
    seat           text not null,
    message_id     bigint not null,
    released_at    timestamptz not null default now()
);
