//! Requests to Envoy's administration.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// Limit of a request.
const LIMIT: Duration = Duration::from_secs(5);
/// The largest answer that is read: one of these requests is a line.
const MAX_ANSWER: u64 = 16 << 10;

/// Whether an Envoy has the socket.
pub(crate) async fn is_alive(socket: &Path) -> bool {
    // A process that is overloaded accepts late, and lives.
    let connected = tokio::time::timeout(LIMIT, UnixStream::connect(socket)).await;
    !matches!(connected, Ok(Err(_)))
}

/// Asks Envoy to end.
pub(crate) async fn quit(socket: &Path) -> io::Result<()> {
    let exchange = async {
        let mut stream = UnixStream::connect(socket).await?;
        let request =
            b"POST /quitquitquit HTTP/1.1\r\nhost: admin\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(request).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        match answer.starts_with(b"HTTP/1.1 200") {
            true => Ok(()),
            false => {
                let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
                Err(io::Error::other(format!("Envoy answers {:?}", String::from_utf8_lossy(line))))
            }
        }
    };
    tokio::time::timeout(LIMIT, exchange).await.map_err(io::Error::from)?
}
