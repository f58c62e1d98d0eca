//! The TCP listener: connections in plain text or by TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use grpc::ACCEPT_RETRY;
use hive::JobCx;
use server_tls::CurrentTls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::listen::Listen;
use crate::server::{Services, server};

/// The longest time of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The longest time and the number of bytes for which a refused client is read.
const LINGER: Duration = Duration::from_secs(1);
const MAX_IGNORED: u64 = 16 << 10;

/// Serves TCP until the job is cancelled; an error if the address cannot be bound. With TLS it is bound once there are
/// certificates.
pub(crate) async fn serve(
    listen: Listen,
    certificates: Arc<CurrentTls>,
    services: Services,
    cx: JobCx,
) -> anyhow::Result<()> {
    if listen.tls.is_some() {
        cx.health.ok("Waits for certificates");
        let mut current = certificates.subscribe();
        // The sender is an argument: waiting does not fail.
        if cx.token().run_until_cancelled(current.wait_for(Option::is_some)).await.is_none() {
            return Ok(());
        }
    }
    let listener = bind(&listen).await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, tls = listen.tls.is_some(), "Hubble is served on TCP");
    cx.health.ok(format!("Serving {address}"));
    let server = server(services, &cx);
    while let Some(accepted) = cx.token().run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok(_) if !server.has_capacity() => {}
            Ok((stream, _)) => {
                // Each handshake has the files as they are now.
                let config = listen.tls.is_some().then(|| certificates.borrow().clone()).flatten();
                let connection = stream.set_nodelay(true).map(|()| stream);
                match config {
                    None => server.serve(async { connection.ok() }),
                    Some(config) => {
                        let acceptor = TlsAcceptor::from(config);
                        server.serve(async move { handshake(acceptor, connection.ok()?).await });
                    }
                }
            }
            Err(error) => {
                cx.health.degraded("Cannot accept connections on the address of Hubble", &error);
                sleep(ACCEPT_RETRY).await;
                cx.health.ok(format!("Serving {address}"));
            }
        }
    }
    drop(listener);
    server.drain().await;
    Ok(())
}

async fn bind(listen: &Listen) -> anyhow::Result<TcpListener> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in listen.addresses() {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    let addresses: Vec<String> = listen.addresses().iter().map(ToString::to_string).collect();
    Err(anyhow::Error::new(failure)
        .context(format!("hubble-listen-address: cannot bind {}", addresses.join(", "))))
}

/// Returns the stream behind the handshake; `None` if the client is refused or too slow.
async fn handshake(acceptor: TlsAcceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    match timeout(HANDSHAKE, acceptor.accept(stream).into_fallible()).await.ok()? {
        Ok(stream) => Some(stream),
        Err((error, stream)) => {
            tracing::debug!(%error, "Hubble client refused: TLS");
            drop(timeout(LINGER, refuse(stream)).await);
            None
        }
    }
}

/// Reads what the client sends until it closes the connection: closing a socket with unread bytes resets it, and the
/// client loses the alert.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MAX_IGNORED), &mut tokio::io::sink()).await?;
    Ok(())
}
