//! The replication stream: read fast, answer always.
//!
//! Reading and answering never wait for each other. [`ReplicationStream::readable_block`] writes what is waiting to be
//! written whenever the socket takes it, and [`ReplicationStream::send_status`] never waits at all, so a server that is slow
//! to read cannot stop this side from reading. (The walsender does read while it waits to send: `WalSndWriteData`.)

use std::io;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::Interest;

use super::error::{Error, Result};
use super::gather::{Gather, Naps};
use super::oversized::Oversized;
use super::transport::Transport;
use super::wire::backend::announced_bytes;
use super::wire::frontend::{self, Status};
use super::wire::{Block, CopyMessage};

/// Room for reading. A read takes at most this much, and blocks that were read into one such piece share it.
const BUFFER_BYTES: usize = 1024 * 1024;

/// With less room than this left, a new piece begins: small reads cost more than the rest of a piece.
const ROOM_BYTES_MIN: usize = 512 * 1024;

/// How often [`ReplicationStream::closed`] looks.
const CLOSED_INTERVAL: Duration = Duration::from_millis(50);

/// How to read a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// The largest message that is kept whole, framing included. A row is one message. Of a larger one comes what is small, as
    /// [`CopyMessage::Oversized`].
    pub max_message_bytes: usize,
    /// How long bytes may gather in a busy stream before they are read: zero is off, nothing is what suits the kind of socket.
    /// See [`gather`](super::gather).
    pub gather: Option<Duration>,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self { max_message_bytes: 64 * 1024 * 1024, gather: None }
    }
}

/// A connection that streams changes.
#[derive(Debug)]
pub struct ReplicationStream {
    transport: Transport,
    input: Input,
    output: Output,
    gather: Gather,
}

impl ReplicationStream {
    /// `buf` holds what was read behind the answer to `START_REPLICATION`.
    pub(crate) fn new(transport: Transport, buf: BytesMut, settings: StreamSettings) -> Self {
        let naps = settings.gather.map_or_else(|| transport.naps(), Naps::of);
        Self {
            transport,
            input: Input { buf, max_message_bytes: settings.max_message_bytes, was_huge: false, oversized: None },
            output: Output::default(),
            gather: Gather::new(naps),
        }
    }

    /// Waits for messages and returns all complete ones of one read, at least one.
    ///
    /// In a busy stream the thread sleeps for [`StreamSettings::gather`] before it reads: on purpose the whole thread,
    /// because the runtime's timers are a millisecond coarse. Cancel-safe: nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// When the connection is lost, or a message is announced that is larger than allowed. The server's own errors are in the
    /// block.
    pub async fn readable_block(&mut self) -> Result<Block> {
        loop {
            if let Some(block) = self.input.take_block()? {
                return Ok(block);
            }
            self.output.write(&mut self.transport);
            let interest = match self.output.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            self.gather.wants(Instant::now());
            // A socket that is closed counts as readable.
            if self.transport.ready(interest).await.map_err(Error::io)?.is_readable() {
                self.read_once()?;
            }
        }
    }

    /// Tells the server how far this side is, as far as the socket takes it at once; [`readable_block`](Self::readable_block)
    /// and [`flush`](Self::flush) write the rest. A status that is still waiting is replaced by a newer one.
    ///
    /// A failure is left to the next read: the server may have sent the reason before it closed.
    pub fn send_status(&mut self, status: Status) {
        self.output.replace_status(status);
        self.output.write(&mut self.transport);
    }

    /// Waits until everything is written. Cancel-safe.
    ///
    /// It does not read, so with a server that does not read either it may take for ever: give it a limit, or use
    /// [`readable_block`](Self::readable_block), which does both.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn flush(&mut self) -> Result<()> {
        while !self.output.write(&mut self.transport) {
            self.transport.ready(Interest::WRITABLE).await.map_err(Error::io)?;
        }
        if self.output.failed { Err(Error::closed()) } else { Ok(()) }
    }

    /// Whether the server has closed or reset the connection. There may still be messages to read.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.transport.is_closed_by_peer()
    }

    /// Waits until the server has closed or reset the connection, for one who does not want to read now. Cancel-safe.
    ///
    /// It looks twenty times a second: while bytes are left unread, an event loop that waits for "readable" never sleeps.
    pub async fn closed(&self) {
        while !self.is_closed() {
            tokio::time::sleep(CLOSED_INTERVAL).await;
        }
    }

    /// Ends the stream: sends the last status, then `CopyDone`, and waits for the server's. What still comes in is
    /// thrown away. When this returns `Ok`, the server has taken in the status.
    ///
    /// # Errors
    /// When the server does not answer `within` the limit, or the connection is lost.
    pub async fn finish(mut self, last: Status, within: Duration) -> Result<()> {
        self.output.replace_status(last);
        self.output.end_copy();
        match tokio::time::timeout(within, self.skip_to_end()).await {
            Ok(ended) => ended?,
            Err(_) => return Err(Error::timed_out(within).context("the end of the replication stream")),
        }
        // Best effort: a server that has sent its CopyDone notices the closed socket as well.
        frontend::terminate(&mut self.output.buf);
        self.output.write(&mut self.transport);
        Ok(())
    }

    async fn skip_to_end(&mut self) -> Result<()> {
        loop {
            for message in &self.readable_block().await? {
                if message? == CopyMessage::Done {
                    return Ok(());
                }
            }
        }
    }

    fn read_once(&mut self) -> Result<()> {
        let nap = self.gather.nap(Instant::now());
        if let Some(nap) = nap {
            std::thread::sleep(nap);
        }
        let buf = self.input.room()?;
        let room = buf.capacity() - buf.len();
        match self.transport.try_read(buf) {
            Ok(0) => Err(Error::closed()),
            Ok(bytes) => {
                self.gather.read(bytes, room, Instant::now(), nap.is_some());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(Error::io(error)),
        }
    }
}

/// Bytes that were read, up to an incomplete message at their end.
#[derive(Debug)]
struct Input {
    buf: BytesMut,
    max_message_bytes: usize,
    /// The present piece was made for a huge message.
    was_huge: bool,
    /// A message that is too large is on its way.
    oversized: Option<Oversized>,
}

impl Input {
    /// All complete messages, as one piece, without copying.
    fn take_block(&mut self) -> Result<Option<Block>> {
        if let Some(mut oversized) = self.oversized.take() {
            if oversized.take(&mut self.buf) {
                return Ok(Some(oversized.into_block()));
            }
            self.oversized = Some(oversized);
            return Ok(None);
        }
        let mut complete = 0;
        while let Some(rest) = self.buf.get(complete..).filter(|rest| !rest.is_empty()) {
            match announced_bytes(rest, self.max_message_bytes) {
                Ok(Some(announced)) if announced <= rest.len() => complete += announced,
                Ok(_) => break,
                // The messages before it come first; the error comes again.
                Err(_) if complete > 0 => break,
                Err(error) => return self.begin_oversized(error),
            }
        }
        Ok((complete > 0).then(|| Block::new(self.buf.split_to(complete).freeze())))
    }

    /// A message that is too large begins. Only data may be so large.
    fn begin_oversized(&mut self, error: Error) -> Result<Option<Block>> {
        match announced_bytes(&self.buf, usize::MAX)?.filter(|_| self.buf.first() == Some(&b'd')) {
            Some(announced) => {
                self.oversized = Some(Oversized::begin(announced, &mut self.buf));
                self.take_block()
            }
            None => Err(error),
        }
    }

    /// The buffer, with room for the message that has begun and for a read that is worth its while.
    fn room(&mut self) -> Result<&mut BytesMut> {
        let announced = match self.oversized {
            Some(_) => 0,
            None => announced_bytes(&self.buf, self.max_message_bytes)?.unwrap_or(0),
        };
        let missing = announced.saturating_sub(self.buf.len());
        let spare = self.buf.capacity() - self.buf.len();
        if spare < missing.max(ROOM_BYTES_MIN) {
            self.new_piece(announced.max(BUFFER_BYTES));
        }
        Ok(&mut self.buf)
    }

    /// A piece whose blocks are all gone is used again, but for one that was made for a huge message: it must not be kept for
    /// ever.
    fn new_piece(&mut self, bytes: usize) {
        let more = bytes.saturating_sub(self.buf.len());
        if self.was_huge || bytes > BUFFER_BYTES || !self.buf.try_reclaim(more) {
            let mut piece = BytesMut::with_capacity(bytes);
            piece.extend_from_slice(&self.buf);
            self.buf = piece;
        }
        self.was_huge = bytes > BUFFER_BYTES;
    }
}

/// Bytes to be written: at most one status beside the one that is on its way.
#[derive(Debug, Default)]
struct Output {
    buf: BytesMut,
    waiting: Option<Status>,
    failed: bool,
}

impl Output {
    fn is_empty(&self) -> bool {
        self.failed || (self.buf.is_empty() && self.waiting.is_none())
    }

    fn replace_status(&mut self, mut status: Status) {
        // A newer status says all that an older one would, except that an answer is wanted.
        status.reply_requested |= self.waiting.is_some_and(|waiting| waiting.reply_requested);
        self.waiting = Some(status);
    }

    fn end_copy(&mut self) {
        if let Some(status) = self.waiting.take() {
            frontend::status_update(&status, &mut self.buf);
        }
        frontend::copy_done(&mut self.buf);
    }

    /// Writes what the socket takes; whether nothing is left, also because nothing can be written any more.
    fn write(&mut self, transport: &mut Transport) -> bool {
        while !self.is_empty() {
            if let Some(status) = self.waiting.take_if(|_| self.buf.is_empty()) {
                frontend::status_update(&status, &mut self.buf);
            }
            match transport.try_write(&mut self.buf) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.failed = true,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;

    fn keepalive() -> Vec<u8> {
        let mut bytes = vec![b'd', 0, 0, 0, 22, b'k'];
        bytes.extend_from_slice(&[0; 17]);
        bytes
    }

    fn input(max_message_bytes: usize) -> Input {
        Input { buf: BytesMut::new(), max_message_bytes, was_huge: false, oversized: None }
    }

    #[test]
    fn complete_messages_are_one_block_and_the_rest_stays() {
        let mut input = input(1000);
        for _ in 0..3 {
            input.buf.put_slice(&keepalive());
        }
        input.buf.put_slice(&keepalive()[..7]);
        let block = input.take_block().unwrap().unwrap();
        assert_eq!(block.messages().count(), 3);
        assert_eq!(input.buf.len(), 7);
        assert!(input.take_block().unwrap().is_none());
        input.buf.put_slice(&keepalive()[7..]);
        assert_eq!(input.take_block().unwrap().unwrap().messages().count(), 1);
    }

    #[test]
    fn messages_before_one_that_is_too_large_come_first() {
        let mut input = input(100);
        input.buf.put_slice(&keepalive());
        input.buf.put_slice(b"d\0\0\x10\0w");
        assert_eq!(input.take_block().unwrap().unwrap().messages().count(), 1);
        assert!(input.take_block().unwrap().is_none());
        assert_eq!(input.room().unwrap().len(), 0);
        input.buf.put_bytes(0, 4095 - 4);
        input.buf.put_slice(&keepalive());
        let block = input.take_block().unwrap().unwrap();
        assert!(matches!(block.messages().next(), Some(Ok(CopyMessage::Oversized { bytes: 4097, .. }))));
        assert_eq!(input.take_block().unwrap().unwrap().messages().count(), 1);
    }

    #[test]
    fn only_data_may_be_too_large() {
        let mut input = input(100);
        input.buf.put_slice(b"N\0\0\x10\0w");
        assert!(input.take_block().unwrap_err().is_too_large());
    }

    #[test]
    fn room_grows_for_a_large_message_and_shrinks_again() {
        let mut input = input(1 << 24);
        assert_eq!(input.room().unwrap().capacity(), BUFFER_BYTES);
        input.buf.put_slice(b"d\0\x10\0\0");
        assert_eq!(input.room().unwrap().capacity(), (1 << 20) + 1);
        input.buf.put_slice(&vec![0; (1 << 20) - 4]);
        assert_eq!(input.take_block().unwrap().unwrap().len(), (1 << 20) + 1);
        assert_eq!(input.room().unwrap().capacity(), BUFFER_BYTES);
        assert!(!input.was_huge);
    }

    #[test]
    fn a_piece_without_blocks_is_used_again() {
        let mut input = input(1000);
        let first = input.room().unwrap().as_ptr();
        while input.buf.capacity() - input.buf.len() >= ROOM_BYTES_MIN {
            input.buf.put_slice(&keepalive());
            drop(input.take_block().unwrap());
        }
        assert_eq!(input.room().unwrap().as_ptr(), first);
    }

    #[test]
    fn a_newer_status_replaces_the_waiting_one() {
        let mut output = Output::default();
        output.replace_status(Status { clock_us: 1, reply_requested: true, ..Status::default() });
        output.replace_status(Status { clock_us: 2, ..Status::default() });
        output.end_copy();
        assert_eq!(output.buf.len(), 39 + 5);
        assert_eq!(output.buf[38], 1, "an answer is still wanted");
        assert_eq!(output.buf[37], 2);
    }
}
