//! The proxy's connection to the agent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use grpc::Connection;
use hive::JobCx;
use hive::job::Backoff;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tonic::Status;

use crate::connection::{ConnectError, connect};
use crate::observed;
use crate::proto::fqdn_data_client::FqdnDataClient;
use crate::proto::{FqdnMapping, PolicyStateResponse, ResponseCode, UpdateMappingResponse};
use crate::remote::Remote;
use crate::reports::Report;
use crate::view::{BadState, View};

/// The maximum size of a snapshot: hundreds of thousands of prefixes.
const MAX_STATE: usize = 64 << 20;
/// Reports in flight.
const MAX_REPORTS: usize = 128;
/// The longest time of a report; the agent needs 100 ms at most.
const REPORT_LIMIT: Duration = Duration::from_secs(5);
/// Delays between attempts to connect.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(50);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The end of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Request(#[from] Status),
    #[error("snapshot of the agent: {0}")]
    State(#[from] BadState),
    #[error("the agent has closed the connection")]
    Closed,
}

/// Connects to the agent, again and again, until the job is cancelled.
pub(crate) async fn run(remote: Arc<Remote>, agent: SocketAddr, families: [bool; 2], cx: JobCx) {
    let mut backoff = Backoff::exponential(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
    loop {
        let mut has_state = false;
        let session = session(&remote, agent, families, || {
            if !has_state {
                tracing::info!("The agent is connected");
                cx.health.ok(format_args!("connected to the agent at {agent}"));
            }
            has_state = true;
        });
        let Some(end) = cx.token().run_until_cancelled(session).await else { return };
        remote.reports.lock().disconnected(Timestamp::now());
        remote.observations.lock().clear();
        if has_state {
            backoff.reset();
        }
        if let Err(error) = end {
            // Later attempts of a row say the same.
            if backoff.attempts() == 0 {
                tracing::warn!(%error, "The agent is away: queries are answered by its last policies");
            }
            cx.health.degraded("Addresses of new names wait for the agent", &error);
        }
        let pause = tokio::time::sleep(backoff.next_wait().unwrap_or(MAX_RETRY_INTERVAL));
        if cx.token().run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
}

/// Takes snapshots from the agent and reports addresses until the connection ends.
pub(crate) async fn session(
    remote: &Remote,
    agent: SocketAddr,
    families: [bool; 2],
    on_state: impl FnMut(),
) -> Result<(), End> {
    let (connection, work) = connect(agent).await?;
    let client = FqdnDataClient::new(connection).max_decoding_message_size(MAX_STATE);
    tokio::select! {
        _ = work => Err(End::Closed),
        ended = snapshots(remote, client.clone(), families, on_state) => ended,
        never = reports(remote, client.clone()) => match never {},
        never = observations(remote, client) => match never {},
    }
}

async fn snapshots(
    remote: &Remote,
    mut client: FqdnDataClient<Connection>,
    families: [bool; 2],
    mut on_state: impl FnMut(),
) -> Result<(), End> {
    let (acknowledge, mut responses) = mpsc::channel(1);
    let responses = futures::stream::poll_fn(move |cx| responses.poll_recv(cx));
    let mut states = client.stream_policy_state(responses).await?.into_inner();
    while let Some(state) = states.message().await? {
        remote.update(View::new(&state, families)?);
        remote.reports.lock().connected();
        remote.wake.notify_one();
        on_state();
        let response =
            PolicyStateResponse { response: ResponseCode::NoError.into(), request_id: state.request_id };
        acknowledge.send(response).await.map_err(|_| End::Closed)?;
    }
    Err(End::Closed)
}

/// Reports that are in flight. When they are dropped they wait for the next connection.
struct InFlight<'a> {
    remote: &'a Remote,
    endpoint: u16,
    report: Option<Report>,
}

impl InFlight<'_> {
    fn done(mut self) {
        if let Some(report) = self.report.take() {
            self.remote.reports.lock().done(self.endpoint, report, Timestamp::now());
        }
    }

    /// Drops the report, which the agent has refused.
    fn refused(mut self, code: ResponseCode) {
        tracing::debug!(endpointID = self.endpoint, code = code.as_str_name(), "The agent refuses addresses");
        self.report = None;
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            self.remote.reports.lock().failed(self.endpoint, report);
        }
    }
}

async fn reports(remote: &Remote, client: FqdnDataClient<Connection>) -> std::convert::Infallible {
    let mut in_flight = FuturesUnordered::new();
    loop {
        while in_flight.len() < MAX_REPORTS {
            let next = {
                let mut reports = remote.reports.lock();
                // Before the first snapshot the agent may not know the endpoints yet.
                reports.is_connected().then(|| reports.next()).flatten()
            };
            let Some((endpoint, report)) = next else { break };
            let report = InFlight { remote, endpoint, report: Some(report) };
            in_flight.push(send(report, client.clone()));
        }
        tokio::select! {
            Some(()) = in_flight.next(), if !in_flight.is_empty() => {}
            () = remote.wake.notified() => {}
        }
    }
}

async fn send(report: InFlight<'_>, mut client: FqdnDataClient<Connection>) {
    let Some((source, identity)) = report.remote.view().source_of(report.endpoint) else {
        // The endpoint is gone.
        return report.refused(ResponseCode::ErrorEndpointNotFound);
    };
    let Some(lookup) = report.report.as_ref().map(|report| &report.lookup) else { return };
    let left = lookup.expiration_time.duration_since(Timestamp::now()).as_secs();
    let mapping = FqdnMapping {
        fqdn: lookup.name.to_string(),
        record_ip: lookup.addresses.iter().map(|address| address.to_string().into_bytes()).collect(),
        ttl: u32::try_from(left.max(0)).unwrap_or(u32::MAX),
        source_identity: identity,
        source_ip: source.to_string().into_bytes(),
        response_code: 0,
        metrics_data: None,
    };
    let sent = tokio::time::timeout(REPORT_LIMIT, client.update_mapping_request(mapping)).await;
    let code = match sent {
        Ok(Ok(response)) => {
            let UpdateMappingResponse { response } = response.into_inner();
            ResponseCode::try_from(response).unwrap_or(ResponseCode::Unspecified)
        }
        // The agent refuses the message: it would do so again.
        Ok(Err(status)) if status.code() == tonic::Code::InvalidArgument => {
            ResponseCode::ErrorInvalidArgument
        }
        Ok(Err(_)) | Err(_) => ResponseCode::ServerFailure,
    };
    match code {
        ResponseCode::NoError => report.done(),
        ResponseCode::ServerFailure | ResponseCode::Unspecified => {
            // The next attempt must not be at once.
            tokio::time::sleep(MIN_RETRY_INTERVAL).await;
        }
        code => report.refused(code),
    }
}

/// Reports events of queries, one after the other, so that they stay in order. An event that the agent does not take is
/// lost.
async fn observations(remote: &Remote, mut client: FqdnDataClient<Connection>) -> std::convert::Infallible {
    loop {
        let next = remote.observations.lock().pop_front();
        let Some(observation) = next else {
            remote.observed.notified().await;
            continue;
        };
        let source = remote.view().client(observation.client.ip());
        let mapping = observed::message(&observation, source.map_or(0, |client| client.identity));
        let sent = tokio::time::timeout(REPORT_LIMIT, client.update_mapping_request(mapping)).await;
        if let Ok(Err(error)) = sent {
            tracing::debug!(%error, "The agent does not take an event of a DNS query");
        }
    }
}
