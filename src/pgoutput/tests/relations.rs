//! The relation cache across DDL and reconnects.

use std::sync::Arc;

use super::encoder::{Model, encode};
use super::*;

/// What the server says of table 7 when it has these columns.
fn described(columns: &[&str]) -> Vec<u8> {
    encode(&Model::Relation {
        id: 7,
        namespace: "shop".into(),
        name: "outbox".into(),
        identity: b'd',
        columns: columns.iter().map(|name| (u8::from(*name == "id"), (*name).into(), 25, -1)).collect(),
    })
}

fn apply(cache: &mut RelationCache, columns: &[&str]) -> Arc<Relation> {
    match parse(&described(columns)) {
        Ok(Message::Relation(body)) => cache.apply(body),
        other => panic!("{other:?}"),
    }
}

#[test]
fn columns_are_found_by_name() {
    let relation = apply(&mut RelationCache::default(), &["id", "payload"]);
    assert_eq!((relation.id(), relation.namespace(), relation.name()), (7, "shop", "outbox"));
    assert_eq!(relation.replica_identity(), ReplicaIdentity::Default);
    assert_eq!(relation.column_index("payload"), Some(1));
    assert_eq!(relation.column_index("Payload"), None);
    let identity: Vec<_> = relation.columns().iter().map(|column| (column.name(), column.is_identity())).collect();
    assert_eq!(identity, [("id", true), ("payload", false)]);
    assert_eq!((relation.columns()[1].type_oid(), relation.columns()[1].type_modifier()), (25, -1));
}

#[test]
fn ddl_replaces_a_relation_and_a_reconnect_forgets_it() {
    let mut cache = RelationCache::default();
    let before = apply(&mut cache, &["id", "payload"]);
    let same = apply(&mut cache, &["id", "payload"]);
    assert!(Arc::ptr_eq(&before, &same), "described again without a change");

    let after = apply(&mut cache, &["id", "tenant", "payload"]);
    assert!(!Arc::ptr_eq(&before, &after));
    assert_eq!(cache.get(7).and_then(|relation| relation.column_index("payload")), Some(2));
    assert_eq!(before.column_index("payload"), Some(1), "what is still in use does not change");

    cache.clear();
    assert_eq!(cache.get(7), None);
}
