//! Connections for ordinary SQL, through tokio-postgres.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};

use super::attempts::Attempts;
use super::connection::within;
use super::conninfo::{Conninfo, Host};
use super::error::{Error, Result};
use super::session::{FIXED_SETTINGS, FIXED_SQL_SETTINGS, ServerRole};
use super::transport::{Address, Transport};

/// Drives a connection. It must be polled for the client to work, and ends with the connection: with the reason, when the
/// server ended it.
pub type SqlConnection = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// From here on a session's commits are durable, whatever the role's default is: what is confirmed to the server afterwards must
/// not be lost by a crash.
pub const DURABLE: &str = "select pg_catalog.set_config('synchronous_commit', 'on', false) \
    where pg_catalog.current_setting('synchronous_commit') in ('off', 'local')";

/// Connects to the first host that will do, each address within the `connect_timeout`.
///
/// # Errors
/// When no host will do: with what happened at each. When a host answers and does not let one in: with that.
pub async fn connect(conninfo: &Conninfo) -> Result<(Client, SqlConnection)> {
    let (client, connection, _) = connect_listening(conninfo).await?;
    Ok((client, connection))
}

/// Connects; what notifications come (`LISTEN`) is told.
///
/// # Errors
/// As [`connect`].
pub async fn connect_listening(conninfo: &Conninfo) -> Result<(Client, SqlConnection, Arc<Notify>)> {
    let mut attempts = Attempts::new(conninfo);
    while let Some((host, _, pass)) = attempts.next() {
        match connect_host(conninfo, host, pass).await {
            Ok(connected) => return Ok(connected),
            Err(error) => attempts.failed(host, error)?,
        }
    }
    Err(attempts.all_failed())
}

/// Connects, and drives the connection on a task of its own.
///
/// # Errors
/// As [`connect`].
pub async fn connect_and_spawn(conninfo: &Conninfo) -> Result<Client> {
    let (client, connection) = connect(conninfo).await?;
    tokio::spawn(connection);
    Ok(client)
}

type Connected = (Client, SqlConnection, Arc<Notify>);

async fn connect_host(conninfo: &Conninfo, host: &Host, pass: usize) -> Result<Connected> {
    let limit = conninfo.connect_timeout();
    let addresses = within(limit, Address::of(host)).await?;
    let mut outcome = Err(Error::closed());
    for address in &addresses {
        outcome = within(limit, connect_address(conninfo, host, address, pass)).await;
        // Another address of the same host is no better at passwords.
        if !outcome.as_ref().is_err_and(Error::is_connection_lost) {
            break;
        }
    }
    outcome
}

async fn connect_address(conninfo: &Conninfo, host: &Host, address: &Address, pass: usize) -> Result<Connected> {
    let config = config(conninfo, host);
    match Transport::connect(address, conninfo).await? {
        Transport::Tcp(stream) => log_in(&config, stream, conninfo, pass).await,
        Transport::Unix(stream) => log_in(&config, stream, conninfo, pass).await,
    }
}

async fn log_in<S>(config: &Config, stream: S, conninfo: &Conninfo, pass: usize) -> Result<Connected>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (client, connection) = config.connect_raw(stream, NoTls).await?;
    let target = conninfo.target_session();
    if !target.accepts(ServerRole::reported(|name| connection.parameter(name)), pass) {
        return Err(Error::wrong_server(format!("the server is not what target_session_attrs={target} wants")));
    }
    let heard = Arc::<Notify>::default();
    Ok((client, Box::pin(drive(connection, heard.clone())), heard))
}

/// Drives a connection to its end.
async fn drive<S>(mut connection: Connection<S, NoTlsStream>, heard: Arc<Notify>) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(_))) => heard.notify_one(),
            Some(Ok(AsyncMessage::Notice(notice))) => tracing::debug!("the server says: {}", notice.message()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
            None => return Ok(()),
        }
    }
}

fn config(conninfo: &Conninfo, host: &Host) -> Config {
    let mut config = Config::new();
    config.user(conninfo.user()).dbname(conninfo.dbname()).application_name(conninfo.application_name());
    if let Some(password) = host.password() {
        config.password(password.expose());
    }
    // Later ones win, so a user's options cannot change what the texts of the server mean.
    let fixed = FIXED_SETTINGS.into_iter().chain(FIXED_SQL_SETTINGS).map(|(name, value)| format!("-c {name}={value}"));
    let given = Some(conninfo.options().to_owned()).filter(|options| !options.is_empty());
    config.options(given.into_iter().chain(fixed).collect::<Vec<_>>().join(" "));
    config
}
