//! Connections in plain text or by TLS. The handshake is a part of the first read, so that a slow one delays no other client
//! and the time for a request's head bounds it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_server::{Accept, Peer};
use hubble::CurrentTls;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept as Handshake, TlsAcceptor};

/// The listener of metrics.
pub(crate) struct Listener {
    pub(crate) listener: TcpListener,
    /// The configuration of TLS, with one; plain text without.
    pub(crate) certificates: Option<Arc<CurrentTls>>,
}

impl Accept for Listener {
    type Stream = Stream;

    async fn accept(&self) -> io::Result<(Stream, Peer)> {
        let (stream, peer) = Accept::accept(&self.listener).await?;
        let Some(certificates) = &self.certificates else { return Ok((Stream::Plain(stream), peer)) };
        // Each handshake has the files as they are now.
        let config = certificates.borrow().clone();
        let stream = config.map_or(Stream::Refused, |config| {
            Stream::Handshake(Box::new(TlsAcceptor::from(config).accept(stream)))
        });
        Ok((stream, peer))
    }
}

/// A connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Handshake(Box<Handshake<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
    /// The handshake has failed.
    Refused,
}

/// A connection with data.
enum Open<'a> {
    Plain(&'a mut TcpStream),
    Tls(&'a mut TlsStream<TcpStream>),
}

/// Calls a method of the connection behind the handshake.
macro_rules! forward {
    ($open:expr, $method:ident, $($argument:expr),+) => {
        match $open {
            Open::Plain(stream) => Pin::new(stream).$method($($argument),+),
            Open::Tls(stream) => Pin::new(stream).$method($($argument),+),
        }
    };
}

impl Stream {
    /// Completes the handshake.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Open<'_>>> {
        if let Self::Handshake(handshake) = self {
            let result = ready!(Pin::new(&mut **handshake).poll(cx));
            // A handshake that has ended must not be polled again.
            *self = Self::Refused;
            *self = Self::Tls(Box::new(result?));
        }
        Poll::Ready(match self {
            Self::Plain(stream) => Ok(Open::Plain(stream)),
            Self::Tls(stream) => Ok(Open::Tls(stream)),
            Self::Handshake(_) | Self::Refused => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        forward!(ready!(self.poll_open(cx))?, poll_read, cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        forward!(ready!(self.poll_open(cx))?, poll_write, cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(*self, Self::Handshake(_) | Self::Refused) {
            return Poll::Ready(Ok(())); // nothing was written
        }
        forward!(ready!(self.poll_open(cx))?, poll_flush, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(*self, Self::Handshake(_) | Self::Refused) {
            return Poll::Ready(Ok(())); // its drop closes the socket
        }
        forward!(ready!(self.poll_open(cx))?, poll_shutdown, cx)
    }
}
