//! The store of payloads that are too large to travel: a folder or a bucket, through `object_store`. Names, URLs and what a
//! record tells are [`outbox::claim`](crate::outbox::claim)'s.
//!
//! What a bucket needs beside its name comes from the environment as S3's own tools have it: `AWS_ACCESS_KEY_ID`,
//! `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT`, `AWS_ALLOW_HTTP` and the others of
//! [`AmazonS3Builder::from_env`]. None of it is ever printed.

mod trouble;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::{ClientConfigKey, ObjectStore, ObjectStoreExt as _, RetryConfig};
use rustix::fs::{Access, AtFlags, CWD};

use crate::outbox::ClaimStore;

pub use trouble::{Kind, Trouble};

/// How long one try may take, beside the time for the bytes: to connect, to sign, and the store's own work.
const TRY_LIMIT: Duration = Duration::from_secs(30);

/// The bytes that a store has to take in a second.
const BYTES_PER_SECOND_MIN: usize = 1 << 20;

/// What is written and removed to see whether it can be.
const PROBE: &str = ".outboxd-check";

/// A store that payloads can be put into. Cloning shares it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    place: ClaimStore,
}

impl Store {
    /// The store at this place. A folder must be there and be writable; a bucket is not asked for yet.
    ///
    /// # Errors
    /// When the folder is not as it has to be, or the environment's settings for the bucket are wrong; in words, with a remedy.
    pub fn open(place: &ClaimStore) -> Result<Self, String> {
        let inner = match place {
            ClaimStore::Folder(path) => folder(path)?,
            ClaimStore::Bucket { name, .. } => bucket(name)?,
        };
        Ok(Self { inner, place: place.clone() })
    }

    /// Puts a payload under this name, over what was there. When it is done, the payload outlives a crash of this machine; until
    /// then nobody sees a part of it.
    ///
    /// # Errors
    /// When the store does not take it, or not in time: 30 seconds and one for each MiB.
    pub async fn put(&self, name: &str, payload: Bytes) -> Result<(), Trouble> {
        let limit = TRY_LIMIT + Duration::from_secs((payload.len() / BYTES_PER_SECOND_MIN) as u64);
        let path = self.path(name)?;
        let put = self.inner.put(&path, payload.into());
        tokio::time::timeout(limit, put).await.map_err(|_| Trouble::too_slow(limit))??;
        Ok(())
    }

    /// Puts a small object and removes it.
    ///
    /// # Errors
    /// When one of these does not succeed.
    pub async fn probe(&self) -> Result<(), Trouble> {
        self.put(PROBE, Bytes::from_static(b"outboxd check")).await?;
        let path = self.path(PROBE)?;
        let delete = self.inner.delete(&path);
        Ok(tokio::time::timeout(TRY_LIMIT, delete).await.map_err(|_| Trouble::too_slow(TRY_LIMIT))??)
    }

    fn path(&self, name: &str) -> Result<object_store::path::Path, Trouble> {
        // Parsed, as a conversion would encode the name again.
        object_store::path::Path::parse(self.place.key(name)).map_err(|error| object_store::Error::from(error).into())
    }
}

/// Its URL. The client's settings have secrets.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.place.to_string()).finish()
    }
}

/// Its URL.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

fn folder(path: &Path) -> Result<Arc<dyn ObjectStore>, String> {
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(format!("{shown} is no folder; name one that is there, or create it")),
        Err(error) => {
            return Err(format!(
                "the folder {shown} cannot be used: {error}; create it, and let this user write there"
            ));
        }
    }
    // By the effective user, as writes are.
    rustix::fs::accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(|error| {
        format!("the folder {shown} is not writable: {error}; let this user write there (chown, chmod)")
    })?;
    let store = LocalFileSystem::new_with_prefix(path).map_err(|error| Trouble::from(error).to_string())?;
    // The event is confirmed to the database afterwards, so the payload must be on the disk before.
    Ok(Arc::new(store.with_fsync(true)))
}

fn bucket(name: &str) -> Result<Arc<dyn ObjectStore>, String> {
    // A process has one default; a second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = AmazonS3Builder::from_env().with_bucket_name(name);
    let setting = |key: AmazonS3ConfigKey| builder.get_config_value(&key).unwrap_or_default();
    let may_be_plain = setting(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp)).parse() == Ok(true);
    let endpoints = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    if !may_be_plain && endpoints.into_iter().any(|key| setting(key).starts_with("http://")) {
        return Err(
            "AWS_ENDPOINT is an http:// URL, which is not encrypted; if that is meant, set AWS_ALLOW_HTTP=true"
                .to_owned(),
        );
    }
    // The relay tries again by itself, and the time for a try depends on its size.
    let retries = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let forever = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
    let built = builder.with_retry(retries).with_config(forever, "1 day").build();
    let store = built.map_err(|error| {
        format!(
            "{}; see the variables AWS_* (and, for TLS, the system's ca-certificates)",
            Trouble::from(error).words()
        )
    })?;
    Ok(Arc::new(store))
}

#[cfg(test)]
mod tests;
