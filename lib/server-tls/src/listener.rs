//! Connections in plain text or by TLS. The handshake is a part of the first read, so that a slow one delays no other client
//! and the time for a request's head bounds it.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_server::{Accept, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept as Handshake, TlsAcceptor};

use crate::follow::CurrentTls;

/// A listener of plain text, or of TLS.
#[derive(Debug)]
pub struct Listener {
    /// The bound socket.
    pub listener: TcpListener,
    /// The configuration of TLS, with one; plain text without.
    pub certificates: Option<Arc<CurrentTls>>,
}

impl Accept for Listener {
    type Stream = Stream;

    async fn accept(&self) -> io::Result<(Stream, Peer)> {
        let (stream, peer) = Accept::accept(&self.listener).await?;
        let state = match &self.certificates {
            None => State::Plain(stream),
            // Each handshake has the files as they are now.
            Some(certificates) => match certificates.borrow().clone() {
                None => State::Refused,
                Some(config) => State::Handshake(Box::new(TlsAcceptor::from(config).accept(stream))),
            },
        };
        Ok((Stream(state), peer))
    }
}

/// A connection.
pub struct Stream(State);

enum State {
    Plain(TcpStream),
    Handshake(Box<Handshake<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
    /// The handshake has failed.
    Refused,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.0 {
            State::Plain(_) => "plain",
            State::Handshake(_) => "handshake",
            State::Tls(_) => "TLS",
            State::Refused => "refused",
        };
        f.debug_tuple("Stream").field(&state).finish()
    }
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

impl State {
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
        forward!(ready!(self.0.poll_open(cx))?, poll_read, cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        forward!(ready!(self.0.poll_open(cx))?, poll_write, cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.0, State::Handshake(_) | State::Refused) {
            return Poll::Ready(Ok(())); // nothing was written
        }
        forward!(ready!(self.0.poll_open(cx))?, poll_flush, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.0, State::Handshake(_) | State::Refused) {
            return Poll::Ready(Ok(())); // its drop closes the socket
        }
        forward!(ready!(self.0.poll_open(cx))?, poll_shutdown, cx)
    }
}
