//! Flows of Hubble for the page: counts of those that the server has, and new ones as server-sent events.

use std::time::Duration;

use anyhow::{Context as _, bail};
use hubble_api::Server;
use hubble_api::flow::{DropReason, Flow, FlowFilter, Verdict};
use hubble_api::observer::get_flows_response::ResponseTypes;
use hubble_api::observer::observer_client::ObserverClient;
use hubble_api::observer::{GetFlowsRequest, GetFlowsResponse};
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, MissedTickBehavior};

use crate::commands::explain;
use crate::commands::hubble::{refused, verdict};
use crate::commands::top::{Counts, View, add, pair, rules};

/// Rows of the service map and of the drops.
const ROWS: usize = 200;
/// The timeout for all flows that the server has.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Flows before the first new one.
const FIRST_FLOWS: u64 = 50;
/// The time between two events of a stream; the page draws each of them as a whole.
const EVENT_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of flows of an event: more than a person reads, and a bound of what the page draws.
const MAX_FLOWS: usize = 100;
/// The time between two attempts to connect to a server that has gone.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The time after which a stream without flows has an event, by which a closed connection is found.
const SILENCE: Duration = Duration::from_secs(15);

/// Which flows a client follows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Selection {
    /// Filters of the server: one, or one for each side.
    filters: Vec<FlowFilter>,
    /// Part of the line that people read, in lower case.
    text: String,
}

impl Selection {
    /// Parses the query of a request: `verdict`, `namespace`, `pod`, `port`, `text`; empty values select all flows.
    ///
    /// # Errors
    /// A name or a value is invalid.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let (mut base, mut text) = (FlowFilter::default(), String::new());
        let [mut namespace, mut pod, mut port] = [const { String::new() }; 3];
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = unescape(value).ok_or_else(|| format!("{name}: an escape is invalid"))?;
            match name {
                _ if value.is_empty() => {}
                "verdict" => base.verdict.push(verdict(&value).map_err(|error| format!("verdict {error}"))?),
                "namespace" => namespace = value,
                "pod" => pod = value,
                "port" => {
                    port = value.parse::<u16>().map_err(|_| "port is no number up to 65535")?.to_string()
                }
                "text" => text = value.to_lowercase(),
                _ => return Err(format!("there is no filter {name}")),
            }
        }
        if namespace.contains('/') || pod.contains('/') {
            return Err("names of namespaces and pods have no slash".to_owned());
        }
        let pods =
            Vec::from_iter((!namespace.is_empty() || !pod.is_empty()).then(|| format!("{namespace}/{pod}")));
        let ports = Vec::from_iter((!port.is_empty()).then_some(port));
        // A pod's packets of a port have it at either end.
        let mut filters = vec![base];
        if !pods.is_empty() {
            filters = filters
                .into_iter()
                .flat_map(|filter| {
                    let source = FlowFilter { source_pod: pods.clone(), ..filter.clone() };
                    [source, FlowFilter { destination_pod: pods.clone(), ..filter }]
                })
                .collect();
        }
        if !ports.is_empty() {
            filters = filters
                .into_iter()
                .flat_map(|filter| {
                    let source = FlowFilter { source_port: ports.clone(), ..filter.clone() };
                    [source, FlowFilter { destination_port: ports.clone(), ..filter }]
                })
                .collect();
        }
        filters.retain(|filter| *filter != FlowFilter::default());
        Ok(Self { filters, text })
    }

    /// Whether the line of a flow has the text.
    fn selects(&self, line: &str) -> bool {
        self.text.is_empty() || line.to_lowercase().contains(&self.text)
    }
}

/// Decodes a value of a query; `None` for an invalid escape.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let (digits, tail) = tail.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = tail;
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Returns the pairs of client and server, and the drops, among the flows that the server has.
pub(super) async fn traffic(server: &Server) -> anyhow::Result<Value> {
    let read = async {
        let (connection, work) =
            hubble_api::connect(server).await.context("no flows are served, which enable-hubble does")?;
        let (mut flows, mut drops) = (Counts::new(View::Flows), Counts::new(View::Drops));
        let count = async {
            // A connection without a client ends with its last response, maybe before that is read.
            let mut observer = ObserverClient::new(connection);
            let mut responses =
                observer.get_flows(GetFlowsRequest::default()).await.map_err(refused)?.into_inner();
            while let Some(response) = responses.message().await.map_err(refused)? {
                add(&mut flows, &response);
                add(&mut drops, &response);
            }
            anyhow::Ok(())
        };
        tokio::select! {
            biased;
            counted = count => counted?,
            _ = work => bail!("the server has closed the connection"),
        }
        let mut drops = drops.json(ROWS);
        for row in drops["rows"].as_array_mut().into_iter().flatten() {
            row["meaning"] = row["reason"].as_str().and_then(meaning).into();
        }
        Ok(json!({"services": flows.json(ROWS), "drops": drops}))
    };
    tokio::time::timeout(READ_TIMEOUT, read).await.context("the server of flows does not answer")?
}

/// Returns the meaning of a drop reason. Reasons of flows have the codes of the programs.
fn meaning(reason: &str) -> Option<&'static str> {
    let code = DropReason::from_str_name(reason)? as i32;
    explain::meaning(u8::try_from(code).ok()?)
}

/// Flows that are not sent yet.
#[derive(Default)]
struct Pending {
    flows: Vec<Value>,
    /// Selected flows that exceed those of an event.
    left_out: u64,
    /// Flows that the server has lost.
    lost: u64,
}

/// A stream of events to one client.
struct Stream<'a> {
    selection: &'a Selection,
    events: &'a Sender<Bytes>,
    /// The latest flow of the previous connection, with which the next one begins.
    latest: Option<Box<Flow>>,
}

/// Sends events until the client has gone. The server may end meanwhile: the client gets its state, and the flows of the
/// next one.
pub(super) async fn follow(server: Server, selection: Selection, events: Sender<Bytes>) {
    let mut stream = Stream { selection: &selection, events: &events, latest: None };
    let mut is_reported = false;
    let attempts = async {
        loop {
            let error = match hubble_api::connect(&server).await {
                Ok((connection, work)) => {
                    is_reported = false;
                    tokio::select! {
                        biased;
                        ended = stream.run(ObserverClient::new(connection)) => ended,
                        _ = work => Err("the server has closed the connection".to_owned()),
                    }
                }
                Err(error) => Err(error.to_string()),
            };
            let Err(error) = error else { return };
            if !std::mem::replace(&mut is_reported, true)
                && send(&events, "state", &json!({"error": error})).await.is_none()
            {
                return;
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    };
    tokio::select! {
        () = events.closed() => {}
        () = attempts => {}
    }
}

impl Stream<'_> {
    /// Sends flows until the client has gone.
    ///
    /// # Errors
    /// The server has ended, or refuses the request.
    async fn run(&mut self, mut observer: ObserverClient<grpc::Connection>) -> Result<(), String> {
        let request = GetFlowsRequest {
            follow: true,
            number: if self.latest.is_none() { FIRST_FLOWS } else { 0 },
            since: self.latest.as_ref().and_then(|flow| flow.time),
            whitelist: self.selection.filters.clone(),
            ..GetFlowsRequest::default()
        };
        let mut responses =
            observer.get_flows(request).await.map_err(|status| refused(status).to_string())?.into_inner();
        if send(self.events, "state", &json!({"error": null})).await.is_none() {
            return Ok(());
        }
        let mut timer = tokio::time::interval(EVENT_INTERVAL);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut pending, mut sent) = (Pending::default(), Instant::now());
        loop {
            tokio::select! {
                _ = timer.tick() => {
                    let is_empty = pending.flows.is_empty() && pending.lost == 0;
                    if is_empty && sent.elapsed() < SILENCE {
                        continue;
                    }
                    let Pending { flows, left_out, lost } = std::mem::take(&mut pending);
                    let event = json!({"flows": flows, "left_out": left_out, "lost": lost});
                    if send(self.events, "flows", &event).await.is_none() {
                        return Ok(());
                    }
                    sent = Instant::now();
                }
                response = responses.message() => match response.map_err(|status| refused(status).to_string())? {
                    Some(response) => self.take(response, &mut pending),
                    None => return Err("the server has ended".to_owned()),
                },
            }
        }
    }

    fn take(&mut self, response: GetFlowsResponse, pending: &mut Pending) {
        let line = hubble_api::to_compact(&response, &hubble_api::LineOptions::default());
        match response.response_types {
            Some(ResponseTypes::LostEvents(lost)) => pending.lost += lost.num_events_lost,
            Some(ResponseTypes::Flow(flow)) => {
                let is_repeated = self.latest.as_ref().is_some_and(|latest| latest.uuid == flow.uuid);
                if !is_repeated && self.selection.selects(&line) {
                    if pending.flows.len() < MAX_FLOWS {
                        pending.flows.push(row(&flow));
                    } else {
                        pending.left_out += 1;
                    }
                }
                self.latest = Some(Box::new(flow));
            }
            Some(ResponseTypes::NodeStatus(_)) | None => {}
        }
    }
}

/// Sends an event; `None` if the client has gone.
async fn send(events: &Sender<Bytes>, name: &str, data: &Value) -> Option<()> {
    // JSON has no line breaks outside of its texts, and escapes those inside.
    events.send(format!("event: {name}\ndata: {data}\n\n").into()).await.ok()
}

/// Returns the columns of a flow.
fn row(flow: &Flow) -> Value {
    let [source, destination, port] = &pair(flow)[..] else { unreachable!("three columns") };
    let time = flow.time.and_then(|time| jiff::Timestamp::new(time.seconds, time.nanos).ok());
    let is_dropped = flow.verdict() == Verdict::Dropped;
    let reason = match flow.drop_reason_desc() {
        _ if !is_dropped => None,
        DropReason::Unknown => None,
        reason => Some(reason.as_str_name()),
    };
    let is_denied = !flow.egress_denied_by.is_empty() || !flow.ingress_denied_by.is_empty();
    json!({
        "time": time.map(|time| time.to_string()),
        "source": source,
        "destination": destination,
        "port": port,
        "reply": flow.is_reply,
        "verdict": flow.verdict().as_str_name(),
        "reason": reason,
        "rule": is_denied.then(|| rules(flow)),
        "summary": flow.summary,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_select_flows_of_either_side() {
        let parse = |query: &str| Selection::parse(query);
        assert_eq!(parse(""), Ok(Selection::default()));
        assert_eq!(parse("verdict=&namespace=&pod=&port=&text="), Ok(Selection::default()));
        let all = parse("verdict=dropped&namespace=shop&pod=we&port=80&text=SYN+%C3%A9").unwrap();
        assert_eq!(all.text, "syn é");
        let sides: Vec<_> = all
            .filters
            .iter()
            .map(|filter| {
                assert_eq!(filter.verdict, [i32::from(Verdict::Dropped)]);
                let of = |list: &[String]| list.join(" ");
                [&filter.source_pod, &filter.destination_pod, &filter.source_port, &filter.destination_port]
                    .map(|list| of(list))
            })
            .collect();
        let [pod, port] = ["shop/we", "80"];
        assert_eq!(
            sides,
            [[pod, "", port, ""], [pod, "", "", port], ["", pod, port, ""], ["", pod, "", port]]
        );
        assert_eq!(parse("pod=web").unwrap().filters[0].source_pod, ["/web"], "of any namespace");
        assert!(all.selects("10.0.0.1 TCP Flags: SYN É") && !all.selects("ACK"));
        for wrong in
            ["port=70000", "port=x", "verdict=x", "text=%4", "text=%zz", "text=%ff", "pod=a/b", "other=1"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reasons_of_flows_have_the_meaning_of_their_page() {
        assert!(
            meaning("POLICY_DENIED").is_some_and(|text| text.starts_with("A policy selects the endpoint"))
        );
        assert_ne!(meaning("POLICY_DENY"), meaning("POLICY_DENIED"));
        assert_eq!(meaning("133"), None);
    }

    #[test]
    fn an_event_is_one_line_whatever_names_have() {
        let flow = Flow { destination_names: vec!["a\n\ndata: x\r<b>".to_owned()], ..Flow::default() };
        let text = json!({"flows": [row(&flow)]}).to_string();
        assert!(!text.contains(['\n', '\r']), "{text}");
        assert!(text.contains(r"a\n\ndata: x\r<b>"), "{text}");
    }
}
