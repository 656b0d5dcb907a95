//! Properties of the parser, checked against an encoder that shares no code with it.

mod encoder;
mod relations;

use encoder::{Model, OwnedColumn, encode, encode_tuple, messages, tuples};
use proptest::prelude::*;

use super::*;

/// At least 1,000 cases; `PROPTEST_CASES` asks for more, `PROPTEST_RNG_SEED` replays a run. A failure prints its
/// seed and keeps it under `proptest-regressions`, from where it is tried first.
fn cases() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: config.cases.max(1_000), ..config }
}

fn owned_columns(tuple: Tuple<'_>) -> Vec<OwnedColumn> {
    tuple.columns().map(OwnedColumn::from).collect()
}

/// Reads everything a message offers, so that an accessor that panics or never ends is found.
fn walk(bytes: &[u8]) -> Result<Model, ParseError> {
    parse(bytes).map(Model::from).inspect_err(|error| {
        assert!(error.offset_bytes() <= bytes.len(), "{error}");
        assert!(!error.to_string().is_empty());
    })
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn messages_round_trip(model in messages()) {
        prop_assert_eq!(walk(&encode(&model)), Ok(model));
    }

    #[test]
    fn tuples_round_trip(columns in tuples()) {
        let bytes = encode_tuple(&columns);
        let tuple = Tuple::parse(&bytes).unwrap();
        prop_assert_eq!(tuple.as_bytes(), &bytes[..]);
        prop_assert_eq!(tuple.len(), columns.len());
        prop_assert_eq!(tuple.columns().len(), columns.len());
        prop_assert_eq!(owned_columns(tuple), columns);
        prop_assert_eq!(Tuple::parse(tuple.as_bytes()), Ok(tuple));
    }

    #[test]
    fn a_message_that_is_cut_or_continued_is_refused(model in messages(), surplus in 1_usize..20) {
        let mut bytes = encode(&model);
        for length in 0..bytes.len() {
            prop_assert!(walk(&bytes[..length]).is_err(), "cut to {}", length);
        }
        bytes.resize(bytes.len() + surplus, 0);
        prop_assert!(walk(&bytes).is_err());
    }

    #[test]
    fn arbitrary_bytes_never_panic(tag in "[BCORYIUDTM]", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = walk(&bytes);
        let _ = walk(&[tag.as_bytes(), &bytes].concat());
        if let Ok(tuple) = Tuple::parse(&bytes) {
            prop_assert_eq!(encode_tuple(&owned_columns(tuple)), bytes);
        }
    }

    /// A mutated message that still parses means what it says: encoded again, it gives an equal message.
    #[test]
    fn mutated_messages_never_panic(
        model in messages(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encode(&model);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(mutated) = walk(&bytes) {
            prop_assert_eq!(walk(&encode(&mutated)), Ok(mutated));
        }
    }

    #[test]
    fn debug_output_has_no_column_values(value in "[a-z]{24}") {
        let columns = vec![OwnedColumn::Text(value.clone().into()), OwnedColumn::Binary(value.clone().into())];
        let bytes = encode(&Model::Insert { relation_id: 7, new: columns });
        let message = parse(&bytes).unwrap();
        let Message::Insert { new, .. } = message else { panic!("{message:?}") };
        let columns: Vec<_> = new.columns().collect();
        let debug = format!("{message:?} {new:?} {columns:?}");
        prop_assert!(!debug.contains(&value), "{}", debug);
        let logical = Model::Logical { flags: 1, lsn: 1, prefix: "p".into(), content: value.clone().into() };
        let debug = format!("{:?}", parse(&encode(&logical)).unwrap());
        prop_assert!(!debug.contains(&value), "{}", debug);
    }
}

#[test]
fn errors_name_message_field_and_offset() {
    for (bytes, text) in [
        (&b""[..], "malformed pgoutput message unknown: message type at byte 0: the message ends early"),
        (
            b"S\0\0\0\x01",
            "malformed pgoutput message unknown: message type at byte 0: type 'S' is not one of protocol version 1",
        ),
        (
            b"I\0\0\0\x01X",
            "malformed pgoutput message Insert: new tuple marker at byte 5: not a value this field can have",
        ),
        (
            b"I\0\0\0\x01N\0\x01t\xFF\xFF\xFF\xFF",
            "malformed pgoutput message Insert: column as text at byte 9: a negative length",
        ),
        (
            b"I\0\0\0\x01N\0\x01t\0\0\0\x05abc",
            "malformed pgoutput message Insert: column as text at byte 13: the message ends early",
        ),
        (
            b"I\0\0\0\x01N\0\x01nn",
            "malformed pgoutput message Insert: end at byte 9: more bytes than the message has fields",
        ),
        (
            b"Y\0\0\0\x01public\0mood",
            "malformed pgoutput message Type: type name at byte 12: a string without its terminating zero",
        ),
        (
            b"Y\0\0\0\x01\xFF\0mood\0",
            "malformed pgoutput message Type: namespace at byte 5: a string that is not UTF-8; \
             the connection must use client_encoding UTF8",
        ),
        (b"T\x7F\xFF\xFF\xFF\0", "malformed pgoutput message Truncate: relation ids at byte 6: the message ends early"),
    ] {
        assert_eq!(parse(bytes).unwrap_err().to_string(), text);
    }
}
