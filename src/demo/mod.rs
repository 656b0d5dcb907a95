//! `outboxd demo`.

pub mod ledger;
