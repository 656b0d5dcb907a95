//! Messages larger than what is accepted: their large values are thrown away as they come, so that one row cannot fill memory,
//! and those behind it are still read.

use bytes::{Buf, BufMut, BytesMut};

use super::condense::Condenser;
use super::wire::Block;
use super::wire::copy::{HEADER_BYTES, OVERSIZED_TAG, XLOG_DATA_BYTES};

/// A message that is on its way.
#[derive(Debug)]
pub(super) struct Oversized {
    announced: usize,
    left: usize,
    /// What stands before the plugin's bytes.
    front: BytesMut,
    condenser: Condenser,
}

impl Oversized {
    /// A message of so many bytes, framing included, begins at the front of `buf`, which has its header.
    pub(super) fn begin(announced: usize, buf: &mut BytesMut) -> Self {
        buf.advance(HEADER_BYTES.min(buf.len()));
        let left = announced.saturating_sub(HEADER_BYTES);
        Self { announced, left, front: BytesMut::new(), condenser: Condenser::new() }
    }

    /// Takes what has come of it; true once that is all.
    pub(super) fn take(&mut self, buf: &mut BytesMut) -> bool {
        let come = buf.split_to(self.left.min(buf.len()));
        self.left -= come.len();
        let (front, data) = come.split_at(come.len().min(XLOG_DATA_BYTES - self.front.len()));
        self.front.extend_from_slice(front);
        self.condenser.take(data);
        self.left == 0
    }

    /// What was kept, as a message that says how large it was.
    pub(super) fn into_block(self) -> Block {
        let kept = self.condenser.into_kept();
        let body = 1 + 8 + self.front.len() + kept.len();
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + body);
        bytes.put_u8(b'd');
        // What the condenser keeps is bounded.
        bytes.put_u32(u32::try_from(4 + body).unwrap_or(u32::MAX));
        bytes.put_u8(OVERSIZED_TAG);
        bytes.put_u64(self.announced as u64);
        bytes.extend_from_slice(&self.front);
        bytes.extend_from_slice(&kept);
        Block::new(bytes.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::CopyMessage;

    #[test]
    fn small_values_are_kept_and_what_follows_is_left_alone() {
        let row = [&b"I\0\0\0\x07N\0\x02t\0\x03\x0d\x40"[..], &vec![b'x'; 200_000], b"t\0\0\0\x02id"].concat();
        let announced = HEADER_BYTES + XLOG_DATA_BYTES + row.len();
        let mut stream = BytesMut::from(&b"d\0\0\0\0w"[..]);
        stream.put_bytes(0, XLOG_DATA_BYTES - 1);
        stream.put_slice(&row);
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
        assert_eq!(*data, b"I\0\0\0\x07N\0\x02ut\0\0\0\x02id");
    }
}
