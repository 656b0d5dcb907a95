//! The store in a folder; that in a bucket has its tests beside a server that speaks S3, in `tests/it/claims.rs`.

use super::*;
use crate::outbox::Source;

#[tokio::test]
async fn a_folder_takes_payloads_under_their_names_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let place: ClaimStore = format!("file://{}", folder.path().display()).parse().unwrap();
    let store = Store::open(&place).unwrap();
    for id in ["1", "a/b", "..", "%2F", "x#1", "ö"] {
        let name = ClaimStore::name(&Source::new("shop", "t.t"), id.as_bytes());
        for payload in [&b"first, and longer"[..], b"second"] {
            store.put(&name, Bytes::copy_from_slice(payload)).await.unwrap();
            assert_eq!(std::fs::read(folder.path().join(&name)).unwrap(), payload, "{id}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path().join("shop/t.t")).unwrap().count(), 6, "nothing else is left");
    store.probe().await.unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_folder_that_is_not_there_is_told_with_a_remedy() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (path, expected) in [
        ("/no/such/folder", "the folder /no/such/folder cannot be used: No such file"),
        (file.path().to_str().unwrap(), "is no folder"),
    ] {
        let error = Store::open(&ClaimStore::Folder(path.into())).unwrap_err();
        assert!(error.contains(expected) && error.contains("create it"), "{error}");
    }
}
