//! What libpq takes from around the program.

use std::io;
use std::path::{Path, PathBuf};

/// The environment, the user and the files that a connection string is completed from.
///
/// A trait, so that parsing is a pure function that tests can give any surroundings.
pub trait Surroundings {
    /// An environment variable; `None` also when it is not UTF-8.
    fn variable(&self, name: &str) -> Option<String>;

    /// The environment variable is set and is not UTF-8.
    fn is_garbled(&self, _name: &str) -> bool {
        false
    }

    /// The name of the operating system's user.
    fn user(&self) -> Option<String>;

    /// The home folder.
    fn home(&self) -> Option<PathBuf>;

    /// The folder of the local server's socket, which is the host when none is given.
    fn socket_folder(&self) -> PathBuf;

    /// A small file; `None` when there is none.
    ///
    /// # Errors
    /// When there is one and it cannot be read, or it is not UTF-8.
    fn file(&self, path: &Path) -> io::Result<Option<FileContents>>;
}

/// A file as [`Surroundings`] tell it.
#[derive(Clone, PartialEq, Eq)]
pub struct FileContents {
    /// The text.
    pub text: String,
    /// Whether it is an ordinary file: no pipe, no folder.
    pub is_regular: bool,
    /// Whether group or others may do anything with it.
    pub open_to_others: bool,
}

/// The surroundings of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process;

impl Surroundings for Process {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn is_garbled(&self, name: &str) -> bool {
        std::env::var_os(name).is_some_and(|value| value.to_str().is_none())
    }

    fn user(&self) -> Option<String> {
        whoami::username().ok()
    }

    fn home(&self) -> Option<PathBuf> {
        std::env::home_dir().filter(|path| !path.as_os_str().is_empty())
    }

    // libpq has this folder compiled in: Debian's and Red Hat's is the first, PostgreSQL's own is the second.
    fn socket_folder(&self) -> PathBuf {
        let distribution = Path::new("/var/run/postgresql");
        if distribution.is_dir() { distribution.to_owned() } else { PathBuf::from("/tmp") }
    }

    fn file(&self, path: &Path) -> io::Result<Option<FileContents>> {
        use std::os::unix::fs::MetadataExt;
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // A pipe would block, and its text is of no use to anybody who ignores it for being one.
        let is_regular = metadata.is_file();
        let text = if is_regular { std::fs::read_to_string(path)? } else { String::new() };
        Ok(Some(FileContents { text, is_regular, open_to_others: metadata.mode() & 0o077 != 0 }))
    }
}
