//! Listeners of the API.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hive::JobCx;
use http::Request;
use http_server::Bounds;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::answer::Answers;

/// Maximum number of open connections of a listener.
const CONNECTIONS: usize = 32;

/// Maximum time until a request's head has arrived.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that a connection may take for what it reads, and for what it writes.
const BUFFER: usize = 8192;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 64;

/// Returns the addresses of the option's value: two for `localhost`.
pub(crate) fn addresses(value: &str) -> Result<Vec<SocketAddr>, Error> {
    let wrong = || Error::Address { value: value.to_owned() };
    if let Ok(address) = value.parse() {
        return Ok(vec![address]);
    }
    let (host, port) = value.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let hosts: [IpAddr; 2] = match host {
        "localhost" => [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        "" => [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        _ => return Err(wrong()),
    };
    Ok(hosts.map(|host| SocketAddr::new(host, port)).into())
}

/// Listens on the addresses. An IPv6 address beside an IPv4 one may be missing: the kernel may have no IPv6. As Cilium's
/// operator, two processes may share the port during an upgrade.
pub(crate) fn bind(addresses: &[SocketAddr]) -> Result<Vec<Option<TcpListener>>, Error> {
    let mut listeners = Vec::new();
    for &address in addresses {
        match listen(address) {
            Ok(listener) => listeners.push(Some(listener)),
            Err(_) if address.is_ipv6() && !listeners.is_empty() => listeners.push(None),
            Err(source) => return Err(Error::Listen { address, source }),
        }
    }
    Ok(listeners)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    if address.is_ipv6() {
        // The IPv4 listener has its own socket.
        rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves requests until the job is cancelled.
pub(crate) async fn serve(listener: TcpListener, answers: Answers, cx: JobCx) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let answers = answers.clone();
        async move { Ok::<_, Infallible>(answers.respond(request.method(), request.uri().path()).await) }
    });
    let bounds = Bounds::new(CONNECTIONS).header_timeout(HEADER_TIMEOUT).buffer(BUFFER);
    let tasks = TaskTracker::new();
    let on_accept = |error: Option<&io::Error>| match error {
        Some(error) => cx.health.degraded("Cannot accept connections", error),
        None => cx.health.ok("serving"),
    };
    http_server::serve(&listener, bounds, answer, cx.token(), &tasks, on_accept).await;
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_option() {
        let texts = |value: &str| -> Vec<String> {
            addresses(value).unwrap().iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts("127.0.0.1:9234"), ["127.0.0.1:9234"]);
        assert_eq!(texts("localhost:1"), ["127.0.0.1:1", "[::1]:1"]);
        assert_eq!(texts(":1"), ["0.0.0.0:1", "[::]:1"]);
        for wrong in ["", "9234", "example.com:1", "localhost:x"] {
            assert!(addresses(wrong).unwrap_err().to_string().contains("operator-api-serve-addr"), "{wrong}");
        }
    }
}
