-- The schema, and the record of what was applied: version 1 for the database, later ones also for each table (subject).
CREATE SCHEMA IF NOT EXISTS outboxd;
CREATE TABLE IF NOT EXISTS outboxd.migration (
    version integer NOT NULL,
    subject text NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (version, subject)
)
