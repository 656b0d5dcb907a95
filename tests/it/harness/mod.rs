//! What the tests stand on.

pub(crate) mod servers;
