//! Settings of the program.

#[cfg(feature = "relay")]
pub mod file;
pub mod held;
#[cfg(feature = "relay")]
pub mod run;
pub mod secret;

pub use secret::Secret;
