-- Events that could not be published, and what operators want done about them.
--
-- state: parked (waits for its next attempt, or behind one that does), quarantined (keeps its place until it is released),
-- dead (a dead letter: it gave up its place), requeued (is published next, whatever its key does), discarded (is not published;
-- stays until the log before it is confirmed).
-- scope: what is held with it: its key (event) or its whole topic (topic).
CREATE TABLE IF NOT EXISTS outboxd.held (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot text NOT NULL,
    -- Positions are those of one database system.
    system_id text NOT NULL,
    commit_lsn pg_lsn NOT NULL,
    ordinal bigint NOT NULL,
    source text NOT NULL,
    event_id text,
    event_type text,
    -- The record; topic is NULL where none could be made of the row.
    topic text,
    key bytea,
    value bytea,
    -- [{"name": ..., "text": ...}] or "base64" in place of "text"; neither is a header without value.
    headers jsonb NOT NULL DEFAULT '[]',
    partition integer,
    timestamp_ms bigint,
    committed_at timestamptz NOT NULL,
    -- The row, where no record could be made of it.
    columns jsonb,
    state text NOT NULL CHECK (state IN ('parked', 'quarantined', 'dead', 'requeued', 'discarded')),
    scope text NOT NULL CHECK (scope IN ('event', 'topic')),
    on_failure text NOT NULL CHECK (on_failure IN ('dead-letter', 'quarantine', 'halt')),
    class text NOT NULL,
    reason text NOT NULL,
    attempts integer NOT NULL,
    max_attempts integer NOT NULL,
    first_at timestamptz NOT NULL DEFAULT now(),
    last_at timestamptz NOT NULL DEFAULT now(),
    retry_at timestamptz,
    -- An operator has released it.
    released boolean NOT NULL DEFAULT false,
    -- The dead-letter topic has it.
    copied_at timestamptz,
    UNIQUE (slot, system_id, commit_lsn, ordinal)
);
CREATE INDEX IF NOT EXISTS held_next_idx ON outboxd.held (slot, commit_lsn, ordinal) WHERE state IN ('parked', 'requeued');
CREATE INDEX IF NOT EXISTS held_due_idx ON outboxd.held (slot, retry_at) WHERE retry_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS held_dead_idx ON outboxd.held (slot, commit_lsn, ordinal) WHERE state = 'dead';
CREATE INDEX IF NOT EXISTS held_quarantined_idx ON outboxd.held (slot) WHERE state = 'quarantined';
-- What the relay that owns the slot is asked to do; it says here what it did.
CREATE TABLE IF NOT EXISTS outboxd.request (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('requeue', 'discard', 'replay')),
    what jsonb NOT NULL,
    state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'done', 'failed', 'cancelled')),
    requested_at timestamptz NOT NULL DEFAULT now(),
    requested_by text NOT NULL DEFAULT session_user,
    finished_at timestamptz,
    done bigint NOT NULL DEFAULT 0,
    total bigint,
    -- How far a replay has come.
    reached text,
    message text
);
CREATE INDEX IF NOT EXISTS request_open_idx ON outboxd.request (slot, id) WHERE state IN ('waiting', 'running')
