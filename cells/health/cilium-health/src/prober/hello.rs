//! The HTTP check: `GET /hello`.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::row::{CheckResult, Failure};

/// The most bytes of a response that are read: its status line.
const STATUS_LINE: usize = 256;

/// Sends the request; returns the time until the status line of a response 200. Error texts are those of Go's client.
/// Requests of a batch share the deadline, and with it the timer.
pub(crate) async fn hello(ip: IpAddr, port: u16, deadline: Instant) -> CheckResult {
    let address = SocketAddr::new(ip, port);
    let begin = Instant::now();
    let error = match timeout_at(deadline, request(address)).await {
        Ok(Ok(())) => return Ok(begin.elapsed()),
        Ok(Err(error)) => error,
        Err(_) => return Err(Failure::TimedOut),
    };
    Err(match error.kind() {
        ErrorKind::TimedOut => Failure::TimedOut,
        ErrorKind::ConnectionRefused => Failure::Refused(
            format!("Get \"http://{address}/hello\": dial tcp {address}: connect: connection refused").into(),
        ),
        _ => Failure::Other(format!("Get \"http://{address}/hello\": {error}").into()),
    })
}

async fn request(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "GET /hello HTTP/1.1\r\nHost: {address}\r\nUser-Agent: cilium-health\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut line = [0; STATUS_LINE];
    let mut length = 0;
    loop {
        match stream.read(&mut line[length..]).await? {
            0 => return Err(io::Error::new(ErrorKind::UnexpectedEof, "unexpected EOF")),
            read => length += read,
        }
        if let Some(end) = line[..length].iter().position(|byte| *byte == b'\n') {
            return check(&line[..end]);
        }
        if length == STATUS_LINE {
            return check(&line);
        }
    }
}

/// Returns an error for any status line but that of HTTP/1 and 200.
fn check(line: &[u8]) -> io::Result<()> {
    let text = String::from_utf8_lossy(line);
    let malformed = || io::Error::new(ErrorKind::InvalidData, "malformed HTTP response");
    let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..)).ok_or_else(malformed)?;
    match status.split_whitespace().next() {
        Some("200") => Ok(()),
        Some(code) if code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(io::Error::other(format!("unhealthy: status {code}")))
        }
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::super::core::CHECK_TIMEOUT;
    use super::*;

    fn deadline() -> Instant {
        Instant::now() + CHECK_TIMEOUT
    }

    #[test]
    fn only_200_is_success() {
        assert!(check(b"HTTP/1.1 200 OK\r").is_ok());
        assert!(check(b"HTTP/1.0 200").is_ok());
        for (line, error) in [
            (&b"HTTP/1.1 503 Service Unavailable\r"[..], "unhealthy: status 503"),
            (b"HTTP/1.1 2000 OK", "malformed HTTP response"),
            (b"HTTP/1.1", "malformed HTTP response"),
            (b"SSH-2.0-OpenSSH_9.2\r", "malformed HTTP response"),
            (b"HTTP/1.1 \xff\xff", "malformed HTTP response"),
            (b"", "malformed HTTP response"),
        ] {
            assert_eq!(check(line).unwrap_err().to_string(), error);
        }
    }

    /// Returns the result for a peer that accepts a connection, writes the bytes and closes.
    async fn peer(bytes: &'static [u8]) -> CheckResult {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // All of it: closing with bytes unread would reset the connection.
            let mut request = [0; 512];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            assert!(request.starts_with(b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1:"));
            // Fails for a peer that has closed already.
            let _sent = stream.write_all(bytes).await;
        };
        tokio::join!(hello(address.ip(), address.port(), deadline()), serve).0
    }

    #[tokio::test]
    async fn peers_that_answer_wrongly_fail() {
        assert!(peer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.is_ok());
        let other = |result: CheckResult| match result {
            Err(Failure::Other(text)) => text.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(other(peer(b"HTTP/1.1 404 Not Found\r\n\r\n").await).ends_with(": unhealthy: status 404"));
        assert!(other(peer(b"HTTP/1.1 2").await).ends_with("/hello\": unexpected EOF"));
        assert!(other(peer(&[b'x'; 4096]).await).ends_with(": malformed HTTP response"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let begin = Instant::now();
        assert_eq!(hello(address.ip(), address.port(), deadline()).await, Err(Failure::TimedOut));
        assert_eq!(begin.elapsed().as_secs(), CHECK_TIMEOUT.as_secs());
        drop(listener);
        let Err(Failure::Refused(text)) = hello(address.ip(), address.port(), deadline()).await else {
            panic!()
        };
        let port = address.port();
        let expected = format!(
            "Get \"http://127.0.0.1:{port}/hello\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        );
        assert_eq!(*text, *expected);
    }
}
