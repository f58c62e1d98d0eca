//! Requests to Envoy's administration.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// Limit of a request.
const LIMIT: Duration = Duration::from_secs(5);
/// The largest answer that is read: the properties of the server have some kB, most are its arguments.
const MAX_ANSWER: u64 = 256 << 10;

/// Whether an Envoy has the socket.
pub(crate) async fn is_alive(socket: &Path) -> bool {
    // A process that is overloaded accepts late, and lives.
    let connected = tokio::time::timeout(LIMIT, UnixStream::connect(socket)).await;
    !matches!(connected, Ok(Err(_)))
}

/// Asks Envoy to end.
pub(crate) async fn quit(socket: &Path) -> io::Result<()> {
    request(socket, "POST", "/quitquitquit").await.map(drop)
}

/// Returns the body of the answer to a GET.
pub(crate) async fn get(socket: &Path, path: &str) -> io::Result<Vec<u8>> {
    let answer = request(socket, "GET", path).await?;
    body(&answer).ok_or_else(|| io::Error::other("Envoy's answer is cut"))
}

/// Returns the answer, which is a success, with its head.
async fn request(socket: &Path, method: &str, path: &str) -> io::Result<Vec<u8>> {
    let exchange = async {
        let mut stream = UnixStream::connect(socket).await?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        match answer.starts_with(b"HTTP/1.1 200") {
            true => Ok(answer),
            false => {
                let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
                Err(io::Error::other(format!("Envoy answers {:?}", String::from_utf8_lossy(line))))
            }
        }
    };
    tokio::time::timeout(LIMIT, exchange).await.map_err(io::Error::from)?
}

/// Returns the body of an answer, which may be in chunks; `None` if it is cut.
fn body(answer: &[u8]) -> Option<Vec<u8>> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, mut rest) = (answer[..end].to_ascii_lowercase(), &answer[end + 4..]);
    let chunked = b"transfer-encoding: chunked";
    if !head.windows(chunked.len()).any(|window| window == chunked) {
        return Some(rest.to_vec());
    }
    let mut whole = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..line]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(whole);
        }
        let start = line + 2;
        whole.extend(rest.get(start..start.checked_add(size)?)?);
        rest = rest.get(start + size..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_whole_or_in_chunks() {
        let of = |text: &str| body(text.as_bytes()).map(|body| String::from_utf8(body).unwrap());
        let plain = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        assert_eq!(of(plain).as_deref(), Some("ok"));
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunks = format!("{head}3\r\nabc\r\nA;x\r\n0123456789\r\n0\r\n\r\n");
        assert_eq!(of(&chunks).as_deref(), Some("abc0123456789"));
        for end in head.len()..chunks.len() - 4 {
            assert_eq!(of(&chunks[..end]), None, "cut at {end}");
        }
        assert_eq!(of("HTTP/1.1 200 OK\r\n"), None);
        assert_eq!(of(&format!("{head}ffffffffffffffff\r\nabc")), None);
        assert_eq!(of(&format!("{head}x\r\nabc")), None);
    }
}
