//! Every message as a value that owns its parts, how the server writes it, and how to draw one at random.

use proptest::prelude::*;

use super::super::*;

/// A message as the documentation lists its fields.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Model {
    Begin { final_lsn: u64, committed_at: i64, xid: u32 },
    Commit { flags: u8, commit_lsn: u64, end_lsn: u64, committed_at: i64 },
    Origin { commit_lsn: u64, name: String },
    Relation { id: u32, namespace: String, name: String, identity: u8, columns: Vec<(u8, String, u32, i32)> },
    Type { id: u32, namespace: String, name: String },
    Insert { relation_id: u32, new: Vec<OwnedColumn> },
    Update { relation_id: u32, old: Option<(bool, Vec<OwnedColumn>)>, new: Vec<OwnedColumn> },
    Delete { relation_id: u32, old: (bool, Vec<OwnedColumn>) },
    Truncate { options: u8, ids: Vec<u32> },
    Logical { flags: u8, lsn: u64, prefix: String, content: Vec<u8> },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum OwnedColumn {
    Null,
    UnchangedToast,
    Text(Vec<u8>),
    Binary(Vec<u8>),
}

impl From<Column<'_>> for OwnedColumn {
    fn from(column: Column<'_>) -> Self {
        match column {
            Column::Null => Self::Null,
            Column::UnchangedToast => Self::UnchangedToast,
            Column::Text(value) => Self::Text(value.to_owned()),
            Column::Binary(value) => Self::Binary(value.to_owned()),
        }
    }
}

impl From<Message<'_>> for Model {
    fn from(message: Message<'_>) -> Self {
        match message {
            Message::Begin { final_lsn, committed_at, xid } => {
                Self::Begin { final_lsn: final_lsn.get(), committed_at: committed_at.micros(), xid }
            }
            Message::Commit { flags, commit_lsn, end_lsn, committed_at } => Self::Commit {
                flags,
                commit_lsn: commit_lsn.get(),
                end_lsn: end_lsn.lsn().get(),
                committed_at: committed_at.micros(),
            },
            Message::Origin { commit_lsn, name } => Self::Origin { commit_lsn: commit_lsn.get(), name: name.into() },
            Message::Relation(body) => Self::Relation {
                id: body.id(),
                namespace: body.namespace().into(),
                name: body.name().into(),
                identity: match body.replica_identity() {
                    ReplicaIdentity::Default => b'd',
                    ReplicaIdentity::Nothing => b'n',
                    ReplicaIdentity::Full => b'f',
                    ReplicaIdentity::Index => b'i',
                },
                columns: body.columns().map(|c| (c.flags, c.name.into(), c.type_oid, c.type_modifier)).collect(),
            },
            Message::Type { id, namespace, name } => Self::Type { id, namespace: namespace.into(), name: name.into() },
            Message::Insert { relation_id, new } => Self::Insert { relation_id, new: owned(new) },
            Message::Update { relation_id, old, new } => {
                Self::Update { relation_id, old: old.map(owned_old), new: owned(new) }
            }
            Message::Delete { relation_id, old } => Self::Delete { relation_id, old: owned_old(old) },
            Message::Truncate { options, relation_ids } => Self::Truncate {
                options: u8::from(options.cascade()) | u8::from(options.restart_identity()) << 1,
                ids: relation_ids.iter().collect(),
            },
            Message::Logical(logical) => Self::Logical {
                flags: u8::from(logical.is_transactional),
                lsn: logical.lsn.get(),
                prefix: logical.prefix.into(),
                content: logical.content.into(),
            },
        }
    }
}

fn owned(tuple: Tuple<'_>) -> Vec<OwnedColumn> {
    super::owned_columns(tuple)
}

fn owned_old(old: OldTuple<'_>) -> (bool, Vec<OwnedColumn>) {
    match old {
        OldTuple::Key(tuple) => (false, owned(tuple)),
        OldTuple::Full(tuple) => (true, owned(tuple)),
    }
}

/// The message's bytes, field by field as the documentation lists them.
pub(super) fn encode(model: &Model) -> Vec<u8> {
    let text = |text: &str| [text.as_bytes(), &[0]].concat();
    let old = |(full, columns): &(bool, Vec<OwnedColumn>)| {
        [if *full { b"O" } else { b"K" }, encode_tuple(columns).as_slice()].concat()
    };
    match model {
        Model::Begin { final_lsn, committed_at, xid } => {
            [&b"B"[..], &final_lsn.to_be_bytes(), &committed_at.to_be_bytes(), &xid.to_be_bytes()].concat()
        }
        Model::Commit { flags, commit_lsn, end_lsn, committed_at } => {
            [&[b'C', *flags][..], &commit_lsn.to_be_bytes(), &end_lsn.to_be_bytes(), &committed_at.to_be_bytes()]
                .concat()
        }
        Model::Origin { commit_lsn, name } => [&b"O"[..], &commit_lsn.to_be_bytes(), &text(name)].concat(),
        Model::Relation { id, namespace, name, identity, columns } => {
            let count = u16::try_from(columns.len()).unwrap();
            let head =
                [&b"R"[..], &id.to_be_bytes(), &text(namespace), &text(name), &[*identity], &count.to_be_bytes()]
                    .concat();
            let columns = columns.iter().map(|(flags, name, type_oid, type_modifier)| {
                [&[*flags][..], &text(name), &type_oid.to_be_bytes(), &type_modifier.to_be_bytes()].concat()
            });
            [head].into_iter().chain(columns).flatten().collect()
        }
        Model::Type { id, namespace, name } => [&b"Y"[..], &id.to_be_bytes(), &text(namespace), &text(name)].concat(),
        Model::Insert { relation_id, new } => {
            [&b"I"[..], &relation_id.to_be_bytes(), b"N", &encode_tuple(new)].concat()
        }
        Model::Update { relation_id, old: before, new } => {
            let before = before.as_ref().map(old).unwrap_or_default();
            [&b"U"[..], &relation_id.to_be_bytes(), &before, b"N", &encode_tuple(new)].concat()
        }
        Model::Delete { relation_id, old: before } => [&b"D"[..], &relation_id.to_be_bytes(), &old(before)].concat(),
        Model::Truncate { options, ids } => {
            let count = u32::try_from(ids.len()).unwrap();
            let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_be_bytes()).collect();
            [&b"T"[..], &count.to_be_bytes(), &[*options], &ids].concat()
        }
        Model::Logical { flags, lsn, prefix, content } => {
            let length = u32::try_from(content.len()).unwrap();
            [&[b'M', *flags][..], &lsn.to_be_bytes(), &text(prefix), &length.to_be_bytes(), content].concat()
        }
    }
}

pub(super) fn encode_tuple(columns: &[OwnedColumn]) -> Vec<u8> {
    let mut bytes = u16::try_from(columns.len()).unwrap().to_be_bytes().to_vec();
    for column in columns {
        let (kind, value) = match column {
            OwnedColumn::Null => (b'n', None),
            OwnedColumn::UnchangedToast => (b'u', None),
            OwnedColumn::Text(value) => (b't', Some(value)),
            OwnedColumn::Binary(value) => (b'b', Some(value)),
        };
        bytes.push(kind);
        if let Some(value) = value {
            bytes.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
            bytes.extend(value);
        }
    }
    bytes
}

pub(super) fn tuples() -> impl Strategy<Value = Vec<OwnedColumn>> {
    let value = || prop::collection::vec(any::<u8>(), 0..40);
    let column = prop_oneof![
        Just(OwnedColumn::Null),
        Just(OwnedColumn::UnchangedToast),
        value().prop_map(OwnedColumn::Text),
        value().prop_map(OwnedColumn::Binary),
    ];
    prop::collection::vec(column, 0..12)
}

/// Any message. Unused flag bits are zero, as the server leaves them.
pub(super) fn messages() -> impl Strategy<Value = Model> {
    let name = || "[^\\x00]{0,12}";
    let column = (0..=1_u8, name(), any::<u32>(), any::<i32>());
    let old = || (any::<bool>(), tuples());
    prop_oneof![
        any::<(u64, i64, u32)>().prop_map(|(final_lsn, committed_at, xid)| Model::Begin {
            final_lsn,
            committed_at,
            xid
        }),
        any::<(u8, u64, u64, i64)>().prop_map(|(flags, commit_lsn, end_lsn, committed_at)| Model::Commit {
            flags,
            commit_lsn,
            end_lsn,
            committed_at
        }),
        (any::<u64>(), name()).prop_map(|(commit_lsn, name)| Model::Origin { commit_lsn, name }),
        (any::<u32>(), name(), name(), prop::sample::select(&b"dnfi"[..]), prop::collection::vec(column, 0..8))
            .prop_map(|(id, namespace, name, identity, columns)| Model::Relation {
                id,
                namespace,
                name,
                identity,
                columns
            }),
        (any::<u32>(), name(), name()).prop_map(|(id, namespace, name)| Model::Type { id, namespace, name }),
        (any::<u32>(), tuples()).prop_map(|(relation_id, new)| Model::Insert { relation_id, new }),
        (any::<u32>(), prop::option::of(old()), tuples()).prop_map(|(relation_id, old, new)| Model::Update {
            relation_id,
            old,
            new
        }),
        (any::<u32>(), old()).prop_map(|(relation_id, old)| Model::Delete { relation_id, old }),
        (0..=3_u8, prop::collection::vec(any::<u32>(), 0..6))
            .prop_map(|(options, ids)| Model::Truncate { options, ids }),
        (0..=1_u8, any::<u64>(), name(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(flags, lsn, prefix, content)| Model::Logical { flags, lsn, prefix, content }),
    ]
}
