//! The client of SPIRE's delegated identity API.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use grpc::Connection;
use hive::JobCx;
use hive::job::Backoff;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use crate::certificates::{Certificates, Changes, InvalidBundle};
use crate::proto::delegated_identity_client::DelegatedIdentityClient;
use crate::proto::{Selector, SubscribeToX509BundlesRequest, SubscribeToX509sviDsRequest};

/// The selector of the certificates of all identities.
const SELECTOR: (&str, &str) = ("cilium", "mutual-auth");
/// The maximum size of a message: certificates of more identities than a cluster has.
const MAX_MESSAGE: usize = 256 << 20;
/// Delays between attempts to connect.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// A change of an identity's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Added(u32),
    Renewed(u32),
    Withdrawn(u32),
}

/// The end of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("unable to connect; mesh-auth-spire-admin-socket is the path of the SPIRE agent's admin socket")]
    Connect(#[source] io::Error),
    #[error("SPIRE does not speak HTTP/2")]
    Http(#[from] hyper::Error),
    #[error("SPIRE refuses the request")]
    Request(#[from] Status),
    #[error(transparent)]
    Bundle(#[from] InvalidBundle),
    #[error("SPIRE has closed the connection")]
    Closed,
}

/// The connection to SPIRE, as the agent's status has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Connecting,
    Connected,
    Failed(Arc<str>),
}

/// The client.
#[derive(Debug)]
pub(crate) struct Spire {
    pub(crate) socket: PathBuf,
    pub(crate) certificates: watch::Sender<Arc<Certificates>>,
    pub(crate) changes: mpsc::Sender<Change>,
    pub(crate) state: watch::Sender<State>,
}

impl Spire {
    /// Takes certificates and authorities from SPIRE until the job is cancelled. Those of the last connection are kept
    /// while there is none.
    pub(crate) async fn run(self, cx: JobCx) {
        let mut backoff = Backoff::exponential(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        loop {
            let Some(result) = cx.token().run_until_cancelled(self.session(&cx)).await else { return };
            let error = anyhow::Error::new(match result {
                Ok(never) => match never {},
                Err(end) => end,
            });
            let text = format!("{error:#}");
            if self.state.send_replace(State::Failed(text.as_str().into())) == State::Connected {
                backoff.reset();
            }
            if backoff.attempts() == 0 {
                tracing::warn!(
                    error = text,
                    "No connection to SPIRE: certificates are not renewed, trying again"
                );
            }
            cx.health.degraded("Certificates are not renewed", &*error);
            let pause = tokio::time::sleep(backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL));
            if cx.token().run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    async fn session(&self, cx: &JobCx) -> Result<std::convert::Infallible, End> {
        let stream = UnixStream::connect(&self.socket).await.map_err(End::Connect)?;
        let (connection, work) = Connection::new(stream).await?;
        let client = DelegatedIdentityClient::new(connection).max_decoding_message_size(MAX_MESSAGE);
        tokio::select! {
            _ = work => Err(End::Closed),
            end = self.svids(client.clone(), cx) => Err(end),
            end = self.bundles(client, cx) => Err(end),
        }
    }

    /// Takes certificates until the stream ends.
    async fn svids(&self, mut client: DelegatedIdentityClient<Connection>, cx: &JobCx) -> End {
        let selector = Selector { r#type: SELECTOR.0.to_owned(), value: SELECTOR.1.to_owned() };
        let request = SubscribeToX509sviDsRequest { selectors: vec![selector] };
        let mut messages = match client.subscribe_to_x509svi_ds(request).await {
            Ok(response) => response.into_inner(),
            Err(status) => return status.into(),
        };
        loop {
            let message = match messages.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return End::Closed,
                Err(status) => return status.into(),
            };
            let mut changes = Changes::default();
            self.certificates.send_modify(|current| {
                let (next, differences) = current.with_svids(message.x509_svids);
                (*current, changes) = (Arc::new(next), differences);
            });
            self.connected(cx);
            for id in &changes.invalid {
                tracing::warn!(
                    spiffeID = id,
                    "SPIRE has sent a certificate and a key that do not match, ignoring it"
                );
            }
            let withdrawn = changes.withdrawn.into_iter().map(Change::Withdrawn);
            let added = changes.added.into_iter().map(Change::Added);
            let renewed = changes.renewed.into_iter().map(Change::Renewed);
            for change in withdrawn.chain(added).chain(renewed) {
                // A full queue holds up the stream. The receiver ends with the cell.
                if self.changes.send(change).await.is_err() {
                    return End::Closed;
                }
            }
        }
    }

    /// Takes authorities until the stream ends.
    async fn bundles(&self, mut client: DelegatedIdentityClient<Connection>, cx: &JobCx) -> End {
        let mut messages = match client.subscribe_to_x509_bundles(SubscribeToX509BundlesRequest {}).await {
            Ok(response) => response.into_inner(),
            Err(status) => return status.into(),
        };
        loop {
            let message = match messages.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return End::Closed,
                Err(status) => return status.into(),
            };
            let next = self.certificates.borrow().with_bundles(&message.ca_certificates);
            match next {
                // Only this task writes authorities, but another one certificates.
                Ok(next) => self.certificates.send_modify(|current| {
                    *current = Arc::new(current.with_anchors_of(&next));
                }),
                Err(error) => return error.into(),
            }
            self.connected(cx);
        }
    }

    fn connected(&self, cx: &JobCx) {
        let certificates = self.certificates.borrow().clone();
        if self.state.send_replace(State::Connected) != State::Connected {
            tracing::info!(socket = %self.socket.display(), "Connected to SPIRE");
        }
        cx.health.ok(format_args!("Connected to SPIRE: {} certificates", certificates.len()));
    }
}
