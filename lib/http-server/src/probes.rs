//! A server of small answers on a TCP port, as a job: probes of nodes, health checks of load balancers.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hive::{Backoff, JobCx};
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::bounds::Bounds;
use crate::serve::{Pool, serve_in};

/// The maximum number of connections of all listeners of a pool together.
const CONNECTIONS: usize = 256;

/// The timeout for the head of a request, and for a connection without one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The size of a connection's read buffer, and of its write buffer, in bytes.
const BUFFER: usize = 8192;

/// The length of the kernel's queue of connections that are not accepted yet. With the 128 of the standard library, a burst of
/// connections makes the kernel drop those of probes, which are repeated after a second.
const BACKLOG: i32 = 1024;

/// The backoff for a port that another program uses, and for an address that is not there yet.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Listens on a port at an address, in the network namespace of the thread. The unspecified address of IPv6 stands for all
/// addresses of both families, also on a kernel without IPv6. The socket does not block.
pub fn bind(ip: IpAddr, port: u16) -> io::Result<std::net::TcpListener> {
    match listen(SocketAddr::new(ip, port)) {
        Err(error) if ip == Ipv6Addr::UNSPECIFIED && error.kind() != io::ErrorKind::AddrInUse => {
            listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
        }
        bound => bound,
    }
}

fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Listens as [`bind`] does, with retries until it succeeds. Calls `report` with each error. Returns `None` if the job is
/// cancelled.
pub async fn bind_with_retry(
    ip: IpAddr,
    port: u16,
    cx: &JobCx,
    mut report: impl FnMut(&io::Error),
) -> Option<TcpListener> {
    let mut backoff = Backoff::exponential(RETRY.0, RETRY.1);
    loop {
        match bind(ip, port).and_then(TcpListener::from_std) {
            Ok(listener) => return Some(listener),
            Err(error) => report(&error),
        }
        let wait = backoff.next_wait().unwrap_or(RETRY.1);
        cx.token().run_until_cancelled(tokio::time::sleep(wait)).await?;
    }
}

/// Answers requests until the job is cancelled, within bounds for clients that ask little: 256 connections of the pool, 10 s
/// for a head, buffers of 8 KiB. The job's health has the state of the listener. Requests in flight finish before it
/// returns.
pub async fn serve_probes<S, B>(pool: &Pool, listener: TcpListener, service: S, cx: &JobCx)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static,
{
    cx.health.ok("Running");
    let bounds = Bounds::new(CONNECTIONS).header_timeout(HEADER_TIMEOUT).buffer(BUFFER).title_case_headers();
    let tasks = TaskTracker::new();
    let report_accept = |error: Option<&io::Error>| match error {
        Some(error) => cx.health.degraded("Cannot accept connections", error),
        None => cx.health.ok("Running"),
    };
    serve_in(pool, &listener, bounds, service, cx.token(), &tasks, report_accept).await;
    // Open connections may take until their timeout to end; no new ones are accepted meanwhile.
    drop(listener);
    tasks.close();
    tasks.wait().await;
}
