//! The socket to a server, whichever its kind.
//!
//! Reads and writes never wait; waiting is a step of its own. So the reader decides when and how much to read, and an
//! encrypted kind fits in later: it has to say "ready" while it holds decrypted bytes that nobody has read.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream, lookup_host};

use super::conninfo::{Conninfo, Endpoint, Host};
use super::error::{Error, Result};
use super::gather::Naps;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The addresses behind an endpoint: where one connects to.
pub(crate) enum Address {
    Tcp(std::net::SocketAddr),
    Unix(std::path::PathBuf),
}

impl Address {
    /// Looks up a host.
    pub(crate) async fn of(host: &Host) -> Result<Vec<Self>> {
        match host.endpoint() {
            Endpoint::Socket(folder) => Ok(vec![Self::Unix(host.socket_path(folder))]),
            Endpoint::Address(address) => Ok(vec![Self::Tcp((*address, host.port()).into())]),
            Endpoint::Name(name) => {
                let found = lookup_host((name.as_str(), host.port())).await.map_err(Error::io)?;
                let addresses: Vec<_> = found.map(Self::Tcp).collect();
                if addresses.is_empty() {
                    return Err(Error::io(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
                }
                Ok(addresses)
            }
        }
    }
}

impl Transport {
    /// Connects, with the socket options of `conninfo`.
    pub(crate) async fn connect(address: &Address, conninfo: &Conninfo) -> Result<Self> {
        match address {
            Address::Unix(path) => UnixStream::connect(path).await.map(Self::Unix).map_err(Error::io),
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(Error::io)?;
                set_options(&stream, conninfo).map_err(Error::io)?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    /// How long it is good to let bytes gather before they are read.
    pub(crate) const fn naps(&self) -> Naps {
        match self {
            Self::Tcp(_) => Naps::TCP,
            Self::Unix(_) => Naps::LOCAL,
        }
    }

    /// Waits until there is something to do, or the peer is gone.
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await,
            Self::Unix(stream) => stream.ready(interest).await,
        }
    }

    /// Reads once, as much as there is and the buffer has room for.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing; zero bytes are the end.
    pub(crate) fn try_read(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buf),
            Self::Unix(stream) => stream.try_read_buf(buf),
        }
    }

    /// Writes what the socket takes, and removes it from `buf`.
    ///
    /// # Errors
    /// `WouldBlock` when the socket is full and something is left.
    pub(crate) fn try_write(&mut self, buf: &mut BytesMut) -> io::Result<()> {
        while !buf.is_empty() {
            let written = match self {
                Self::Tcp(stream) => stream.try_write(buf)?,
                Self::Unix(stream) => stream.try_write(buf)?,
            };
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            buf.advance(written);
        }
        Ok(())
    }

    /// Whether the peer has closed or reset the connection, without reading what it may have sent before.
    ///
    /// It does not ask the operating system: the event has reached the runtime by itself, once that has polled.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        let ready = pin!(self.ready(Interest::READABLE | Interest::ERROR));
        match ready.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(ready)) => ready.is_read_closed() || ready.is_error(),
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        }
    }
}

fn set_options(stream: &TcpStream, conninfo: &Conninfo) -> io::Result<()> {
    // Status updates are small and must not wait for each other.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    if let Some(keepalives) = conninfo.keepalives() {
        let mut keepalive = TcpKeepalive::new();
        if let Some(idle) = keepalives.idle {
            keepalive = keepalive.with_time(idle);
        }
        if let Some(interval) = keepalives.interval {
            keepalive = keepalive.with_interval(interval);
        }
        if let Some(count) = keepalives.count {
            keepalive = keepalive.with_retries(count);
        }
        socket.set_tcp_keepalive(&keepalive)?;
    }
    // Only Linux has it, and libpq ignores it elsewhere too.
    #[cfg(target_os = "linux")]
    if let Some(timeout) = conninfo.tcp_user_timeout() {
        socket.set_tcp_user_timeout(Some(timeout))?;
    }
    Ok(())
}
