//! Flows by what they have in common, within a bound of memory.

use std::collections::BTreeMap;

use clap::ValueEnum;
use datapath_abi::event;
use hubble_api::flow::layer4::Protocol;
use hubble_api::flow::{DropReason, Endpoint, Flow, Service, Verdict};
use monitor_events::ACCESS_LOG;
use serde::Serialize;
use serde_json::{Map, Value};

/// The maximum number of rows.
pub(super) const MAX_ROWS: usize = 4096;
/// Intervals after which a row without flows gives its place to others, once half of the rows are taken.
const IDLE: u64 = 30;
/// The name of what has no row of its own.
const OTHERS: &str = "(others)";

/// The subject of the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum View {
    /// Pairs of client and server, by the server's port.
    #[default]
    Flows,
    /// Endpoints of this node.
    Endpoints,
    /// Drops by reason, pair and rule.
    Drops,
}

impl View {
    /// Returns the names of the columns before the numbers.
    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Flows => &["source", "destination", "port"],
            Self::Endpoints => &["endpoint", "name"],
            Self::Drops => &["reason", "source", "destination", "port"],
        }
    }
}

/// The counts of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) forwarded: u64,
    pub(super) dropped: u64,
    /// Flows of the last whole interval.
    pub(super) recent: u64,
    /// Flows of the interval that has begun.
    current: u64,
    /// The rules that deny, by the latest verdict.
    pub(super) rule: String,
    /// The interval of the latest flow.
    last: u64,
}

/// Counts by row.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(super) view: View,
    pub(super) rows: BTreeMap<Vec<String>, Row>,
    /// Flows that were counted or left out.
    pub(super) flows: u64,
    pub(super) lost: u64,
    interval: u64,
}

impl Counts {
    pub(crate) fn new(view: View) -> Self {
        Self { view, rows: BTreeMap::new(), flows: 0, lost: 0, interval: 0 }
    }

    /// Counts a flow.
    pub(crate) fn add(&mut self, flow: &Flow) {
        self.flows += 1;
        let kind = flow.event_type.map_or(0, |event| event.r#type);
        let is_denial = kind == i32::from(event::POLICY_VERDICT) && flow.verdict() == Verdict::Dropped;
        // Each packet has a trace, a drop or a record; its verdict of policy is another event of it.
        let is_counted = [event::DROP, event::TRACE, ACCESS_LOG].map(i32::from).contains(&kind);
        match self.view {
            View::Flows if is_counted => self.count(pair(flow), flow),
            View::Endpoints if is_counted => {
                for end in [&flow.source, &flow.destination].into_iter().flatten().filter(|end| end.id != 0) {
                    self.count(vec![end.id.to_string(), name(end).unwrap_or_default()], flow);
                }
            }
            View::Drops if is_denial => {
                let rule = rules(flow);
                self.row(dropped(flow)).rule = rule;
            }
            View::Drops if is_counted && flow.verdict() == Verdict::Dropped => {
                self.count(dropped(flow), flow)
            }
            _ => {}
        }
    }

    fn count(&mut self, key: Vec<String>, flow: &Flow) {
        let row = self.row(key);
        match flow.verdict() {
            Verdict::Dropped => row.dropped += 1,
            _ => row.forwarded += 1,
        }
        row.current += 1;
    }

    /// Returns the row of a key; that of all others if there is no place.
    fn row(&mut self, key: Vec<String>) -> &mut Row {
        let has_place = self.rows.len() < MAX_ROWS - 1 || self.rows.contains_key(&key);
        let key = if has_place { key } else { vec![OTHERS.to_owned(); self.view.columns().len()] };
        let row = self.rows.entry(key).or_default();
        row.last = self.interval;
        row
    }

    /// Ends an interval.
    pub(crate) fn tick(&mut self) {
        self.interval += 1;
        for row in self.rows.values_mut() {
            row.recent = std::mem::take(&mut row.current);
        }
        if self.rows.len() > MAX_ROWS / 2 {
            let interval = self.interval;
            self.rows.retain(|_, row| interval - row.last < IDLE);
        }
    }

    /// Returns the rows with flows, those with most of them in the last interval first.
    pub(super) fn sorted(&self) -> Vec<(&[String], &Row)> {
        let total = |row: &Row| row.forwarded + row.dropped;
        let rows = self.rows.iter().filter(|(_, row)| total(row) > 0);
        let mut rows: Vec<(&[String], &Row)> = rows.map(|(key, row)| (&key[..], row)).collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse((row.recent, total(row))));
        rows
    }

    /// Returns the counts as JSON.
    pub(crate) fn json(&self, limit: usize) -> Value {
        let row = |(key, row): (&[String], &Row)| {
            let texts = self.view.columns().iter().zip(key);
            let mut object: Map<String, Value> =
                texts.map(|(column, text)| ((*column).to_owned(), text.clone().into())).collect();
            for (name, count) in
                [("forwarded", row.forwarded), ("dropped", row.dropped), ("recent", row.recent)]
            {
                object.insert(name.to_owned(), count.into());
            }
            if self.view == View::Drops {
                object.insert("rule".to_owned(), row.rule.clone().into());
            }
            Value::Object(object)
        };
        let rows: Vec<Value> = self.sorted().into_iter().take(limit).map(row).collect();
        serde_json::json!({"view": self.view, "flows": self.flows, "lost": self.lost, "rows": rows})
    }
}

/// Returns the client, the server and its port; replies are the client's, too.
pub(crate) fn pair(flow: &Flow) -> Vec<String> {
    let ip = flow.ip.as_ref();
    let source =
        end(flow.source.as_ref(), flow.source_service.as_ref(), &flow.source_names, ip.map(|ip| &*ip.source));
    let destination = end(
        flow.destination.as_ref(),
        flow.destination_service.as_ref(),
        &flow.destination_names,
        ip.map(|ip| &*ip.destination),
    );
    let is_reply = flow.is_reply == Some(true);
    let (source, destination) = if is_reply { (destination, source) } else { (source, destination) };
    vec![source, destination, port(flow, is_reply)]
}

fn dropped(flow: &Flow) -> Vec<String> {
    let reason = match flow.drop_reason_desc() {
        DropReason::Unknown if flow.drop_reason != 0 => flow.drop_reason.to_string(),
        reason => reason.as_str_name().to_owned(),
    };
    let mut key = vec![reason];
    key.extend(pair(flow));
    key
}

/// Returns the policies that deny, as `KIND/NAMESPACE/NAME`.
pub(crate) fn rules(flow: &Flow) -> String {
    let denying = flow.egress_denied_by.iter().chain(&flow.ingress_denied_by);
    let names: Vec<String> =
        denying.map(|policy| format!("{}/{}/{}", policy.kind, policy.namespace, policy.name)).collect();
    if names.is_empty() { "no rule allows it".to_owned() } else { names.join(", ") }
}

/// Returns the name of an end: the pod, the service, the DNS name, the reserved identity or the address.
fn end(endpoint: Option<&Endpoint>, service: Option<&Service>, names: &[String], ip: Option<&str>) -> String {
    let pod = endpoint.and_then(name);
    let service = || service.map(|service| format!("{}/{}", service.namespace, service.name));
    let address = || ip.filter(|ip| !ip.is_empty()).map(str::to_owned);
    let named = pod.or_else(service).or_else(|| names.first().cloned());
    named.or_else(address).unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the pod or the reserved identity of an endpoint, unless that is the world.
fn name(endpoint: &Endpoint) -> Option<String> {
    if !endpoint.pod_name.is_empty() {
        return Some(format!("{}/{}", endpoint.namespace, endpoint.pod_name));
    }
    let reserved = endpoint.labels.iter().find_map(|label| label.strip_prefix("reserved:"));
    reserved.filter(|name| !name.starts_with("world") && *name != "unknown").map(str::to_owned)
}

fn port(flow: &Flow, is_reply: bool) -> String {
    let of = |source: u32, destination: u32| if is_reply { source } else { destination };
    match flow.l4.as_ref().and_then(|l4| l4.protocol.as_ref()) {
        Some(Protocol::Tcp(tcp)) => format!("{}/TCP", of(tcp.source_port, tcp.destination_port)),
        Some(Protocol::Udp(udp)) => format!("{}/UDP", of(udp.source_port, udp.destination_port)),
        Some(Protocol::Sctp(sctp)) => format!("{}/SCTP", of(sctp.source_port, sctp.destination_port)),
        Some(Protocol::IcmPv4(_)) => "ICMPv4".to_owned(),
        Some(Protocol::IcmPv6(_)) => "ICMPv6".to_owned(),
        Some(Protocol::Vrrp(_)) => "VRRP".to_owned(),
        Some(Protocol::Igmp(_)) => "IGMP".to_owned(),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use hubble_api::flow::{CiliumEventType, Ip, Layer4, Policy, Tcp};

    use super::*;

    fn end_of(id: u32, pod: &str) -> Option<Endpoint> {
        Some(Endpoint { id, namespace: "shop".into(), pod_name: pod.into(), ..Endpoint::default() })
    }

    fn flow(kind: u8, verdict: Verdict, is_reply: bool) -> Flow {
        let (mut ports, mut ends) = ((40_000, 80), (end_of(7, "web"), end_of(0, "")));
        let mut ip = Ip { source: "10.0.0.1".into(), destination: "192.0.2.1".into(), ..Ip::default() };
        if is_reply {
            (ports, ends) = ((80, 40_000), (ends.1, ends.0));
            std::mem::swap(&mut ip.source, &mut ip.destination);
        }
        let tcp = Tcp { source_port: ports.0, destination_port: ports.1, flags: None };
        Flow {
            verdict: verdict.into(),
            event_type: Some(CiliumEventType { r#type: kind.into(), sub_type: 0 }),
            ip: Some(ip),
            l4: Some(Layer4 { protocol: Some(Protocol::Tcp(tcp)) }),
            source: ends.0,
            destination: ends.1,
            is_reply: Some(is_reply),
            ..Flow::default()
        }
    }

    fn rows(counts: &Counts) -> Vec<(String, u64, u64, &str)> {
        let sorted = counts.sorted().into_iter();
        sorted.map(|(key, row)| (key.join(" "), row.forwarded, row.dropped, &*row.rule)).collect()
    }

    #[test]
    fn flows_are_counted_by_pair_endpoint_and_rule() {
        let denied =
            Flow { drop_reason_desc: DropReason::PolicyDeny.into(), ..flow(1, Verdict::Dropped, false) };
        let policy = Policy {
            kind: "NetworkPolicy".into(),
            namespace: "shop".into(),
            name: "no".into(),
            ..Policy::default()
        };
        let verdict = Flow {
            egress_denied_by: vec![policy],
            event_type: Some(CiliumEventType { r#type: 5, sub_type: 0 }),
            ..denied.clone()
        };
        let all = [
            flow(4, Verdict::Forwarded, false),
            flow(4, Verdict::Forwarded, true),
            flow(5, Verdict::Forwarded, false),
            verdict,
            denied,
        ];
        let counts = |view| {
            let mut counts = Counts::new(view);
            all.iter().for_each(|flow| counts.add(flow));
            counts
        };
        let flows = counts(View::Flows);
        assert_eq!(
            rows(&flows),
            [("shop/web 192.0.2.1 80/TCP".to_owned(), 2, 1, "")],
            "replies are the client's"
        );
        assert_eq!(rows(&counts(View::Endpoints)), [("7 shop/web".to_owned(), 2, 1, "")]);
        let key = "POLICY_DENY shop/web 192.0.2.1 80/TCP".to_owned();
        assert_eq!(rows(&counts(View::Drops)), [(key, 0, 1, "NetworkPolicy/shop/no")]);
        let json = counts(View::Drops).json(9);
        assert_eq!((&json["rows"][0]["rule"], &json["flows"]), (&"NetworkPolicy/shop/no".into(), &5.into()));
        assert_eq!((json["rows"][0]["source"].as_str(), &json["view"]), (Some("shop/web"), &"drops".into()));
    }

    #[test]
    fn the_rows_of_the_last_interval_come_first() {
        let mut counts = Counts::new(View::Flows);
        let to = |name: &str| Flow {
            destination_names: vec![name.to_owned()],
            ..flow(4, Verdict::Forwarded, false)
        };
        (0..3).for_each(|_| counts.add(&to("old.test")));
        counts.tick();
        counts.add(&to("new.test"));
        counts.tick();
        let first = |counts: &Counts| counts.sorted()[0].0[1].clone();
        assert_eq!((first(&counts), counts.sorted()[0].1.recent), ("new.test".to_owned(), 1));
        counts.tick();
        assert_eq!(first(&counts), "old.test", "then the total decides");
    }

    #[test]
    fn rows_are_bounded_and_the_rest_is_one_row() {
        let mut counts = Counts::new(View::Flows);
        let to = |number: usize| Flow {
            destination_names: vec![number.to_string()],
            ..flow(4, Verdict::Forwarded, false)
        };
        (0..MAX_ROWS + 10).for_each(|number| counts.add(&to(number)));
        assert_eq!(counts.rows.len(), MAX_ROWS);
        assert_eq!(counts.rows[&vec![OTHERS.to_owned(); 3]].forwarded, 11);
        (0..IDLE).for_each(|_| counts.tick());
        counts.add(&to(MAX_ROWS + 1));
        counts.tick();
        assert_eq!(counts.rows.len(), 1, "those without flows have gone");
    }
}
