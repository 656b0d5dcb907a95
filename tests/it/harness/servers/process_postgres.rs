//! What only a PostgreSQL server that runs as a process of this machine allows: work on its data folder.

use std::fs::{self, File};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::postgres::Postgres;
use super::process::give_away;
use super::session::session;
use super::wait::until;

/// A PostgreSQL server as a process, also when servers are containers by default.
pub(crate) struct ProcessPostgres {
    server: Postgres,
    folder: PathBuf,
}

/// A copy of a data folder, taken while its server was stopped or killed.
pub(crate) struct DataCopy {
    folder: PathBuf,
}

impl Deref for ProcessPostgres {
    type Target = Postgres;

    fn deref(&self) -> &Postgres {
        &self.server
    }
}

impl ProcessPostgres {
    /// Starts a server of this major version with further settings, and waits until it answers.
    pub(crate) async fn start(version: u32, settings: &[(&str, &str)]) -> Self {
        Self::start_in(session().new_folder(&format!("postgres-{version}")), version, settings).await
    }

    /// Starts another server, on a port of its own, on a copy of a data folder of this major version.
    pub(crate) async fn start_on(copy: &DataCopy, version: u32, settings: &[(&str, &str)]) -> Self {
        let folder = session().new_folder(&format!("postgres-{version}"));
        copy_folder(&copy.folder, &folder.join("data"));
        Self::start_in(folder, version, settings).await
    }

    /// Starts an asynchronous physical standby of this running server from a copy of its data, and waits until it streams. The
    /// copy's replication slots stay, as if they had been synchronised when it was taken.
    pub(crate) async fn start_standby(&self, copy: &DataCopy, settings: &[(&str, &str)]) -> Self {
        let folder = session().new_folder(&format!("standby-{}", self.version()));
        copy_folder(&copy.folder, &folder.join("data"));
        let signal = folder.join("data/standby.signal");
        File::create(&signal).unwrap();
        give_away(&signal);
        let primary = self.conninfo("postgres");
        // A standby that finds its primary dead asks again after 5 s by default, and a promotion waits for that.
        let own = [("primary_conninfo", primary.as_str()), ("wal_retrieve_retry_interval", "100ms")];
        let settings: Vec<_> = own.into_iter().chain(settings.iter().copied()).collect();
        let standby = Self::start_in(folder, self.version(), &settings).await;
        let sql = standby.sql("postgres").await;
        until("the standby to stream", Duration::from_secs(30), || async {
            let row = sql.query_opt("select status from pg_stat_wal_receiver", &[]).await.unwrap();
            let status = row.map(|row| row.get::<_, String>(0));
            if status.as_deref() == Some("streaming") { Ok(()) } else { Err(format!("its receiver is {status:?}")) }
        })
        .await;
        standby
    }

    async fn start_in(folder: PathBuf, version: u32, settings: &[(&str, &str)]) -> Self {
        let server = Postgres::start_process(version, settings, folder.clone()).await;
        Self { server, folder }
    }

    /// The data folder.
    pub(crate) fn data_folder(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// A connection string of the superuser over the unix socket, which trusts everybody.
    pub(crate) fn socket_conninfo(&self, database: &str) -> String {
        format!("host={} port={} user=postgres dbname={database}", self.folder.display(), self.port())
    }

    /// Copies the data folder of the server, which must not run.
    pub(crate) async fn copy_data(&self) -> DataCopy {
        assert!(!self.is_running().await, "only the data of a stopped server can be copied");
        let folder = session().new_folder("copy").join("data");
        copy_folder(&self.data_folder(), &folder);
        DataCopy { folder }
    }

    /// Puts an older copy in the place of the data of the server, which must not run: it will come back shorter.
    pub(crate) async fn restore_data(&self, copy: &DataCopy) {
        assert!(!self.is_running().await, "only the data of a stopped server can be replaced");
        fs::remove_dir_all(self.data_folder()).unwrap();
        copy_folder(&copy.folder, &self.data_folder());
    }

    /// Ends the recovery of a standby; returns when it is a primary on a new timeline.
    pub(crate) async fn promote(&self) {
        let promoted: bool = self.sql("postgres").await.query_one("select pg_promote()", &[]).await.unwrap().get(0);
        assert!(promoted, "the standby was not promoted in time");
    }
}

/// Copies a folder with owners and modes, without the mark of a server that was killed.
fn copy_folder(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cannot copy {} to {}", from.display(), to.display());
    let _ = fs::remove_file(to.join("postmaster.pid"));
}
