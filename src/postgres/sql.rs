//! Connections for ordinary SQL, through tokio-postgres.

use std::future::Future;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{Client, Config, NoTls};

use super::attempts::Attempts;
use super::connection::within;
use super::conninfo::{Conninfo, Host};
use super::error::{Error, Result};
use super::session::{FIXED_SETTINGS, FIXED_SQL_SETTINGS, ServerRole};
use super::transport::{Address, Transport};

/// Drives a connection. It must be polled for the client to work, and ends with the connection: with the reason, when the
/// server ended it.
pub type SqlConnection = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Connects to the first host that will do, each address within the `connect_timeout`.
///
/// # Errors
/// When no host will do: with what happened at each. When a host answers and does not let one in: with that.
pub async fn connect(conninfo: &Conninfo) -> Result<(Client, SqlConnection)> {
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

async fn connect_host(conninfo: &Conninfo, host: &Host, pass: usize) -> Result<(Client, SqlConnection)> {
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

async fn connect_address(
    conninfo: &Conninfo,
    host: &Host,
    address: &Address,
    pass: usize,
) -> Result<(Client, SqlConnection)> {
    let config = config(conninfo, host);
    match Transport::connect(address, conninfo).await? {
        Transport::Tcp(stream) => log_in(&config, stream, conninfo, pass).await,
        Transport::Unix(stream) => log_in(&config, stream, conninfo, pass).await,
    }
}

async fn log_in<S>(config: &Config, stream: S, conninfo: &Conninfo, pass: usize) -> Result<(Client, SqlConnection)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (client, connection) = config.connect_raw(stream, NoTls).await?;
    let target = conninfo.target_session();
    if !target.accepts(ServerRole::reported(|name| connection.parameter(name)), pass) {
        return Err(Error::wrong_server(format!("the server is not what target_session_attrs={target} wants")));
    }
    Ok((client, Box::pin(async move { connection.await.map_err(Error::from) })))
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
