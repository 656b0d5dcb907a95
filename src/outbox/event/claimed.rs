//! An event whose payload is too large to travel.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::super::claim::{ClaimStore, Object, Receipt};
use super::super::columns::Role;
use super::super::record::Source;
use super::{Event, MappingError};

/// Where the payload is.
#[derive(Clone, Debug)]
pub(super) enum Claim {
    /// In the record.
    Travels,
    /// In the table only.
    Row,
    /// In the store, or to be put there while there is no receipt.
    Store(Option<Arc<Receipt>>),
}

impl Event {
    /// The payload is too large to travel, so the record tells where it is.
    #[must_use]
    pub const fn is_claimed(&self) -> bool {
        !matches!(self.claim, Claim::Travels)
    }

    /// What has to be in the store before the record may travel; `None` where there is nothing, or nothing any more.
    ///
    /// # Errors
    /// When a `bytea` is not in the hexadecimal form.
    pub fn to_store(&self, source: &Source) -> Result<Option<Object>, MappingError> {
        match self.claim {
            Claim::Store(None) => {
                Ok(Some(Object { name: ClaimStore::name(source, self.id()), payload: self.claimed_payload()? }))
            }
            Claim::Travels | Claim::Row | Claim::Store(Some(_)) => Ok(None),
        }
    }

    /// The payload is in the store.
    pub fn stored(&mut self, receipt: Receipt) {
        if let Claim::Store(known) = &mut self.claim {
            *known = Some(Arc::new(receipt));
        }
    }

    /// Where in the store the payload is, or will be; `None` where it is not there.
    pub(in crate::outbox) fn claim_url(&self, source: &Source) -> Option<String> {
        let store = self.shape.claim_check_to.as_ref().filter(|_| matches!(self.claim, Claim::Store(_)))?;
        Some(store.url(&ClaimStore::name(source, self.id())))
    }

    /// What the record tells of the payload: as noted, or of one that is not stored yet as it would be.
    pub(in crate::outbox) fn receipt(&self) -> Result<Option<Receipt>, MappingError> {
        match &self.claim {
            Claim::Travels | Claim::Row => Ok(None),
            Claim::Store(Some(receipt)) => Ok(Some(**receipt)),
            Claim::Store(None) => Ok(Some(Receipt::of(&self.claimed_payload()?))),
        }
    }

    /// The payload as the value would have it, without copying what need not be decoded.
    fn claimed_payload(&self) -> Result<Bytes, MappingError> {
        let slot = self.shape.role(Role::Payload).unwrap_or_default();
        Ok(match self.bytes(slot)? {
            None => Bytes::new(),
            Some(Cow::Borrowed(text)) => self.row.slice_ref(text),
            Some(Cow::Owned(bytes)) => bytes.into(),
        })
    }
}
