//! A server that speaks S3.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::machine::{Machine as _, Recipe};
use super::process::Process;
use super::session::{free_port, session};
use super::wait::until;

/// The server has no keys of its own, and believes everyone who names some.
const AUTHORIZATION: &str =
    "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// A moto, always a process. It keeps its port over all its lives; what is in it ends with each.
pub(crate) struct Moto {
    machine: Process,
    port: u16,
}

impl Moto {
    /// Starts a server with a bucket in it.
    pub(crate) async fn start(bucket: &str) -> Self {
        let port = free_port();
        let arguments = ["-H", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned);
        let recipe = Recipe {
            image: ("", String::new()),
            package: ("moto".to_owned(), "run"),
            variables: vec![],
            arguments: arguments.to_vec(),
            port,
        };
        let moto = Self { machine: Process::boot(recipe, session().new_folder("moto")), port };
        moto.ready().await;
        moto.create_bucket(bucket).await;
        moto
    }

    /// Where clients find it.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Kills the server, and with it all that is in it.
    pub(crate) async fn kill(&self) {
        self.machine.kill().await;
    }

    /// Starts the killed server, with nothing in it.
    pub(crate) async fn start_again(&self) {
        self.machine.start().await;
        self.ready().await;
    }

    pub(crate) async fn create_bucket(&self, name: &str) {
        let (status, body) = self.ask("PUT", &format!("/{name}")).await.unwrap();
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    }

    /// An object's bytes, by bucket and key as a URL has them; `None` where there is none.
    pub(crate) async fn object(&self, path: &str) -> Option<Vec<u8>> {
        let (status, body) = self.ask("GET", &format!("/{path}")).await.unwrap();
        (status == 200).then_some(body)
    }

    /// The keys in a bucket, as XML.
    pub(crate) async fn listing(&self, bucket: &str) -> String {
        String::from_utf8(self.ask("GET", &format!("/{bucket}")).await.unwrap().1).unwrap()
    }

    async fn ready(&self) {
        until("moto to answer", Duration::from_secs(60), || async { self.ask("GET", "/").await.map(drop) }).await;
    }

    /// The status and the body of an answer.
    async fn ask(&self, method: &str, path: &str) -> std::io::Result<(u16, Vec<u8>)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nAuthorization: {AUTHORIZATION}\r\nContent-Length: 0\r\n\r\n",
            self.port
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let status = String::from_utf8_lossy(&answer[..end]).split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, answer[end + 4..].to_vec()))
    }
}
