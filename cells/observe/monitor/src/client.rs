//! A connection of the socket: the stream out, nothing in.

use std::io;
use std::time::Duration;

use monitor_events::gob;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::hub::Subscription;

/// Bytes that are written at once.
const BATCH: usize = 64 << 10;

/// Bytes of a client that are read and dropped; then it is not read any more and blocks.
const MAX_IGNORED: usize = 64 << 10;

/// Writes events until the client is gone.
pub(crate) async fn serve(mut stream: UnixStream, events: Subscription) -> io::Result<()> {
    stream.write_all(gob::PREAMBLE).await?;
    let (mut batch, mut ignored) = (Vec::new(), 0);
    loop {
        tokio::select! {
            // This subscription has its losses in the stream.
            _ = events.read(&mut batch, BATCH) => {
                stream.write_all(&batch).await?;
                batch.clear();
                batch.shrink_to(BATCH);
            }
            more = ignore_input(&stream), if ignored < MAX_IGNORED => match more? {
                Input::Bytes(count) => ignored += count,
                // Half of the connection is closed: the rest of it is still served.
                Input::End => ignored = MAX_IGNORED,
                Input::Gone => return Ok(()),
            },
        }
    }
}

enum Input {
    Bytes(usize),
    End,
    Gone,
}

/// Waits for input, which is dropped, or for the end of the connection, which is noticed only by reading while there
/// are no events.
async fn ignore_input(stream: &UnixStream) -> io::Result<Input> {
    let mut scratch = [0; 4096];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut scratch) {
            Ok(0) => {
                return Ok(match timeout(Duration::ZERO, stream.ready(Interest::WRITABLE)).await {
                    Ok(Ok(ready)) if !ready.is_write_closed() => Input::End,
                    // Not writable, with everything read: written as soon as there are events, which ends it if gone.
                    Err(_) => Input::End,
                    Ok(_) => Input::Gone,
                });
            }
            Ok(count) => return Ok(Input::Bytes(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
