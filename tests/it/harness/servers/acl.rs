//! Access control lists of a broker, by Kafka's own protocol: the Rust client has no calls for them.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// `CreateAcls` and `DeleteAcls`, version 1: <https://kafka.apache.org/protocol>.
const CREATE_ACLS: i16 = 30;
const DELETE_ACLS: i16 = 31;
const VERSION: i16 = 1;

/// Codes of the protocol.
const TOPIC: u8 = 2;
const LITERAL: u8 = 3;
const ALL: u8 = 2;
const WRITE: u8 = 4;
const DENY: u8 = 2;
const ALLOW: u8 = 3;

/// Everything about the topic is allowed to everybody, but not to write to it.
pub(crate) async fn forbid_writing(bootstrap: &str, topic: &str) {
    let entry = |operation: u8, permission: u8| {
        let mut entry = vec![TOPIC];
        string(&mut entry, topic);
        entry.push(LITERAL);
        string(&mut entry, "User:ANONYMOUS");
        string(&mut entry, "*");
        entry.extend([operation, permission]);
        entry
    };
    ask(bootstrap, CREATE_ACLS, &[entry(ALL, ALLOW), entry(WRITE, DENY)]).await;
}

/// Writing is allowed again.
pub(crate) async fn allow_writing(bootstrap: &str, topic: &str) {
    let mut filter = vec![TOPIC];
    string(&mut filter, topic);
    filter.push(LITERAL);
    // Any principal, any host.
    filter.extend([0xFF; 4]);
    filter.extend([WRITE, DENY]);
    ask(bootstrap, DELETE_ACLS, &[filter]).await;
}

fn string(to: &mut Vec<u8>, text: &str) {
    to.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
    to.extend(text.as_bytes());
}

/// Sends one request; its first result must have no error.
async fn ask(bootstrap: &str, api: i16, entries: &[Vec<u8>]) {
    let mut request = Vec::new();
    request.extend(api.to_be_bytes());
    request.extend(VERSION.to_be_bytes());
    request.extend(1i32.to_be_bytes());
    string(&mut request, "outboxd-tests");
    request.extend(i32::try_from(entries.len()).unwrap().to_be_bytes());
    entries.iter().for_each(|entry| request.extend(entry));
    let mut socket = TcpStream::connect(bootstrap).await.unwrap();
    socket.write_all(&i32::try_from(request.len()).unwrap().to_be_bytes()).await.unwrap();
    socket.write_all(&request).await.unwrap();
    let length = socket.read_i32().await.unwrap();
    let mut response = vec![0; usize::try_from(length).unwrap()];
    socket.read_exact(&mut response).await.unwrap();
    // Correlation id, throttle time, how many results, then the first one's error code.
    let code = i16::from_be_bytes([response[12], response[13]]);
    assert_eq!(code, 0, "the broker refuses the access control list: {response:?}");
}
