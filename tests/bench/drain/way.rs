//! How a client reaches PostgreSQL.

/// Over its unix socket, or over TCP on the loopback device. The server's cost of a message differs much between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Unix,
    Tcp,
}

impl Way {
    pub(crate) const ALL: [Self; 2] = [Self::Unix, Self::Tcp];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        }
    }
}
