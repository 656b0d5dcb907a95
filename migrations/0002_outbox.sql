-- The outbox. An application inserts into it in the transaction of its own change; outboxd reads it from the log.
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE {table} (
    id uuid PRIMARY KEY,
    -- What kind of thing the event is about; names the topic.
    aggregate_type text NOT NULL,
    -- Which thing; the record's key, so events of one aggregate stay in order.
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    -- json, not jsonb: the log's reader then gets the text as it was written, for a third less of the server's work.
    -- NULL is a tombstone.
    payload json,
    -- A JSON object: further headers of the record.
    headers jsonb,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- The order of insertion.
    seq bigint GENERATED ALWAYS AS IDENTITY,
    -- The top transaction, by which a snapshot tells whether the row is published.
    txid xid8 NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX ON {table} (txid)
