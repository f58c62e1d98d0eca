//! The socket (`SOCK_SEQPACKET`): each message is one record.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as StdUnixDatagram;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hive::JobCx;
use monitor_events::record::{RecordKind, RecordVerdict};
use proxy_ports::Verdicts;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixDatagram, UnixListener, UnixStream};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::access_log::publish::Records;
use crate::access_log::record::parse;
use crate::sockets::{give_to_group, make_folder};

/// The maximum number of connections: Envoy has one for each listener.
const CONNECTIONS: usize = 64;
const BACKLOG: i32 = 16;
/// The pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// The type of proxies in metrics.
const PROXY_TYPE: &str = "envoy";

/// The receiver of logged requests.
#[derive(Clone)]
pub(crate) struct AccessLogSocket {
    pub(crate) path: PathBuf,
    pub(crate) gid: u32,
    /// The size up to which a message is read.
    pub(crate) buffer_size: usize,
    pub(crate) verdicts: Verdicts,
    pub(crate) records: Records,
}

impl AccessLogSocket {
    /// Serves the socket until the job is cancelled; an error if it cannot be made.
    pub(crate) async fn serve(self, cx: JobCx) -> anyhow::Result<()> {
        let (path, gid) = (self.path.clone(), self.gid);
        let listener = UnixListener::from_std(hive::blocking(move || bound(&path, gid)).await?)?;
        cx.health.ok("Serving");
        let connections = TaskTracker::new();
        loop {
            match cx.token().run_until_cancelled(listener.accept()).await {
                None => break,
                // A client beyond the limit is disconnected; it connects again.
                Some(Ok(_)) if connections.len() >= CONNECTIONS => {}
                Some(Ok((connection, _))) => {
                    cx.health.ok("Serving");
                    let (socket, stop) = (self.clone(), cx.token().clone());
                    connections.spawn(async move {
                        // The end of a client, also by an error, needs no report.
                        drop(stop.run_until_cancelled(socket.receive(connection)).await);
                    });
                }
                Some(Err(error)) => {
                    cx.health.degraded("Cannot accept connections of Envoy's access log", &error);
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
        connections.close();
        connections.wait().await;
        Ok(())
    }

    async fn receive(self, connection: UnixStream) -> io::Result<()> {
        // Neither tokio nor std have a type for SOCK_SEQPACKET: it is accepted as a stream and read as datagrams.
        let connection = StdUnixDatagram::from(OwnedFd::from(connection.into_std()?));
        let connection = UnixDatagram::from_std(connection)?;
        // One byte more than a message may have, to detect longer ones, which the kernel cuts.
        let mut buffer = vec![0; self.buffer_size + 1];
        let mut has_warned = false;
        loop {
            match connection.recv(&mut buffer).await? {
                0 => return Ok(()),
                size if size <= self.buffer_size => self.record(&buffer[..size]),
                _ => {
                    self.verdicts.count("parse_errors", PROXY_TYPE);
                    // Once a connection: workloads choose the length of their requests.
                    if !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(
                            "A request that Envoy logs is longer than envoy-access-log-buffer-size; it is not recorded"
                        );
                    }
                }
            }
        }
    }

    fn record(&self, message: &[u8]) {
        let logged = match parse(message) {
            Ok(logged) => logged,
            Err(error) => {
                self.verdicts.count("parse_errors", PROXY_TYPE);
                tracing::debug!(%error, "A message of Envoy's access log is not a record");
                return;
            }
        };
        if logged.record.kind == RecordKind::Request {
            let is_denied = logged.record.verdict == RecordVerdict::Denied;
            self.verdicts.count("received", PROXY_TYPE);
            self.verdicts.count(if is_denied { "denied" } else { "forwarded" }, PROXY_TYPE);
        }
        self.records.publish(logged);
    }
}

/// Returns a listening socket at a path; that of a previous run is removed. Blocks.
fn bound(path: &Path, gid: u32) -> io::Result<StdUnixListener> {
    make_folder(path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    give_to_group(path, gid)?;
    socket.listen(BACKLOG)?;
    Ok(OwnedFd::from(socket).into())
}
