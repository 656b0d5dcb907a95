//! Why a store did not take a payload: a kind, and words without the store's whole answer, which may be long and has keys.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};

/// The most characters of somebody else's words.
const WORDS_MAX: usize = 200;

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The store does not answer.
    Unreachable,
    /// It answers too slowly, or not at all.
    Slow,
    /// It does not let us in, or not write.
    Forbidden,
    /// There is no such bucket or folder.
    Missing,
    /// Anything else.
    Other,
}

impl Kind {
    /// What to do about it.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Unreachable => {
                "is the store up, and is AWS_ENDPOINT (or AWS_REGION) right? Its certificate must be one that the system, or \
                 SSL_CERT_FILE, trusts"
            }
            Self::Slow => "is the store overloaded, or the way to it?",
            Self::Forbidden => {
                "for a bucket see AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy (s3:PutObject); for a folder \
                 its owner and mode"
            }
            Self::Missing => "create the bucket, or name another with --claim-check-to",
            Self::Other => "see the store's own log",
        }
    }
}

/// Why a store did not take a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    kind: Kind,
    words: String,
}

impl Trouble {
    pub(super) fn too_slow(limit: Duration) -> Self {
        Self { kind: Kind::Slow, words: format!("no answer within {limit:.0?}") }
    }

    /// What kind it is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// What happened, without the remedy.
    #[must_use]
    pub fn words(&self) -> &str {
        &self.words
    }

    /// What to do about it.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        self.kind.remedy()
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.words, self.remedy())
    }
}

impl StdError for Trouble {}

impl From<object_store::Error> for Trouble {
    fn from(error: object_store::Error) -> Self {
        Self { kind: kind(&error), words: words(&error) }
    }
}

fn kind(error: &object_store::Error) -> Kind {
    use object_store::Error;
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => return Kind::Forbidden,
        Error::NotFound { .. } => return Kind::Missing,
        _ => {}
    }
    let of_cause = |cause: &(dyn StdError + 'static)| {
        let http = cause.downcast_ref::<HttpError>().map(HttpError::kind);
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        match (http, io) {
            (Some(HttpErrorKind::Timeout), _) | (_, Some(io::ErrorKind::TimedOut)) => Some(Kind::Slow),
            (Some(HttpErrorKind::Connect | HttpErrorKind::Request | HttpErrorKind::Interrupted), _) => {
                Some(Kind::Unreachable)
            }
            (_, Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)) => Some(Kind::Forbidden),
            _ => None,
        }
    };
    causes(error).find_map(of_cause).unwrap_or(Kind::Other)
}

fn causes(error: &object_store::Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    let outermost: &(dyn StdError + 'static) = error;
    std::iter::successors(Some(outermost), |cause: &&(dyn StdError + 'static)| {
        let cause: &(dyn StdError + 'static) = *cause;
        cause.source()
    })
}

/// The innermost cause says most: those around it repeat it, with the URL of the request. An answer of S3 is XML; of that its
/// code and message are enough, and what else is in it may be for nobody's eyes.
fn words(error: &object_store::Error) -> String {
    let innermost = causes(error).last().map(ToString::to_string).unwrap_or_default();
    let element = |name: &str| {
        let (_, rest) = innermost.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
    };
    let words = match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => innermost.split_once('<').map_or(innermost.as_str(), |(before, _)| before).trim().to_owned(),
    };
    words.chars().filter(|character| !character.is_control()).take(WORDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(source: impl Into<Box<dyn StdError + Send + Sync>>) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: source.into() }
    }

    #[test]
    fn the_answer_of_a_store_is_reduced_to_code_and_message() {
        let answer = "Server returned non-2xx status code: 403 Forbidden: <?xml?><Error><Code>SignatureDoesNotMatch</Code>\
            <Message>Check it.</Message><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
        let error = object_store::Error::PermissionDenied { path: "p/secret".to_owned(), source: answer.into() };
        let trouble = Trouble::from(error);
        assert_eq!((trouble.kind(), trouble.words()), (Kind::Forbidden, "SignatureDoesNotMatch: Check it."));
        let html = generic("Server returned non-2xx status code: 502 Bad Gateway: <html><h1>Bad</h1></html>");
        assert_eq!(Trouble::from(html).words(), "Server returned non-2xx status code: 502 Bad Gateway:");
        assert_eq!(Trouble::from(generic("x".repeat(1000))).words().len(), WORDS_MAX);
    }

    #[test]
    fn kinds_are_those_of_the_causes() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let http = |kind| generic(HttpError::new(kind, io::Error::from(io::ErrorKind::Other)));
        for (error, expected) in [
            (http(HttpErrorKind::Connect), Kind::Unreachable),
            (http(HttpErrorKind::Timeout), Kind::Slow),
            (generic(io::Error::from(io::ErrorKind::PermissionDenied)), Kind::Forbidden),
            (object_store::Error::NotFound { path: String::new(), source: "NoSuchBucket".into() }, Kind::Missing),
            (generic(refused), Kind::Other),
        ] {
            assert_eq!(Trouble::from(error).kind(), expected);
        }
    }
}
