//! Waiting on conditions.

use std::future::Future;
use std::time::{Duration, Instant};

/// Asks again and again until `probe` gives a value; panics with `what` and the last error when that takes longer than `limit`.
pub(crate) async fn until<T, E, F>(what: &str, limit: Duration, mut probe: impl FnMut() -> F) -> T
where
    E: std::fmt::Display,
    F: Future<Output = Result<T, E>>,
{
    let begin = Instant::now();
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(error) if begin.elapsed() > limit => panic!("waited {limit:?} in vain for {what}: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
