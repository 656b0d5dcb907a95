//! Payloads that are too large to travel: where they are kept, under which name, and what is known of them. Nothing is read or
//! written here.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

use super::record::Source;

/// What a part of a name may have beside letters and digits: RFC 3986 calls them unreserved, and stores take them.
const KEPT: AsciiSet = NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');

/// A folder's path in a URL.
const KEPT_IN_PATH: AsciiSet = KEPT.remove(b'/').remove(b'~');

/// The most bytes of one part of a name. File systems take 255, and the file has some more while it is written.
const PART_MAX: usize = 200;

/// The most bytes of a prefix. S3 takes 1,024 bytes for a whole key.
const PREFIX_MAX: usize = 256;

/// Where large payloads are kept: `file:///folder` or `s3://bucket/prefix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimStore {
    /// A folder of this machine, by its absolute path.
    Folder(PathBuf),
    /// A bucket of S3, or of what speaks its protocol.
    Bucket {
        /// The bucket.
        name: String,
        /// What all keys begin with, without a `/` at either end; may be empty.
        prefix: String,
    },
}

impl ClaimStore {
    /// The name of the payload of the event `id` of `source`, below folder or prefix: `name/schema.table/id`. Each part is
    /// percent-encoded, so that it is one part whatever is in it, and one that is empty or too long is a digest. The same event
    /// has the same name always, and no two events have one.
    #[must_use]
    pub fn name(source: &Source, id: &[u8]) -> String {
        let id = String::from_utf8_lossy(id);
        let parts: Vec<String> = source.as_str().split('/').chain([&*id]).map(part).collect();
        parts.join("/")
    }

    /// What a name is called in the store itself: below the prefix of a bucket, or below the folder.
    #[must_use]
    pub fn key(&self, name: &str) -> String {
        match self {
            Self::Bucket { prefix, .. } if !prefix.is_empty() => format!("{prefix}/{name}"),
            Self::Bucket { .. } | Self::Folder(_) => name.to_owned(),
        }
    }

    /// The URL of a name. What follows an S3 bucket is the key as it stands, as S3's own tools take it; a `file:` URL is encoded
    /// once more, as whoever reads one decodes it.
    #[must_use]
    pub fn url(&self, name: &str) -> String {
        format!("{self}/{}", if matches!(self, Self::Folder(_)) { name.replace('%', "%25") } else { name.to_owned() })
    }
}

/// One part of a name.
fn part(text: &str) -> String {
    let encoded = utf8_percent_encode(text, &KEPT).to_string();
    match encoded.as_str() {
        "." | ".." => encoded.replace('.', "%2E"),
        _ if encoded.is_empty() || encoded.len() > PART_MAX => format!("sha256-{}", hex(&Sha256::digest(text))),
        _ => encoded,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The URL that all others begin with, without a `/` at its end.
impl fmt::Display for ClaimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => {
                let path = path.to_string_lossy();
                write!(f, "file://{}", utf8_percent_encode(path.trim_end_matches('/'), &KEPT_IN_PATH))
            }
            Self::Bucket { name, prefix } if prefix.is_empty() => write!(f, "s3://{name}"),
            Self::Bucket { name, prefix } => write!(f, "s3://{name}/{prefix}"),
        }
    }
}

/// A text that is no place for payloads. It does not repeat the text, which may hold a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimStoreError {
    /// Neither `file:` nor `s3:`.
    Scheme,
    /// A folder that is not given by its absolute path.
    Folder,
    /// There is no bucket.
    NoBucket,
    /// The bucket has a name that none can have.
    Bucket,
    /// The prefix has what keys should not have.
    Prefix,
}

impl fmt::Display for ClaimStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme => f.write_str("expected file:///folder or s3://bucket/prefix"),
            Self::Folder => {
                f.write_str("expected the absolute path of a folder, in UTF-8 and without '?' and '#': file:///folder")
            }
            Self::NoBucket => f.write_str("the bucket is missing: s3://bucket/prefix"),
            Self::Bucket => f.write_str(
                "the bucket's name may have letters, digits, '.', '-' and '_'; keys and the endpoint go into AWS_ACCESS_KEY_ID, \
                 AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT",
            ),
            Self::Prefix => write!(
                f,
                "the prefix may have letters, digits, '!', '-', '_', '.', '=' and, between its parts, '/', {PREFIX_MAX} bytes \
                 at most"
            ),
        }
    }
}

impl std::error::Error for ClaimStoreError {}

impl FromStr for ClaimStore {
    type Err = ClaimStoreError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once("://") {
            Some(("file", path)) => folder(path.strip_prefix("localhost").unwrap_or(path)),
            Some(("s3", path)) => bucket(path),
            _ => Err(ClaimStoreError::Scheme),
        }
    }
}

fn folder(path: &str) -> Result<ClaimStore, ClaimStoreError> {
    if path.contains(['?', '#']) {
        return Err(ClaimStoreError::Folder);
    }
    let path = percent_decode_str(path).decode_utf8().map_err(|_| ClaimStoreError::Folder)?;
    match Path::new(&*path) {
        path if path.is_absolute() => Ok(ClaimStore::Folder(path.to_owned())),
        _ => Err(ClaimStoreError::Folder),
    }
}

fn bucket(path: &str) -> Result<ClaimStore, ClaimStoreError> {
    let (name, prefix) = path.split_once('/').unwrap_or((path, ""));
    if name.is_empty() {
        return Err(ClaimStoreError::NoBucket);
    }
    if !name.chars().all(|character| character.is_ascii_alphanumeric() || ".-_".contains(character)) {
        return Err(ClaimStoreError::Bucket);
    }
    let prefix = prefix.trim_end_matches('/');
    let is_legal = |character: char| character.is_ascii_alphanumeric() || "!-_.=".contains(character);
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.chars().all(is_legal);
    if prefix.len() > PREFIX_MAX || !(prefix.is_empty() || prefix.split('/').all(is_part)) {
        return Err(ClaimStoreError::Prefix);
    }
    Ok(ClaimStore::Bucket { name: name.to_owned(), prefix: prefix.to_owned() })
}

/// A payload that is to be put into the store.
#[derive(Clone, PartialEq, Eq)]
pub struct Object {
    /// Its name below folder or prefix.
    pub name: String,
    /// Its bytes: those that the record's value would have been.
    pub payload: Bytes,
}

/// A payload does not belong into a log, nor does an event's id.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("bytes", &self.payload.len()).finish_non_exhaustive()
    }
}

/// What a record tells of a payload in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    bytes: usize,
    sha256: [u8; 32],
}

impl Receipt {
    /// The receipt of these bytes. It takes a moment: a second for some hundred megabytes.
    #[must_use]
    pub fn of(payload: &[u8]) -> Self {
        Self { bytes: payload.len(), sha256: Sha256::digest(payload).into() }
    }

    /// How many bytes it has.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its SHA-256 in hexadecimal digits.
    #[must_use]
    pub fn sha256(&self) -> String {
        hex(&self.sha256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ClaimStore, ClaimStoreError> {
        text.parse()
    }

    #[test]
    fn a_store_is_a_folder_or_a_bucket() {
        for (text, printed) in [
            ("file:///var/claims", "file:///var/claims"),
            ("file:///var/claims/", "file:///var/claims"),
            ("file://localhost/var/my%20claims", "file:///var/my%20claims"),
            ("file:///var/my claims", "file:///var/my%20claims"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("s3://my.bucket/a/b=c/", "s3://my.bucket/a/b=c"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), printed, "{text}");
        }
        assert_eq!(parse("file:///var/my%20claims"), Ok(ClaimStore::Folder("/var/my claims".into())));
    }

    #[test]
    fn what_is_neither_is_told_and_not_repeated() {
        for (text, error) in [
            ("", ClaimStoreError::Scheme),
            ("/var/claims", ClaimStoreError::Scheme),
            ("gs://bucket", ClaimStoreError::Scheme),
            ("file://claims", ClaimStoreError::Folder),
            ("file://", ClaimStoreError::Folder),
            ("file:///a?b", ClaimStoreError::Folder),
            ("file:///%ff", ClaimStoreError::Folder),
            ("s3://", ClaimStoreError::NoBucket),
            ("s3:///prefix", ClaimStoreError::NoBucket),
            ("s3://key:hunter2@bucket", ClaimStoreError::Bucket),
            ("s3://bucket/a//b", ClaimStoreError::Prefix),
            ("s3://bucket/../b", ClaimStoreError::Prefix),
            ("s3://bucket/a%2fb", ClaimStoreError::Prefix),
            ("s3://bucket/a?b", ClaimStoreError::Prefix),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
            assert!(!error.to_string().contains("hunter2"));
        }
        assert_eq!(parse(&format!("s3://bucket/{}", "a".repeat(257))), Err(ClaimStoreError::Prefix));
    }

    #[test]
    fn a_name_is_one_part_for_the_id_whatever_it_is() {
        let name = |id: &str| ClaimStore::name(&Source::new("shop", "outboxd.outbox"), id.as_bytes());
        assert_eq!(name("b1a5-7"), "shop/outboxd.outbox/b1a5-7");
        assert_eq!(name("a/b ö~"), "shop/outboxd.outbox/a%2Fb%20%C3%B6%7E");
        assert_eq!(name(".."), "shop/outboxd.outbox/%2E%2E");
        let of_nothing = "sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(name(""), format!("shop/outboxd.outbox/{of_nothing}"));
        assert_eq!(name(&"x".repeat(PART_MAX)).len(), "shop/outboxd.outbox/".len() + PART_MAX);
        assert!(name(&"x".repeat(PART_MAX + 1)).starts_with("shop/outboxd.outbox/sha256-"));
        assert_eq!(ClaimStore::name(&Source::new("", "a.b"), b"1"), format!("{of_nothing}/a.b/1"));
    }

    #[test]
    fn a_url_names_the_key_of_a_bucket_and_decodes_to_the_path_of_a_file() {
        let bucket = parse("s3://bucket/p").unwrap();
        assert_eq!(
            (bucket.key("s/a%2Fb"), bucket.url("s/a%2Fb")),
            ("p/s/a%2Fb".into(), "s3://bucket/p/s/a%2Fb".into())
        );
        let bare = parse("s3://bucket").unwrap();
        assert_eq!((bare.key("s/1"), bare.url("s/1")), ("s/1".into(), "s3://bucket/s/1".into()));
        let folder = parse("file:///my claims").unwrap();
        assert_eq!(
            (folder.key("s/a%2Fb"), folder.url("s/a%2Fb")),
            ("s/a%2Fb".into(), "file:///my%20claims/s/a%252Fb".into())
        );
        assert_eq!(parse("file:///").unwrap().url("s/1"), "file:///s/1");
    }

    #[test]
    fn a_receipt_has_the_digest_in_hexadecimal_digits() {
        let receipt = Receipt::of(b"abc");
        assert_eq!(receipt.bytes(), 3);
        assert_eq!(receipt.sha256(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    proptest::proptest! {
        #[test]
        fn no_two_events_have_one_name(a: String, b: String) {
            let source = Source::new("shop", "t.t");
            let name = |id: &str| ClaimStore::name(&source, id.as_bytes());
            proptest::prop_assert_eq!(a == b, name(&a) == name(&b));
            proptest::prop_assert_eq!(name(&a).split('/').count(), 3);
            proptest::prop_assert!(name(&a).split('/').all(|part| !matches!(part, "" | "." | "..")));
        }
    }
}
