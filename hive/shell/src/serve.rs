//! Connections: lines in, answers out.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hive_script::{Engine, Session, State};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::socket::{Socket, may};

/// The maximum number of concurrent connections.
const CLIENTS: usize = 16;
/// The maximum length of a line in bytes.
const LINE: u64 = 64 << 10;
/// The time after which a client that does not read is disconnected.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which the connection of a running command is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The folder in which commands may use files.
const FOLDER: &str = "/tmp";

const END: &str = "<<end>>";
const ERROR: &str = "<<error>>";

/// Serves until `stop` is cancelled; all client tasks have ended when it returns.
pub(crate) async fn serve(socket: &Socket, engine: &Arc<Engine>, stop: &CancellationToken) {
    let tasks = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(socket.listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                let crowded = tasks.len() >= CLIENTS;
                tasks.spawn(client(stream, engine.clone(), stop.clone(), crowded));
            }
            Err(error) => {
                tracing::warn!(%error, "The shell cannot accept connections");
                sleep(CHECK_INTERVAL).await;
            }
        }
    }
    tasks.close();
    tasks.wait().await;
}

async fn client(mut stream: UnixStream, engine: Arc<Engine>, stop: CancellationToken, crowded: bool) {
    let user = stream.peer_cred().map(|peer| peer.uid());
    let refusal = match user {
        Ok(user) if !may(user) => Some(format!("user {user} may not use the shell")),
        Err(error) => Some(format!("the user is not known: {error}")),
        Ok(_) if crowded => Some(format!("{CLIENTS} shells are open, no more are served")),
        Ok(_) => None,
    };
    if let Some(refusal) = refusal {
        tracing::info!(refusal, "Shell client refused");
        let _gone = timeout(PATIENCE, stream.write_all(format!("{refusal}{ERROR}\n").as_bytes())).await;
        return;
    }
    let state = State::new(FOLDER).confined();
    let session = engine.session(state.clone());
    // An error means that the client has disconnected, which needs no report.
    let _end = stop.run_until_cancelled(converse(&mut stream, session, &state)).await;
}

async fn converse(stream: &mut UnixStream, mut session: Session, state: &State) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut read = BufReader::new(read);
    while let Some(line) = next_line(&mut read).await? {
        match line.as_str() {
            "exit" | "quit" | "stop" => break,
            line => answer(&mut session, state, line, &mut write).await?,
        }
    }
    Ok(())
}

/// Returns the next line without its end; `None` at the end of the stream.
async fn next_line(read: &mut BufReader<ReadHalf<'_>>) -> io::Result<Option<String>> {
    let mut line = vec![];
    let count = read.take(LINE).read_until(b'\n', &mut line).await?;
    if count as u64 == LINE && line.last() != Some(&b'\n') {
        return Err(io::Error::other("the line is too long"));
    }
    let text = String::from_utf8_lossy(&line);
    Ok((count > 0).then(|| text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// Runs a command and forwards its output while it runs.
async fn answer(
    session: &mut Session,
    state: &State,
    line: &str,
    write: &mut WriteHalf<'_>,
) -> io::Result<()> {
    let result = {
        let mut run = std::pin::pin!(session.line(line));
        loop {
            tokio::select! {
                biased;
                result = &mut run => break result,
                () = state.log().written() => pass_on(state, write).await?,
                () = sleep(CHECK_INTERVAL) => present(write).await?,
            }
        }
    };
    pass_on(state, write).await?;
    let end = match result {
        Ok(()) => format!("{END}\n"),
        // For a completion Cilium's client waits for `<<end>>` only, so an error mark would block it for ever.
        Err(_) if line.contains(" --autocomplete=") => format!("{END}\n"),
        Err(error) => format!("{}{ERROR}\n", plain(&error.to_string())),
    };
    send(write, &end).await
}

/// Returns an error if the client is gone.
async fn present(write: &WriteHalf<'_>) -> io::Result<()> {
    // A client that does not read its answer makes the socket unwritable, which is no reason to cancel its command.
    match timeout(Duration::ZERO, write.ready(Interest::WRITABLE)).await {
        Ok(Ok(ready)) if ready.is_write_closed() => Err(io::ErrorKind::BrokenPipe.into()),
        Ok(Err(error)) => Err(error),
        _ => Ok(()),
    }
}

async fn pass_on(state: &State, write: &mut WriteHalf<'_>) -> io::Result<()> {
    let text = state.log().take();
    if text.is_empty() { Ok(()) } else { send(write, &plain(&text)).await }
}

async fn send(write: &mut WriteHalf<'_>, text: &str) -> io::Result<()> {
    timeout(PATIENCE, write.write_all(text.as_bytes())).await?
}

/// Returns the text with no line that looks like an end mark.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
        out.push_str(body);
        if body.ends_with(END) || body.ends_with(ERROR) {
            out.push(' ');
        }
        out.push_str(end);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn output_does_not_end_an_answer() {
        assert_eq!(plain("a\nx<<end>>\n<<error>>\nb <<end>> c"), "a\nx<<end>> \n<<error>> \nb <<end>> c");
        assert_eq!(plain("<<end>>"), "<<end>> ");
    }
}
