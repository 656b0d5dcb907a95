//! Messages larger than what is accepted: their beginning is kept, and the rest is thrown away as it comes, so that one row
//! cannot fill memory, and those behind it are still read.

use bytes::{Buf, BufMut, BytesMut};

use super::wire::Block;
use super::wire::copy::{HEADER_BYTES, OVERSIZED_TAG};

/// So much of a message is kept: the columns in front of a large one.
const KEPT_BYTES: usize = 64 * 1024;

/// A message that is on its way.
#[derive(Debug)]
pub(super) struct Oversized {
    announced: usize,
    left: usize,
    kept: BytesMut,
}

impl Oversized {
    /// A message of so many bytes, framing included, begins at the front of `buf`, which has its header.
    pub(super) fn begin(announced: usize, buf: &mut BytesMut) -> Self {
        buf.advance(HEADER_BYTES.min(buf.len()));
        Self { announced, left: announced.saturating_sub(HEADER_BYTES), kept: BytesMut::new() }
    }

    /// Takes what has come of it; true once that is all.
    pub(super) fn take(&mut self, buf: &mut BytesMut) -> bool {
        let come = self.left.min(buf.len());
        let kept = come.min(KEPT_BYTES - self.kept.len());
        self.kept.extend_from_slice(buf.get(..kept).unwrap_or_default());
        buf.advance(come);
        self.left -= come;
        self.left == 0
    }

    /// What was kept, as a message that says how large it was.
    pub(super) fn into_block(self) -> Block {
        let body = 1 + 8 + self.kept.len();
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + body);
        bytes.put_u8(b'd');
        // At most KEPT_BYTES and a few.
        bytes.put_u32(u32::try_from(4 + body).unwrap_or(u32::MAX));
        bytes.put_u8(OVERSIZED_TAG);
        bytes.put_u64(self.announced as u64);
        bytes.extend_from_slice(&self.kept);
        Block::new(bytes.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::CopyMessage;

    #[test]
    fn the_beginning_is_kept_and_what_follows_is_left_alone() {
        let announced = HEADER_BYTES + 25 + 200_000;
        let mut stream = BytesMut::from(&b"d\0\0\0\0w"[..]);
        stream.put_bytes(0, 24);
        stream.put_bytes(b'x', 200_000);
        stream.put_slice(b"next");
        let mut buf = stream.split_to(HEADER_BYTES);
        let mut oversized = Oversized::begin(announced, &mut buf);
        let mut is_whole = oversized.take(&mut buf);
        while !is_whole {
            let piece = stream.split_to(stream.len().min(7_777));
            buf.unsplit(piece);
            is_whole = oversized.take(&mut buf);
        }
        buf.unsplit(stream);
        assert!(buf.ends_with(b"next") && buf.len() < 7_777);
        let block = oversized.into_block();
        let messages: Vec<_> = block.messages().map(Result::unwrap).collect();
        let [CopyMessage::Oversized { bytes, data }] = messages.as_slice() else { panic!("{messages:?}") };
        assert_eq!(*bytes, announced as u64);
        assert_eq!(*data, vec![b'x'; KEPT_BYTES - 25].as_slice());
    }
}
