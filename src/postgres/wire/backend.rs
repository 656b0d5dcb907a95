//! Messages of the server outside the copy stream.

use bytes::{Buf, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{ErrorFields, Header, Message};
use tokio_postgres::error::SqlState;

use crate::postgres::error::{Error, Result, ServerError};

/// `CopyBothResponse`: from here on both sides send copy data. `postgres-protocol` does not know it.
const COPY_BOTH_RESPONSE_TAG: u8 = b'W';

/// A tag and a length that does not count the tag.
const HEADER_BYTES: usize = 5;

/// One message of the server.
pub(crate) enum Backend {
    /// Any message that `postgres-protocol` knows.
    Known(Message),
    /// Both sides may send copy data now.
    CopyBoth,
}

/// The whole length of the message at the beginning of `buf`, header included, once its header is there.
///
/// The length is checked before anyone waits for the body, so a broken server cannot make this side reserve memory
/// without limit.
pub(crate) fn announced_bytes(buf: &[u8], max_message_bytes: usize) -> Result<Option<usize>> {
    let Some(header) = Header::parse(buf).map_err(|error| Error::protocol(error.to_string()))? else {
        return Ok(None);
    };
    // `Header` has refused lengths below four.
    let announced = usize::try_from(header.len()).unwrap_or(usize::MAX).saturating_add(1);
    if announced > max_message_bytes {
        return Err(Error::message_too_large(announced, max_message_bytes));
    }
    Ok(Some(announced))
}

/// Splits the first message off `buf`, or leaves `buf` alone when it is not complete yet.
pub(crate) fn split_message(buf: &mut BytesMut, max_message_bytes: usize) -> Result<Option<Backend>> {
    let Some(announced) = announced_bytes(buf, max_message_bytes)? else {
        return Ok(None);
    };
    if buf.len() < announced {
        return Ok(None);
    }
    if buf.first() == Some(&COPY_BOTH_RESPONSE_TAG) {
        // The body tells the formats of the columns, and a replication stream has none.
        buf.advance(announced);
        return Ok(Some(Backend::CopyBoth));
    }
    let message = Message::parse(buf).map_err(|error| Error::protocol(error.to_string()))?;
    Ok(message.map(Backend::Known))
}

/// Reads the fields of an `ErrorResponse` or a `NoticeResponse`.
///
/// Before the session has an encoding, the server may word an error in its own: such bytes are replaced, because an
/// error that is half readable is better than none.
pub(crate) fn server_error(mut fields: ErrorFields<'_>) -> Result<ServerError> {
    let (mut severity, mut localized) = (None, None);
    let (mut sqlstate, mut message, mut detail, mut hint) = (None, None, None, None);
    while let Some(field) = fields.next().map_err(|error| Error::protocol(error.to_string()))? {
        let text = || Some(String::from_utf8_lossy(field.value_bytes()).into_owned());
        match field.type_() {
            b'V' => severity = text(),
            b'S' => localized = text(),
            b'C' => sqlstate = text(),
            b'M' => message = text(),
            b'D' => detail = text(),
            b'H' => hint = text(),
            _ => {}
        }
    }
    Ok(ServerError::new(
        severity.or(localized).unwrap_or_else(|| "ERROR".to_owned()),
        sqlstate.map_or(SqlState::INTERNAL_ERROR, |code| SqlState::from_code(&code)),
        message.unwrap_or_else(|| "the server gave no message".to_owned()),
        detail,
        hint,
    ))
}

/// The same from the body of a message whose header is already off.
pub(crate) fn server_error_in(body: &[u8]) -> Result<ServerError> {
    // `ErrorFields` has no constructor, so the body takes the way through the parser, with a header.
    let mut whole = BytesMut::with_capacity(HEADER_BYTES + body.len());
    let announced = i32::try_from(body.len() + HEADER_BYTES - 1).map_err(|_| Error::protocol("an endless error"))?;
    whole.extend_from_slice(b"E");
    whole.extend_from_slice(&announced.to_be_bytes());
    whole.extend_from_slice(body);
    match Message::parse(&mut whole) {
        Ok(Some(Message::ErrorResponse(error))) => server_error(error.fields()),
        Ok(_) => Err(Error::protocol("an error that ends too early")),
        Err(error) => Err(Error::protocol(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 1 << 20;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn too_large_is_refused_before_the_body_is_there() {
        let mut buf = BytesMut::from(&b"d\x00\x20\x00\x00"[..]);
        let error = split_message(&mut buf, LIMIT).err().unwrap();
        assert!(error.is_too_large());
        let text = error.to_string();
        assert!(text.contains("2097153") && text.contains("1048576") && text.contains("--max-message-bytes"), "{text}");
    }

    #[test]
    fn incomplete_messages_stay() {
        let whole = message(b'W', &[0, 0, 0]);
        for end in 0..whole.len() {
            let mut buf = BytesMut::from(&whole[..end]);
            assert!(split_message(&mut buf, LIMIT).unwrap().is_none());
            assert_eq!(buf.len(), end);
        }
        let mut buf = BytesMut::from(&whole[..]);
        assert!(matches!(split_message(&mut buf, LIMIT), Ok(Some(Backend::CopyBoth))));
        assert!(buf.is_empty());
    }

    #[test]
    fn fields_of_an_error() {
        let error = server_error_in(b"SFEHLER\0VERROR\0C42704\0Mno \xFFslot\0Dd\0Hh\0Xunknown\0\0").unwrap();
        assert_eq!(error.severity(), "ERROR");
        assert_eq!(error.sqlstate(), &SqlState::UNDEFINED_OBJECT);
        assert_eq!((error.message(), error.detail(), error.hint()), ("no \u{FFFD}slot", Some("d"), Some("h")));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut buf = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = split_message(&mut buf, LIMIT) {}
            let _ = server_error_in(&bytes);
        }

        #[test]
        fn arbitrary_bodies_never_panic(tag in any::<u8>(), body in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut buf = BytesMut::from(&message(tag, &body)[..]);
            if let Ok(Some(Backend::Known(Message::ErrorResponse(error)))) = split_message(&mut buf, LIMIT) {
                let _ = server_error(error.fields());
            }
        }
    }
}
