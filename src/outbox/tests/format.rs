//! What values and headers are made of.

use super::*;

#[test]
fn an_envelope_has_the_payload_as_it_stands() {
    let mapping = Mapping { value: ValueFormat::Envelope, ..Mapping::default() };
    let value = |oid, payload| {
        let (columns, row) = with_payload(oid, payload);
        seen_by(&mapping, &columns, &row).value
    };
    let around = |payload: &str| {
        let front = r#"{"id":"i","type":"OrderPlaced","aggregate":{"type":"order","id":"order-7"},"version":null,"#;
        format!(r#"{front}"time":"2025-12-25T17:46:40.000000Z","payload":{payload}}}"#)
    };
    assert_eq!(value(JSON, Some("{\"a\": 1.10}")), Some(around("{\"a\": 1.10}")));
    assert_eq!(value(TEXT, Some("[1]")), Some(around("[1]")));
    assert_eq!(value(TEXT, Some("12")), Some(around("\"12\"")));
    assert_eq!(value(TEXT, Some("{x")), Some(around("\"{x\"")));
    assert_eq!(value(BYTEA, Some("\\x0001ff")), Some(around("\"AAH/\"")));
    assert_eq!(value(JSON, None), None);
}

#[test]
fn cloud_events_in_both_modes() {
    let mut mapping = Mapping { value: ValueFormat::CloudEvents, ..Mapping::default() };
    let record = seen_by(&mapping, &OURS, &ROW);
    assert_eq!(
        record.value.unwrap(),
        r#"{"specversion":"1.0","id":"i","source":"/shop/shop.outbox","type":"OrderPlaced","subject":"order-7","#
            .to_owned()
            + r#""time":"2025-12-25T17:46:40.000000Z","datacontenttype":"application/json","data":{"a": 1.10}}"#
    );
    assert!(record.headers.contains(&"content-type=application/cloudevents+json; charset=UTF-8".to_owned()));
    let (columns, row) = with_payload(BYTEA, Some("\\x00"));
    assert!(seen_by(&mapping, &columns, &row).value.unwrap().ends_with(r#""data_base64":"AA=="}"#));
    mapping.value = ValueFormat::CloudEventsBinary;
    let record = seen_by(&mapping, &OURS, &ROW);
    assert_eq!(record.value.as_deref(), Some("{\"a\": 1.10}"));
    let expected = [
        "ce_specversion=1.0",
        "ce_id=i",
        "ce_source=/shop/shop.outbox",
        "ce_type=OrderPlaced",
        "ce_subject=order-7",
        "ce_time=2025-12-25T17:46:40.000000Z",
        "content-type=application/json",
    ];
    assert_eq!(record.headers[2..], expected);
    let mut row = ROW;
    row[3] = None;
    let error = seen(&map(&mapping, &OURS, &row).unwrap()).unwrap_err();
    assert_eq!(error, MappingError::Null { column: "event_type".to_owned() });
}

#[test]
fn debeziums_records_have_the_id_and_what_was_asked_for() {
    let columns = [("id", UUID), ("aggregatetype", TEXT), ("aggregateid", TEXT), ("type", TEXT), ("payload", JSONB)];
    let values = [Some("i"), Some("order"), Some("7"), Some("T"), Some("{}")];
    let header = HeaderColumn { column: "type".to_owned(), header: "eventType".to_owned() };
    let mapping = Mapping { layout: Layout::Debezium, headers: vec![header], ..Mapping::default() };
    let expected = Seen {
        topic: "outbox.event.order".to_owned(),
        key: Some("7".to_owned()),
        value: Some("{}".to_owned()),
        headers: vec!["id=i".to_owned(), "eventType=T".to_owned()],
    };
    assert_eq!(seen_by(&mapping, &columns, &values), expected);
}

#[test]
fn bytea_is_decoded_and_must_be_hexadecimal() {
    let payload = |text| {
        let (columns, row) = with_payload(BYTEA, Some(text));
        let (event, source) = (event(&columns, &row).unwrap(), Source::new("", ""));
        Record::of(&event, &source, 0).map(|record| record.value.unwrap().into_owned())
    };
    assert_eq!(payload("\\x00ff10"), Ok(vec![0, 255, 16]));
    assert_eq!(payload("\\x"), Ok(vec![]));
    for text in ["00ff", "\\x0", "\\x0g", "\\x+1"] {
        assert_eq!(payload(text), Err(MappingError::Bytea { column: "payload".to_owned() }), "{text}");
    }
}

#[test]
fn headers_are_a_json_object_or_an_hstore() {
    let headers = |oid, text| {
        let (mut columns, mut values) = (OURS, ROW);
        columns[5].1 = oid;
        values[5] = Some(text);
        seen(&event(&columns, &values).unwrap()).map(|record| record.headers[2..].to_vec())
    };
    let json = r#"{"a": "x\ny", "n": 12345678901234567890.10, "o": {"b": [1]}, "z": null}"#;
    let expected = ["a=x\ny", "n=12345678901234567890.10", r#"o={"b": [1]}"#, "z=NULL"].map(str::to_owned);
    for oid in [JSON, JSONB, TEXT] {
        assert_eq!(headers(oid, json).unwrap(), expected);
    }
    assert_eq!(headers(JSONB, "null"), Ok(vec![]));
    assert_eq!(headers(HSTORE, r#""a"=>"1", "b"=>NULL"#).unwrap(), ["a=1", "b=NULL"]);
    for (oid, text) in [(JSON, "[]"), (JSON, "1"), (TEXT, "{"), (TEXT, ""), (HSTORE, "{}"), (HSTORE, "a=>1")] {
        assert_eq!(headers(oid, text), Err(MappingError::Headers), "{text}");
    }
}

#[test]
fn a_payload_that_is_too_large_stays_in_the_table() {
    let mapping = Mapping { claim_check_above: Some(11), ..Mapping::default() };
    let claimed = |payload| {
        let (columns, row) = with_payload(TEXT, Some(payload));
        let record = seen_by(&mapping, &columns, &row);
        let is_told = map(&mapping, &columns, &row).unwrap().is_claimed();
        (record.value.unwrap(), is_told)
    };
    assert_eq!(claimed("eleven byte"), ("eleven byte".to_owned(), false));
    let reference = r#"{"source":"shop/shop.outbox","id":"i","column":"payload"}"#.to_owned();
    assert_eq!(claimed("twelve bytes"), (reference, true));
}

#[test]
fn a_payload_that_is_too_large_is_described_with_its_place_in_the_store() {
    let store = "s3://bucket/claims".parse().unwrap();
    let mapping = Mapping { claim_check_above: Some(5), claim_check_to: Some(store), ..Mapping::default() };
    let source = Source::new("shop", "shop.outbox");
    for (oid, text, payload, sha256) in [
        (TEXT, "abcabc", &b"abcabc"[..], "bbb59da3af939f7af5f360f2ceb80a496e3bae1cd87dde426db0ae40677e1c2c"),
        (BYTEA, "\\x616263", b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ] {
        let (columns, row) = with_payload(oid, Some(text));
        let mut event = map(&mapping, &columns, &row).unwrap();
        let object = event.to_store(&source).unwrap().unwrap();
        assert_eq!((object.name.as_str(), &object.payload[..]), ("shop/shop.outbox/i", payload));
        let of = |event: &Event| {
            let record = Record::of(event, &source, COMMITTED_MS).unwrap();
            let header = record.headers.iter().find(|header| header.name == header::HEADER_CLAIM_CHECK).unwrap();
            (record.value.unwrap().into_owned(), header.value.as_bytes().unwrap().to_vec())
        };
        let before = of(&event);
        let url = "s3://bucket/claims/shop/shop.outbox/i";
        let row = r#""source":"shop/shop.outbox","id":"i","column":"payload""#;
        let value = format!(r#"{{{row},"url":"{url}","bytes":{},"sha256":"{sha256}"}}"#, payload.len());
        assert_eq!(before, (value.into_bytes(), url.as_bytes().to_vec()));
        event.stored(Receipt::of(&object.payload));
        assert_eq!((of(&event), event.to_store(&source)), (before, Ok(None)));
    }
    let (columns, row) = with_payload(TEXT, Some("small"));
    let event = map(&mapping, &columns, &row).unwrap();
    assert_eq!((event.is_claimed(), event.to_store(&source)), (false, Ok(None)));
    let (columns, row) = with_payload(BYTEA, Some("no hex"));
    let refused = MappingError::Bytea { column: "payload".to_owned() };
    assert_eq!(map(&mapping, &columns, &row).unwrap().to_store(&source), Err(refused));
}

#[test]
fn a_value_that_was_not_read_is_claimed_or_refused() {
    let row = [&encode(&[Some(b"i")])[2..], b"u"].concat();
    let row = [&[0, 2], row.as_slice()].concat();
    let columns = [("id", TEXT), ("payload", TEXT)];
    let event = |mapping: &Mapping, columns: &[(&str, u32)]| {
        let shape = Arc::new(shape(columns, mapping).unwrap());
        let tuple = Tuple::parse(&row).unwrap();
        Event::map(&shape, &tuple, Bytes::copy_from_slice, Position::default(), PgTimestamp::default())
    };
    let mapping = Mapping { claim_check_above: Some(1000), ..Mapping::default() };
    assert!(event(&mapping, &columns).unwrap().is_claimed());
    // What the stream left out cannot be stored.
    let stored = Mapping { claim_check_to: Some("s3://bucket".parse().unwrap()), ..mapping.clone() };
    let condensed = event(&stored, &columns).unwrap();
    let source = Source::new("shop", "shop.outbox");
    assert_eq!((condensed.is_claimed(), condensed.to_store(&source)), (true, Ok(None)));
    let record = Record::of(&condensed, &source, COMMITTED_MS).unwrap();
    assert_eq!(record.value.as_deref(), Some(&br#"{"source":"shop/shop.outbox","id":"i","column":"payload"}"#[..]));
    assert!(record.headers.iter().any(|header| header.value.as_bytes() == Some(b"row")));
    let error = event(&Mapping::default(), &columns).unwrap_err();
    assert_eq!(error, MappingError::TooLarge { column: "payload".to_owned() });
    let error = event(&mapping, &[("payload", TEXT), ("id", TEXT)]).unwrap_err();
    assert_eq!(error, MappingError::TooLarge { column: "id".to_owned() }, "only the payload may be missing");
}
