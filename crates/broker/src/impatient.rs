//! A connection whose other end has to take what it is sent within a time. Over TCP the kernel sees to that
//! ([`keeptime_linux::tcp`]); a Unix socket waits for ever. Who takes a little now and then is hung up on.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

/// Who takes nothing of what they are sent for so long is gone.
pub(crate) const TAKEN_WITHIN: Duration = Duration::from_secs(30);

/// Has a connection ended whose other end takes too long for an answer. Clones are of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct HangUp(Arc<Notify>);

impl HangUp {
    /// Ends it, if it is still there.
    pub fn now(&self) {
        self.0.notify_one();
    }

    /// Until it is to be ended.
    pub async fn is_due(&self) {
        self.0.notified().await;
    }
}

/// A stream that fails when something is to be written and nothing of it was taken for so long.
#[derive(Debug)]
pub(crate) struct Impatient<S> {
    stream: S,
    patience: Duration,
    /// The end of the patience, while nothing is taken.
    end: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, end: None }
    }

    /// What comes of a try to write.
    fn outcome(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.end = None;
            return written;
        }
        let patience = self.patience;
        let end = self.end.get_or_insert_with(|| Box::pin(sleep(patience)));
        end.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.outcome(written, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        this.outcome(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(60);

    // Method: more than a socket holds, to one who reads it and to one who does not.
    #[tokio::test]
    async fn who_reads_is_waited_for_and_who_does_not_is_let_go() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let bytes = vec![7; 8 << 20];
        let reading = tokio::spawn(async move {
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.map(|_| read)
        });
        let mut patient = Impatient::new(near, SOON);
        patient.write_all(&bytes).await.unwrap();
        drop(patient);
        assert!(reading.await.unwrap().unwrap() == bytes);

        let (near, _far) = UnixStream::pair().unwrap();
        let mut impatient = Impatient::new(near, Duration::from_millis(20));
        let ended = timeout(SOON, impatient.write_all(&bytes)).await.unwrap();
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
