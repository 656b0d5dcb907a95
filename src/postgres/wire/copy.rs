//! The messages inside a replication stream.

use bytes::{Buf, Bytes};

use super::backend::{announced_bytes, server_error_in};
use crate::postgres::error::{Error, Result, ServerError};
use crate::postgres::lsn::Lsn;

/// The header of every message: a tag and a length that does not count the tag.
pub(crate) const HEADER_BYTES: usize = 5;

/// What stands before the plugin's bytes in a piece of log: its kind, two positions and a time.
pub(crate) const XLOG_DATA_BYTES: usize = 1 + 8 + 8 + 8;

/// Copy data of this kind does not come from a server: what was kept of a message that is too large.
pub(crate) const OVERSIZED_TAG: u8 = b't';

/// One message of a replication stream. It borrows from its [`Block`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyMessage<'a> {
    /// A piece of decoded log: with pgoutput, one message of the plugin.
    XLogData {
        /// Where the change stands in the log; zero for messages without a place of their own.
        start: Lsn,
        /// The end of the log at the server when it sent this, as far as it knew.
        wal_end: Lsn,
        /// The server's clock when it sent this: microseconds since 2000-01-01 UTC.
        sent_at_us: i64,
        /// The plugin's bytes.
        data: &'a [u8],
    },
    /// The server lives, and has decoded the log up to here.
    Keepalive {
        /// Up to here everything that concerns this stream has been sent.
        wal_end: Lsn,
        /// The server's clock when it sent this: microseconds since 2000-01-01 UTC.
        sent_at_us: i64,
        /// The server wants a status update now, or will end the connection at `wal_sender_timeout`.
        reply_requested: bool,
    },
    /// A piece of decoded log that is larger than what is accepted. Of an Insert the large values were thrown away and are as if
    /// they had not been sent; of anything else only the kind is kept.
    Oversized {
        /// How large the message was, framing included.
        bytes: u64,
        /// What was kept of the plugin's bytes.
        data: &'a [u8],
    },
    /// The server sends nothing more: the answer to this side's `CopyDone`, or a clean shutdown of the server.
    Done,
    /// A warning or a notice, to be logged.
    Notice(Box<ServerError>),
}

/// Complete messages of a replication stream, as they came out of one read.
///
/// A block owns its bytes together with the blocks read around it, up to about 1 MiB: whoever keeps a [`slice`](Self::slice)
/// keeps all of them in memory. What is small and kept for long is better copied.
#[derive(Clone, Debug, Default)]
pub struct Block {
    bytes: Bytes,
}

impl Block {
    /// `bytes` must be whole messages; what is not ends the iteration with an error.
    pub(crate) const fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    /// Bytes of this block, framing included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no message in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The messages, in order. After an error there are no more.
    #[must_use]
    pub fn messages(&self) -> Messages<'_> {
        Messages { rest: &self.bytes }
    }

    /// What `messages` has not given out yet, as a block of its own.
    #[must_use]
    pub fn rest(&self, messages: &Messages<'_>) -> Self {
        Self { bytes: self.slice(messages.rest) }
    }

    /// Makes a part of this block outlive it, without copying.
    ///
    /// An empty part costs nothing. A part that is not of this block is copied, which is slow and still right.
    #[must_use]
    pub fn slice(&self, part: &[u8]) -> Bytes {
        let block = self.bytes.as_ptr() as usize;
        let offset = (part.as_ptr() as usize).wrapping_sub(block);
        let inside = offset.checked_add(part.len()).is_some_and(|end| end <= self.bytes.len());
        if inside { self.bytes.slice_ref(part) } else { Bytes::copy_from_slice(part) }
    }
}

impl<'a> IntoIterator for &'a Block {
    type Item = Result<CopyMessage<'a>>;
    type IntoIter = Messages<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.messages()
    }
}

/// The messages of a [`Block`].
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// The next message that means something here.
    fn parse_next(&mut self) -> Result<Option<CopyMessage<'a>>> {
        while !self.rest.is_empty() {
            let (tag, body) = self.split_message()?;
            match tag {
                b'd' => return copy_data(body).map(Some),
                // In a shutdown the server leaves out CopyDone and completes the command at once (`WalSndDone`).
                b'c' | b'C' => return Ok(Some(CopyMessage::Done)),
                b'E' => return Err(Error::server(server_error_in(body)?)),
                b'N' => return server_error_in(body).map(|notice| Some(CopyMessage::Notice(Box::new(notice)))),
                // A changed setting, a notification, and "ready" after the end concern nobody here.
                b'S' | b'A' | b'Z' => {}
                other => return Err(Error::protocol(format!("message {:?} in a copy stream", char::from(other)))),
            }
        }
        Ok(None)
    }

    fn split_message(&mut self) -> Result<(u8, &'a [u8])> {
        let truncated = || Error::protocol("a message that ends too early");
        let (header, _) = self.rest.split_first_chunk::<HEADER_BYTES>().ok_or_else(truncated)?;
        let announced = announced_bytes(header, usize::MAX)?.ok_or_else(truncated)?;
        let (message, rest) = self.rest.split_at_checked(announced).ok_or_else(truncated)?;
        self.rest = rest;
        let (tag, _) = header.split_first().ok_or_else(truncated)?;
        Ok((*tag, message.get(HEADER_BYTES..).ok_or_else(truncated)?))
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<CopyMessage<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let message = self.parse_next();
        if message.is_err() {
            self.rest = &[];
        }
        message.transpose()
    }
}

fn copy_data(mut body: &[u8]) -> Result<CopyMessage<'_>> {
    let truncated = |_| Error::protocol("copy data that ends too early");
    match body.try_get_u8().map_err(truncated)? {
        b'w' => Ok(CopyMessage::XLogData {
            start: Lsn::new(body.try_get_u64().map_err(truncated)?),
            wal_end: Lsn::new(body.try_get_u64().map_err(truncated)?),
            sent_at_us: body.try_get_i64().map_err(truncated)?,
            data: body,
        }),
        b'k' => Ok(CopyMessage::Keepalive {
            wal_end: Lsn::new(body.try_get_u64().map_err(truncated)?),
            sent_at_us: body.try_get_i64().map_err(truncated)?,
            reply_requested: body.try_get_u8().map_err(truncated)? != 0,
        }),
        OVERSIZED_TAG => {
            let bytes = body.try_get_u64().map_err(truncated)?;
            match copy_data(body)? {
                CopyMessage::XLogData { data, .. } => Ok(CopyMessage::Oversized { bytes, data }),
                _ => Err(Error::protocol("a message that is too large and no piece of the log")),
            }
        }
        other => Err(Error::protocol(format!("copy data of kind {:?}", char::from(other)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    fn xlog_data(start: u64, data: &[u8]) -> Vec<u8> {
        let mut body = vec![b'w'];
        for number in [start, 9, 7] {
            body.extend_from_slice(&number.to_be_bytes());
        }
        body.extend_from_slice(data);
        framed(b'd', &body)
    }

    fn block(parts: &[Vec<u8>]) -> Block {
        Block::new(Bytes::from(parts.concat()))
    }

    #[test]
    fn messages_come_in_order() {
        let keepalive = framed(b'd', &[&b"k"[..], &8u64.to_be_bytes(), &6i64.to_be_bytes(), &[1]].concat());
        let block = block(&[
            xlog_data(5, b"abc"),
            framed(b'S', b"TimeZone\0UTC\0"),
            keepalive,
            framed(b'N', b"SWARNING\0C01000\0Mmind\0\0"),
            framed(b'c', b""),
        ]);
        let messages: Vec<_> = block.messages().map(Result::unwrap).collect();
        assert_eq!(
            messages[0],
            CopyMessage::XLogData { start: Lsn::new(5), wal_end: Lsn::new(9), sent_at_us: 7, data: b"abc" }
        );
        assert_eq!(messages[1], CopyMessage::Keepalive { wal_end: Lsn::new(8), sent_at_us: 6, reply_requested: true });
        assert!(matches!(&messages[2], CopyMessage::Notice(notice) if notice.message() == "mind"));
        assert_eq!(messages[3], CopyMessage::Done);
        assert_eq!(messages.len(), 4);
    }

    #[test]
    fn an_error_ends_the_iteration() {
        let block = block(&[framed(b'E', b"SFATAL\0C57P01\0Mbye\0\0"), xlog_data(1, b"")]);
        let mut messages = block.messages();
        assert!(messages.next().unwrap().unwrap_err().is_terminated());
        assert!(messages.next().is_none());
    }

    #[test]
    fn truncated_and_foreign_messages_are_errors() {
        for bytes in [&b"d"[..], b"d\0\0\0\x03", b"d\0\0\0\x05", b"d\0\0\0\x05x", b"d\0\0\0\x04", b"Q\0\0\0\x04"] {
            let block = Block::new(Bytes::copy_from_slice(bytes));
            assert!(block.messages().next().unwrap().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn slices_share_the_block() {
        let block = block(&[xlog_data(1, b"payload")]);
        let Some(Ok(CopyMessage::XLogData { data, .. })) = block.messages().next() else { panic!() };
        let slice = block.slice(&data[3..]);
        assert_eq!(slice.as_ptr(), data[3..].as_ptr());
        assert_eq!(block.slice(b"from elsewhere"), &b"from elsewhere"[..]);
        drop(block);
        assert_eq!(slice, &b"load"[..]);
    }

    proptest! {
        #[test]
        fn arbitrary_blocks_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let block = Block::new(Bytes::from(bytes));
            prop_assert!(block.messages().count() <= 61);
        }

        #[test]
        fn data_round_trips(datas in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..20)) {
            let block = block(&datas.iter().map(|data| xlog_data(3, data)).collect::<Vec<_>>());
            let read: Vec<_> = block.messages().map(|message| match message.unwrap() {
                CopyMessage::XLogData { data, .. } => data.to_vec(),
                other => panic!("{other:?}"),
            }).collect();
            prop_assert_eq!(read, datas);
        }
    }
}
