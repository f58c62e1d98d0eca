//! A flow as an occurrence of an event: its pod and its message.

use hubble_api::flow::layer4::Protocol;
use hubble_api::flow::{DropReason, Endpoint, Flow, TrafficDirection, Verdict};
use prost_types::Timestamp;

/// A packet of a pod of this node that was dropped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Occurrence {
    /// The pod's endpoint.
    pub(crate) endpoint: u32,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) message: String,
    pub(crate) time: Timestamp,
}

impl Occurrence {
    /// Returns the occurrence that a flow is, for these reasons. `policies` returns the sentence of the policies of an
    /// endpoint, of one direction.
    pub(crate) fn of(
        flow: &Flow,
        reasons: &[DropReason],
        policies: impl FnOnce(u32, bool) -> String,
    ) -> Option<Self> {
        let reason = flow.drop_reason_desc();
        if flow.verdict() != Verdict::Dropped || !reasons.contains(&reason) {
            return None;
        }
        let is_ingress = flow.traffic_direction() == TrafficDirection::Ingress;
        let (ours, other) = match is_ingress {
            true => (flow.destination.as_ref()?, flow.source.as_ref()),
            false => (flow.source.as_ref()?, flow.destination.as_ref()),
        };
        if ours.pod_name.is_empty() {
            return None;
        }
        let ip = flow.ip.as_ref().map_or("", |ip| if is_ingress { &ip.source } else { &ip.destination });
        let (direction, word) = if is_ingress { ("Incoming", "from") } else { ("Outgoing", "to") };
        let reason = reason.as_str_name().to_ascii_lowercase();
        let other = peer(other, ip);
        let mut message = format!("{direction} packet dropped ({reason}) {word} {other}");
        if let Some(protocol) = flow.l4.as_ref().and_then(|l4| l4.protocol.as_ref()) {
            message += &format!(" {}", protocol_text(protocol));
        }
        Some(Self {
            endpoint: ours.id,
            namespace: ours.namespace.clone(),
            pod: ours.pod_name.clone(),
            message: message + "." + &policies(ours.id, is_ingress),
            time: flow.time.unwrap_or_default(),
        })
    }
}

/// Returns the other side: its pod or reserved name with the address, else the address.
fn peer(endpoint: Option<&Endpoint>, ip: &str) -> String {
    let name = endpoint.and_then(|endpoint| match endpoint.pod_name.as_str() {
        "" => endpoint.labels.iter().find_map(|label| label.strip_prefix("reserved:")).map(str::to_owned),
        pod => Some(format!("{}/{pod}", endpoint.namespace)),
    });
    match (name, ip) {
        (Some(name), "") => name,
        (Some(name), ip) => format!("{name} ({ip})"),
        (None, "") => "an unknown address".to_owned(),
        (None, ip) => ip.to_owned(),
    }
}

fn protocol_text(protocol: &Protocol) -> String {
    match protocol {
        Protocol::Tcp(tcp) => format!("TCP/{}", tcp.destination_port),
        Protocol::Udp(udp) => format!("UDP/{}", udp.destination_port),
        Protocol::Sctp(_) => "SCTP".to_owned(),
        Protocol::IcmPv4(_) => "ICMPv4".to_owned(),
        Protocol::IcmPv6(_) => "ICMPv6".to_owned(),
        Protocol::Vrrp(_) => "VRRP".to_owned(),
        Protocol::Igmp(_) => "IGMP".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use hubble_api::flow::{Ip, Layer4, Tcp};

    use super::*;

    fn endpoint(id: u32, pod: &str, labels: &[&str]) -> Option<Endpoint> {
        let namespace = if pod.is_empty() { "" } else { "shop" }.to_owned();
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        Some(Endpoint { id, namespace, pod_name: pod.to_owned(), labels, ..Endpoint::default() })
    }

    fn flow(direction: TrafficDirection) -> Flow {
        let tcp = Tcp { source_port: 40_000, destination_port: 80, ..Tcp::default() };
        let ip = Ip { source: "10.0.0.1".into(), destination: "192.0.2.7".into(), ..Ip::default() };
        Flow {
            verdict: Verdict::Dropped.into(),
            drop_reason_desc: DropReason::PolicyDenied.into(),
            traffic_direction: direction.into(),
            source: endpoint(7, "web", &["k8s:app=web"]),
            destination: endpoint(0, "", &["cidr:192.0.2.0/24", "reserved:world"]),
            ip: Some(ip),
            l4: Some(Layer4 { protocol: Some(Protocol::Tcp(tcp)) }),
            ..Flow::default()
        }
    }

    fn message(flow: &Flow) -> Option<String> {
        Occurrence::of(flow, &[DropReason::PolicyDenied], |_, _| String::new()).map(|found| found.message)
    }

    #[test]
    fn messages_name_the_other_side_and_the_protocol() {
        let out = flow(TrafficDirection::Egress);
        let text = "Outgoing packet dropped (policy_denied) to world (192.0.2.7) TCP/80.";
        assert_eq!(message(&out).as_deref(), Some(text));
        // Cilium treats a flow without a direction so, too.
        assert_eq!(message(&flow(TrafficDirection::Unknown)).as_deref(), Some(text));

        let mut into = flow(TrafficDirection::Ingress);
        (into.source, into.destination) = (endpoint(0, "db", &[]), endpoint(9, "web", &[]));
        let text = "Incoming packet dropped (policy_denied) from shop/db (10.0.0.1) TCP/80.";
        assert_eq!(message(&into).as_deref(), Some(text));
        let policies = |endpoint: u32, is_ingress: bool| format!(" {endpoint} {is_ingress}");
        let found = Occurrence::of(&into, &[DropReason::PolicyDenied], policies).unwrap();
        assert_eq!((found.endpoint, found.message), (9, format!("{text} 9 true")));
    }

    #[test]
    fn later_fragments_and_unknown_sides_have_a_message() {
        let mut bare = flow(TrafficDirection::Egress);
        (bare.l4, bare.destination) = (None, None);
        let text = "Outgoing packet dropped (policy_denied) to 192.0.2.7.";
        assert_eq!(message(&bare).as_deref(), Some(text));
        bare.ip = None;
        let text = "Outgoing packet dropped (policy_denied) to an unknown address.";
        assert_eq!(message(&bare).as_deref(), Some(text));
    }

    #[test]
    fn other_flows_are_none() {
        let mut forwarded = flow(TrafficDirection::Egress);
        forwarded.verdict = Verdict::Forwarded.into();
        let mut other_reason = flow(TrafficDirection::Egress);
        other_reason.drop_reason_desc = DropReason::CtUnknownL4Protocol.into();
        // The pod is of another node, the side of this one is a host.
        let foreign = flow(TrafficDirection::Ingress);
        for flow in [forwarded, other_reason, foreign] {
            assert_eq!(message(&flow), None, "{flow:?}");
        }
    }
}
