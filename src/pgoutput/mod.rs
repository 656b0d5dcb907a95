//! The messages of PostgreSQL's `pgoutput` plugin, protocol version 1.
