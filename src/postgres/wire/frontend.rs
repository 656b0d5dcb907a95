//! Messages to the server.

use bytes::{BufMut, BytesMut};
pub(crate) use postgres_protocol::message::frontend::{
    copy_done, password_message, query, sasl_initial_response, sasl_response, startup_message, terminate,
};

use crate::postgres::lsn::{EndLsn, Lsn};

/// A standby status update, framing and all: `d`, a length, `r`, three positions, a clock, a flag.
const STATUS_BYTES: u32 = 4 + 1 + 3 * 8 + 8 + 1;

/// What the server is told about this side's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Up to here bytes have been received. It only informs.
    pub written: Lsn,
    /// Up to here nothing is needed again: the server moves `confirmed_flush_lsn` here and may remove the log before it.
    pub flushed: EndLsn,
    /// Up to here events have been delivered. It only informs, here as much as `flushed` does.
    pub applied: EndLsn,
    /// This side's clock, microseconds since 2000-01-01 UTC; the server shows it as `reply_time`.
    pub clock_us: i64,
    /// Asks for a keepalive at once, which shows that the server is alive.
    pub reply_requested: bool,
}

/// Appends a status update.
pub(crate) fn status_update(status: &Status, buf: &mut BytesMut) {
    buf.put_u8(b'd');
    buf.put_u32(STATUS_BYTES);
    buf.put_u8(b'r');
    buf.put_u64(status.written.get());
    buf.put_u64(status.flushed.lsn().get());
    buf.put_u64(status.applied.lsn().get());
    buf.put_i64(status.clock_us);
    buf.put_u8(u8::from(status.reply_requested));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_update_is_laid_out_as_documented() {
        let status = Status {
            written: Lsn::new(3),
            flushed: EndLsn::new(Lsn::new(2)),
            applied: EndLsn::new(Lsn::new(1)),
            clock_us: -1,
            reply_requested: true,
        };
        let mut buf = BytesMut::new();
        status_update(&status, &mut buf);
        let mut expected = vec![b'd', 0, 0, 0, 38, b'r'];
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
        expected.extend_from_slice(&[0xFF; 8]);
        expected.push(1);
        assert_eq!(buf, expected);
    }
}
