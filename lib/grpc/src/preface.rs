//! A bound on the time until a client begins with HTTP/2: before that, no ping detects that it is gone or silent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The length of what each client sends first (RFC 9113, 3.4).
const PREFACE: usize = 24;

/// The longest time until it is there.
const LIMIT: Duration = Duration::from_secs(10);

/// A stream whose reads fail if the preface takes too long.
pub(crate) struct Prefaced<S> {
    stream: S,
    /// Bytes of the preface that are not read yet.
    missing: usize,
    limit: Pin<Box<Sleep>>,
}

impl<S> Prefaced<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, missing: PREFACE, limit: Box::pin(sleep(LIMIT)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefaced<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.missing > 0 && this.limit.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.missing = this.missing.saturating_sub(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefaced<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_the_preface_has_a_limit() {
        for (length, is_late) in [(PREFACE - 1, true), (PREFACE, false)] {
            let (mut client, server) = duplex(64);
            let (mut server, mut buffer) = (Prefaced::new(server), [0; 64]);
            client.write_all(&[b'x'; PREFACE][..length]).await.unwrap();
            assert_eq!(server.read(&mut buffer).await.unwrap(), length);
            let next = timeout(10 * LIMIT, server.read(&mut buffer)).await;
            let error = next.ok().map(|read| read.unwrap_err().kind());
            assert_eq!(error, is_late.then_some(io::ErrorKind::TimedOut));
        }
    }
}
