//! What the tests stand on.

pub(crate) mod consumer;
pub(crate) mod ledger;
pub(crate) mod relay;
pub(crate) mod scenario;
pub(crate) mod servers;
pub(crate) mod writer;
