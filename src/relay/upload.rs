//! Puts the payload of the event that stands in front into the store, in a task of its own, until it succeeds.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::backoff::Backoff;
use crate::claims::{Kind, Store};
use crate::outbox::{Object, Position, Receipt};

/// The first pause between tries, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// The way into the store. There is one upload at a time: what is behind its event waits, so that no order changes.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    store: Option<Store>,
    running: Option<Upload>,
}

/// A payload that is being put into the store. It ends with its owner.
#[derive(Debug)]
struct Upload {
    position: Position,
    /// When it began, on the clock of the core.
    since: Duration,
    task: JoinHandle<Receipt>,
    receipt: Option<Receipt>,
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Uploads {
    pub(super) fn new(store: Option<Store>) -> Self {
        Self { store, running: None }
    }

    /// The receipt of the object of the event at `position`, once it is in the store. The first call begins to put it there;
    /// [`Self::wait`] tells when to call again.
    pub(super) fn receipt(&mut self, position: Position, object: &Object, now: Duration) -> Option<Receipt> {
        match &self.running {
            Some(upload) if upload.position == position => {
                let receipt = upload.receipt?;
                self.running = None;
                Some(receipt)
            }
            _ => {
                let store = self.store.clone()?;
                let task = tokio::spawn(put(store, object.clone(), position));
                self.running = Some(Upload { position, since: now, task, receipt: None });
                None
            }
        }
    }

    /// Waits until an upload has succeeded; for ever where none runs, or its receipt waits to be fetched.
    pub(super) async fn wait(&mut self) {
        match &mut self.running {
            Some(Upload { task, receipt: receipt @ None, .. }) => match task.await {
                Ok(found) => *receipt = Some(found),
                // A defect of the task, or the runtime's end; if it goes on, the upload begins anew.
                Err(error) => {
                    tracing::error!(%error, "an upload ended without an outcome; it is begun again");
                    self.running = None;
                }
            },
            _ => std::future::pending().await,
        }
    }

    /// The event whose payload is on its way, and since when.
    pub(super) fn oldest(&self) -> Option<(Position, Duration)> {
        self.running.as_ref().map(|upload| (upload.position, upload.since))
    }
}

/// Tries until it succeeds. Each kind of trouble is told when it begins.
async fn put(store: Store, object: Object, position: Position) -> Receipt {
    let Object { name, payload } = object;
    let receipt = receipt(payload.clone()).await;
    let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
    let mut told: Option<Kind> = None;
    loop {
        let Err(trouble) = store.put(&name, payload.clone()).await else { break };
        let pause = backoff.next(fastrand::f64());
        if told.replace(trouble.kind()) == Some(trouble.kind()) {
            tracing::debug!(%position, %trouble, attempts = backoff.attempts(), "the store still does not take the payload");
        } else {
            tracing::warn!(
                %position,
                bytes = receipt.bytes(),
                "{store} does not take the payload: {trouble}; the event and all behind it wait, trying again in {pause:.1?}"
            );
        }
        tokio::time::sleep(pause).await;
    }
    match told {
        Some(_) => tracing::info!(%position, bytes = receipt.bytes(), "{store} has taken the payload"),
        None => tracing::debug!(%position, bytes = receipt.bytes(), "{store} has taken the payload"),
    }
    receipt
}

/// The receipt, made beside the relay's own thread.
async fn receipt(payload: bytes::Bytes) -> Receipt {
    let bytes = payload.clone();
    match tokio::task::spawn_blocking(move || Receipt::of(&bytes)).await {
        Ok(receipt) => receipt,
        // The runtime ends.
        Err(_) => Receipt::of(&payload),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::outbox::{ClaimStore, Ordinal};
    use crate::postgres::Lsn;

    fn position(ordinal: u32) -> Position {
        Position::new(Lsn::new(7), Ordinal::new(ordinal))
    }

    fn object(payload: &'static [u8]) -> Object {
        Object { name: "s/t.t/1".to_owned(), payload: Bytes::from_static(payload) }
    }

    #[tokio::test]
    async fn a_receipt_comes_once_and_only_for_what_is_in_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&ClaimStore::Folder(folder.path().to_owned())).unwrap();
        let mut uploads = Uploads::new(Some(store));
        let object = object(b"payload");
        assert_eq!(uploads.receipt(position(0), &object, Duration::from_secs(3)), None);
        assert_eq!(uploads.oldest(), Some((position(0), Duration::from_secs(3))));
        uploads.wait().await;
        assert_eq!(std::fs::read(folder.path().join("s/t.t/1")).unwrap(), b"payload");
        let again = tokio::time::timeout(Duration::from_millis(20), uploads.wait()).await;
        assert!(again.is_err(), "a receipt that nobody fetches yet does not wake the relay again");
        assert_eq!(uploads.receipt(position(0), &object, Duration::ZERO), Some(Receipt::of(b"payload")));
        assert_eq!(uploads.oldest(), None);
    }

    #[tokio::test]
    async fn it_goes_on_until_the_store_takes_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&ClaimStore::Folder(folder.path().to_owned())).unwrap();
        // A file stands where a folder has to be.
        std::fs::write(folder.path().join("s"), b"").unwrap();
        let mut uploads = Uploads::new(Some(store));
        assert_eq!(uploads.receipt(position(0), &object(b"payload"), Duration::ZERO), None);
        assert!(tokio::time::timeout(Duration::from_millis(300), uploads.wait()).await.is_err());
        std::fs::remove_file(folder.path().join("s")).unwrap();
        tokio::time::timeout(Duration::from_secs(10), uploads.wait()).await.unwrap();
        assert!(uploads.receipt(position(0), &object(b"payload"), Duration::ZERO).is_some());
    }

    #[tokio::test]
    async fn another_event_has_an_upload_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&ClaimStore::Folder(folder.path().to_owned())).unwrap();
        let mut uploads = Uploads::new(Some(store));
        assert_eq!(uploads.receipt(position(0), &object(b"one"), Duration::ZERO), None);
        assert_eq!(uploads.receipt(position(1), &object(b"other"), Duration::ZERO), None);
        uploads.wait().await;
        assert_eq!(uploads.receipt(position(1), &object(b"other"), Duration::ZERO), Some(Receipt::of(b"other")));
    }
}
