//! Proving to the server who asks, and with SCRAM, that the server is the right one: bytes in, bytes out.
//!
//! <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-START-UP>

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::Message;

use super::error::{Error, Result};
use super::wire::frontend;
use crate::config::Secret;

/// How far an authentication is after a message of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The answer, if one was due, is in the buffer.
    Continues,
    /// The server lets us in.
    Done,
}

/// One authentication.
pub(crate) struct Authentication<'a> {
    user: &'a str,
    password: Option<&'a Secret>,
    scram: Scram,
}

/// Where a SCRAM exchange stands.
enum Scram {
    NotAsked,
    Running(Box<ScramSha256>),
    ServerProved,
}

impl<'a> Authentication<'a> {
    pub(crate) const fn new(user: &'a str, password: Option<&'a Secret>) -> Self {
        Self { user, password, scram: Scram::NotAsked }
    }

    /// Takes a message of the server and puts the answer into `out`.
    pub(crate) fn step(&mut self, message: &Message, out: &mut BytesMut) -> Result<Progress> {
        match message {
            Message::AuthenticationOk => return self.done(),
            Message::AuthenticationCleartextPassword => {
                let password = self.password()?.expose();
                frontend::password_message(password.as_bytes(), out).map_err(Error::io)?;
            }
            Message::AuthenticationMd5Password(body) => {
                let password = self.password()?.expose();
                let hash = md5_hash(self.user.as_bytes(), password.as_bytes(), body.salt());
                frontend::password_message(hash.as_bytes(), out).map_err(Error::io)?;
            }
            Message::AuthenticationSasl(body) => {
                let offered: Vec<_> =
                    body.mechanisms().collect().map_err(|error| Error::protocol(error.to_string()))?;
                self.begin_scram(&offered, out)?;
            }
            Message::AuthenticationSaslContinue(body) => self.answer_scram(body.data(), out)?,
            Message::AuthenticationSaslFinal(body) => self.finish_scram(body.data())?,
            other => return Err(unsupported(other)),
        }
        Ok(Progress::Continues)
    }

    /// A server that began SCRAM and then lets one in without having proved that it knows the password is an impostor.
    fn done(&self) -> Result<Progress> {
        match self.scram {
            Scram::Running(_) => Err(Error::authentication(
                "the server ended SCRAM without proving that it knows the password: it may be another server",
            )),
            Scram::NotAsked | Scram::ServerProved => Ok(Progress::Done),
        }
    }

    fn password(&self) -> Result<&'a Secret> {
        self.password.ok_or_else(|| {
            Error::authentication(format!(
                "the server asks for the password of user {:?} and none is given: set PGPASSWORD or add a line to the password file (~/.pgpass)",
                self.user
            ))
        })
    }

    fn begin_scram(&mut self, offered: &[&str], out: &mut BytesMut) -> Result<()> {
        if !offered.contains(&SCRAM_SHA_256) {
            let offered = offered.join(", ");
            return Err(Error::authentication(format!(
                "the server offers only {offered} and outboxd knows {SCRAM_SHA_256}: change the method in pg_hba.conf"
            )));
        }
        let scram = ScramSha256::new(self.password()?.expose().as_bytes(), ChannelBinding::unsupported());
        frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), out).map_err(Error::io)?;
        self.scram = Scram::Running(Box::new(scram));
        Ok(())
    }

    fn answer_scram(&mut self, data: &[u8], out: &mut BytesMut) -> Result<()> {
        let Scram::Running(scram) = &mut self.scram else {
            return Err(Error::protocol("SCRAM goes on that never began"));
        };
        scram.update(data).map_err(|error| Error::authentication(format!("SCRAM failed: {error}")))?;
        frontend::sasl_response(scram.message(), out).map_err(Error::io)
    }

    fn finish_scram(&mut self, data: &[u8]) -> Result<()> {
        let Scram::Running(scram) = &mut self.scram else {
            return Err(Error::protocol("SCRAM ends that never began"));
        };
        scram.finish(data).map_err(|error| {
            Error::authentication(format!("the server could not prove that it knows the password: {error}"))
        })?;
        self.scram = Scram::ServerProved;
        Ok(())
    }
}

fn unsupported(message: &Message) -> Error {
    let method = match message {
        Message::AuthenticationGss | Message::AuthenticationGssContinue(_) => "GSSAPI",
        Message::AuthenticationSspi => "SSPI",
        Message::AuthenticationKerberosV5 => "Kerberos 5",
        Message::AuthenticationScmCredential => "SCM credentials",
        _ => return Error::protocol("a message that does not belong into an authentication"),
    };
    Error::authentication(format!(
        "the server asks for {method}, which outboxd does not support: allow scram-sha-256 for it in pg_hba.conf"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: i32, body: &[u8]) -> Message {
        let mut bytes = BytesMut::from(&b"R"[..]);
        bytes.extend_from_slice(&i32::try_from(body.len() + 8).unwrap().to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(body);
        Message::parse(&mut bytes).unwrap().unwrap()
    }

    fn step(authentication: &mut Authentication<'_>, message: &Message) -> Result<(Progress, BytesMut)> {
        let mut out = BytesMut::new();
        authentication.step(message, &mut out).map(|progress| (progress, out))
    }

    #[test]
    fn cleartext_and_md5() {
        let secret = Secret::new("password");
        let mut authentication = Authentication::new("md5_user", Some(&secret));
        let (_, out) = step(&mut authentication, &message(3, b"")).unwrap();
        assert_eq!(&out[..], b"p\0\0\0\x0dpassword\0");
        let (progress, out) = step(&mut authentication, &message(5, &[0x2a, 0x3d, 0x8f, 0xe0])).unwrap();
        assert_eq!(&out[5..], b"md562af4dd09bbb41884907a838a3233294\0");
        assert_eq!(progress, Progress::Continues);
        assert_eq!(step(&mut authentication, &message(0, b"")).unwrap().0, Progress::Done);
    }

    #[test]
    fn a_missing_password_names_the_user_and_the_remedy() {
        for message in [message(3, b""), message(5, &[0; 4]), message(10, b"SCRAM-SHA-256\0\0")] {
            let error = step(&mut Authentication::new("me", None), &message).unwrap_err();
            assert!(error.is_authentication());
            assert!(error.to_string().contains("\"me\"") && error.to_string().contains("PGPASSWORD"), "{error}");
        }
    }

    #[test]
    fn methods_that_are_missing_are_named() {
        let secret = Secret::new("p");
        for (kind, body, name) in [(7, &b""[..], "GSSAPI"), (9, b"", "SSPI"), (10, b"OAUTHBEARER\0\0", "OAUTHBEARER")] {
            let error = step(&mut Authentication::new("u", Some(&secret)), &message(kind, body)).unwrap_err();
            assert!(error.is_authentication() && error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_server_must_finish_scram() {
        let secret = Secret::new("p");
        let mut authentication = Authentication::new("u", Some(&secret));
        let (_, out) = step(&mut authentication, &message(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")).unwrap();
        assert!(out.starts_with(b"p") && out.windows(8).any(|window| window == b"n,,n=,r="));
        assert!(step(&mut authentication, &message(0, b"")).unwrap_err().is_authentication());
        assert!(step(&mut authentication, &message(12, b"v=AAAA")).unwrap_err().is_authentication());
    }

    #[test]
    fn scram_must_begin_first() {
        for kind in [11, 12] {
            assert!(step(&mut Authentication::new("u", None), &message(kind, b"x")).is_err());
        }
    }
}
