//! From a connection to one that proves who is there: within a time, and not without being told why
//! not.

use super::name;
use crate::wire::Problem;
use keeptime_linux::tcp::end_when_silent;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// The handshake takes two messages each way; a slow network and a machine that is busy, seconds.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// A peer that acknowledges nothing for so long, or does not read what it asked for, is gone.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// How long, and for how many bytes, a peer is listened to that is not taken, so that it hears why.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 64 << 10;
/// What every connection with TLS begins with: the type of a record with a handshake.
const HANDSHAKE_RECORD: u8 = 22;

/// The connection behind its handshake; nothing if there was none in time.
pub(super) async fn secure(
    stream: TcpStream,
    config: Arc<ServerConfig>,
) -> Option<TlsStream<TcpStream>> {
    let prepared =
        stream.set_nodelay(true).and_then(|()| Ok(end_when_silent(&stream, SILENT_MAX)?));
    prepared.ok()?;
    let who = name(&stream);
    let ended = match timeout(HANDSHAKE_WITHIN, shake(stream, config)).await {
        Ok(Ok(secured)) => return Some(secured),
        Ok(Err(ended)) => ended,
        Err(_) => {
            tracing::debug!("a connection from {who} said nothing in time");
            return None;
        }
    };
    if is_about_certificates(&ended.why) {
        tracing::info!("a connection from {who} is not taken: {}", ended.why);
    } else {
        tracing::debug!("a connection from {who} is not taken: {}", ended.why);
    }
    if let Some(stream) = ended.stream {
        linger(stream).await;
    }
    None
}

/// What an operator may have to look after; everything else is noise that anybody can make.
fn is_about_certificates(why: &io::Error) -> bool {
    let cause = why.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

/// Why there is no handshake, and the connection to tell it on.
struct Ended {
    why: io::Error,
    stream: Option<TcpStream>,
}

async fn shake(
    stream: TcpStream,
    config: Arc<ServerConfig>,
) -> Result<TlsStream<TcpStream>, Ended> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(0) => return Err(Ended { why: io::ErrorKind::UnexpectedEof.into(), stream: None }),
        Ok(_) if first[0] == HANDSHAKE_RECORD => {}
        Ok(_) => {
            let mut stream = stream;
            let said = stream.write_all(&plain_answer()).await;
            let why = said.err().unwrap_or_else(|| io::Error::other("it does not speak TLS"));
            return Err(Ended { why, stream: Some(stream) });
        }
        Err(why) => return Err(Ended { why, stream: None }),
    }
    let accepted = TlsAcceptor::from(config).accept(stream).into_fallible().await;
    // It was told by an alert.
    accepted.map_err(|(why, stream)| Ended { why, stream: Some(stream) })
}

/// For whoever asks without TLS.
fn plain_answer() -> Vec<u8> {
    let problem = Problem::new(400, "no TLS", "this port speaks TLS only: ask https://".to_owned());
    // Strings and numbers.
    let body = serde_json::to_string(&problem).unwrap_or_default();
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Ends a connection whose other end is to hear what was said last: closing while something is unread resets it, and
/// that may be lost.
pub(crate) async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let end = async {
        stream.shutdown().await?;
        let mut rest = (&mut stream).take(LINGER_BYTES_MAX);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = timeout(LINGER, end).await;
}
