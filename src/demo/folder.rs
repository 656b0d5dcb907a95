//! The demo's folder in the system's temporary one, which is gone after the demo, or at the latest after the next one.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

/// What the names of all folders begin with; the process id and a random number follow.
const PREFIX: &str = "outboxd-demo-";

/// Locked for as long as the demo that owns the folder lives, whatever it dies of.
const LOCK: &str = "lock";

/// Marks a folder that was kept on purpose.
const KEPT: &str = "kept";

/// How long processes of a demo that was killed may go on writing into its folder.
const PATIENCE: Duration = Duration::from_secs(10);

/// The folder of a demo that runs.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Makes one. Others may enter it, because PostgreSQL may have to run as another user, and cannot list it.
    pub(super) fn create() -> io::Result<Self> {
        let name = format!("{PREFIX}{}-{:08x}", std::process::id(), fastrand::u32(..));
        // PostgreSQL runs in another folder.
        let path = std::path::absolute(std::env::temp_dir())?.join(name);
        DirBuilder::new().mode(0o711).create(&path)?;
        // Under its name it appears locked, so nobody takes it for one that was left.
        let unlocked = path.join("lock.new");
        let lock = File::create_new(&unlocked)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(&unlocked, path.join(LOCK))?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A name for what belongs to this demo elsewhere, as an identifier.
    pub(super) fn identifier(&self) -> String {
        identifier(&self.path)
    }

    /// Removes it with all that is in it.
    pub(super) async fn remove(self) -> io::Result<()> {
        remove(&self.path).await
    }

    /// Leaves it for its owner to look at.
    pub(super) fn keep(self) -> io::Result<PathBuf> {
        File::create(self.path.join(KEPT))?;
        Ok(self.path)
    }
}

/// The folders of this user's demos that were killed.
pub(super) fn left() -> io::Result<Vec<PathBuf>> {
    let folders = fs::read_dir(std::env::temp_dir())?.filter_map(Result::ok).map(|entry| entry.path());
    // A folder may vanish while it is looked at: another demo ends, or sweeps as well.
    Ok(folders.filter(|path| is_left(path).unwrap_or(false)).collect())
}

/// Removes them.
pub(super) async fn sweep(left: &[PathBuf]) -> io::Result<()> {
    for path in left {
        remove(path).await?;
    }
    Ok(())
}

fn is_left(path: &Path) -> io::Result<bool> {
    let Some(pid) = pid(path) else { return Ok(false) };
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() || path.join(KEPT).exists() {
        return Ok(false);
    }
    match File::open(path.join(LOCK)) {
        Ok(lock) => Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()),
        // It died, or is alive, between the first two steps.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(!Path::new("/proc").join(pid.to_string()).exists()),
        Err(error) => Err(error),
    }
}

fn pid(path: &Path) -> Option<u32> {
    let (pid, number) = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split_once('-')?;
    u32::from_str_radix(number, 16).ok()?;
    pid.parse().ok()
}

/// A name for what belongs to the demo of this folder elsewhere, as an identifier.
pub(super) fn identifier(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().replace('-', "_")
}

/// A server that was told to end may still write; so this tries for a while.
async fn remove(path: &Path) -> io::Result<()> {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        match fs::remove_dir_all(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => return Ok(()),
            Err(error) if tokio::time::Instant::now() >= until => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_is_left_once_its_owner_is_gone_and_unless_it_is_kept() {
        let folder = Folder::create().unwrap();
        let path = folder.path().to_owned();
        assert!(folder.identifier().starts_with("outboxd_demo_"));
        assert!(!is_left(&path).unwrap());
        // What the kernel does when the owner is killed.
        drop(folder);
        assert!(is_left(&path).unwrap());
        File::create(path.join(KEPT)).unwrap();
        assert!(!is_left(&path).unwrap());
        remove(&path).await.unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn other_names_are_none_of_its_business() {
        for name in ["outboxd-demo", "outboxd-demo-1", "outboxd-demo-x-1", "outboxd-demo-1-notes", "other-1-2"] {
            assert_eq!(pid(Path::new(name)), None, "{name}");
        }
        assert_eq!(pid(Path::new("/tmp/outboxd-demo-12-0a0b")), Some(12));
    }
}
