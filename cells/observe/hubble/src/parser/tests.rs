//! Flows of the events that Cilium's recorded flows were made of, field by field.

use std::net::IpAddr;

use hubble_api::flow::{Emitter, Layer4, Service, layer4};
use hubble_api::observer::{GetFlowsResponse, get_flows_response::ResponseTypes};
use prost_types::Timestamp;
use serde_json::Value;

use super::*;
use crate::names::{Local, Remote};
use crate::policies::Deciding;

/// Lines of `hubble observe -o json` against a Cilium 1.20 agent.
const SAMPLES: &str = include_str!("../../tests/samples/hubble_observe_json.txt");

/// The names of the node that the lines are from.
struct Recorded;

fn labels_of(app: &str) -> Vec<String> {
    vec![
        "gen:io.cilium.k8s.named-ports=http.TCP.8080".to_owned(),
        format!("k8s:app={app}"),
        "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=default".to_owned(),
        "k8s:io.cilium.k8s.policy.cluster=default".to_owned(),
        "k8s:io.kubernetes.pod.namespace=default".to_owned(),
    ]
}

impl Names for Recorded {
    fn endpoint(&self, address: IpAddr) -> Option<Local> {
        let (id, identity, pod) = match address.to_string().as_str() {
            "10.244.0.2" => (1772, 6126, "p1"),
            "10.244.0.67" => (1976, 2044, "p2"),
            "10.244.0.240" => (2350, 11463, "p3"),
            _ => return None,
        };
        let (namespace, pod, labels) = ("default".to_owned(), pod.to_owned(), labels_of(pod));
        let workloads = Vec::new();
        Some(Local { id, identity, namespace, pod, labels, workloads })
    }

    fn local(&self, id: u16) -> Option<Local> {
        let address = match id {
            1772 => [10, 244, 0, 2],
            _ => return None,
        };
        self.endpoint(address.into())
    }

    fn address(&self, _address: IpAddr) -> Option<Remote> {
        None
    }

    fn host(&self, _address: IpAddr) -> Option<Remote> {
        None
    }

    fn labels(&self, identity: u32) -> Vec<String> {
        match identity {
            0 => vec!["reserved:unknown".to_owned()],
            6126 => labels_of("p1"),
            2044 => labels_of("p2"),
            _ => Vec::new(),
        }
    }

    fn service(&self, _address: IpAddr, _port: u16) -> Option<Service> {
        None
    }

    fn dns_names(&self, endpoint: u16, address: IpAddr) -> Vec<String> {
        // p3 has looked up an address of the world.
        let is_known = endpoint == 2350 && address == IpAddr::from([192, 0, 2, 1]);
        is_known.then(|| "www.test".to_owned()).into_iter().collect()
    }

    fn cgroup(&self, id: u64) -> Option<[Option<IpAddr>; 2]> {
        (id == 9).then_some([Some([10, 244, 0, 2].into()), None])
    }

    fn link(&self, index: u32) -> Option<String> {
        match index {
            9 => Some("lxc66da2a01a005".to_owned()),
            13 => Some("lxcc4cdef55b95c".to_owned()),
            _ => None,
        }
    }

    fn deciding(&self, _packet: &Packet) -> Option<Deciding> {
        None
    }

    fn policy_texts(&self, cookie: u32) -> Vec<String> {
        (cookie == 7).then(|| "of the event".to_owned()).into_iter().collect()
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn mac_bytes(text: &Value) -> Vec<u8> {
    text.as_str().unwrap().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn transport(l4: &Value) -> (u8, Vec<u8>) {
    let port = |value: &Value| (number(value) as u16).to_be_bytes();
    if let Some(tcp) = l4.get("TCP") {
        const BITS: [(&str, u8); 5] = [("FIN", 1), ("SYN", 2), ("RST", 4), ("PSH", 8), ("ACK", 16)];
        let is = |name: &str| tcp["flags"][name].as_bool().unwrap_or_default();
        let flags = BITS.iter().filter(|(name, _)| is(name)).map(|(_, bit)| bit).sum();
        let mut header = [&port(&tcp["source_port"])[..], &port(&tcp["destination_port"])].concat();
        header.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        return (6, header);
    }
    (58, vec![number(&l4["ICMPv6"]["type"]) as u8, 0, 0, 0])
}

/// Returns the bytes of a recorded flow's packet.
fn packet_of(flow: &Value) -> Vec<u8> {
    let (protocol, transport) = transport(&flow["l4"]);
    let ip = &flow["IP"];
    // The address on the wire is the translated one.
    let source = ip.get("source_xlated").unwrap_or(&ip["source"]).as_str().unwrap();
    let addresses: [IpAddr; 2] =
        [source, ip["destination"].as_str().unwrap()].map(|text| text.parse().unwrap());
    let (kind, mut header) = match addresses[0].is_ipv4() {
        true => ([8, 0], vec![0x45, 0, 0, 20 + transport.len() as u8, 0, 0, 0, 0, 64, protocol, 0, 0]),
        false => ([0x86, 0xdd], vec![0x60, 0, 0, 0, 0, transport.len() as u8, protocol, 255]),
    };
    for address in addresses {
        match address {
            IpAddr::V4(address) => header.extend(address.octets()),
            IpAddr::V6(address) => header.extend(address.octets()),
        }
    }
    let ethernet = &flow["ethernet"];
    [mac_bytes(&ethernet["destination"]), mac_bytes(&ethernet["source"]), kind.to_vec(), header, transport]
        .concat()
}

/// Returns the event that a recorded flow was made of.
fn event_of<'a>(flow: &Value, packet: &'a [u8]) -> Event<'a> {
    let [source, destination] = ["source", "destination"].map(|side| &flow[side]);
    let label = |side: &Value| number(&side["identity"]) as u32;
    let id = |side: &Value| number(&side["ID"]) as u16;
    match number(&flow["event_type"]["type"]) {
        1 => Event::Drop(Drop {
            reason: number(&flow["event_type"]["sub_type"]) as u8,
            // A drop that has no local destination is one of a pod's first packets, which its own program reports.
            source: if id(destination) == 0 { 1772 } else { id(destination) },
            src_label: label(source),
            dst_label: label(destination),
            line: number(&flow["file"]["line"]) as u16,
            file: file::BPF_LXC,
            packet,
            ..Drop::default()
        }),
        4 => Event::Trace(Trace {
            point: trace::TO_LXC,
            source: id(destination),
            src_label: label(source),
            dst_label: label(destination),
            dst_id: id(destination),
            reason: match flow["trace_reason"].as_str().unwrap() {
                "NEW" => 0,
                "ESTABLISHED" => 1,
                "REPLY" => 2,
                other => panic!("{other}"),
            },
            ifindex: number(&flow["interface"]["index"]) as u32,
            orig_ip: Some(flow["IP"]["source"].as_str().unwrap().parse().unwrap()),
            packet,
            ..Trace::default()
        }),
        5 => Event::Verdict(monitor_events::Verdict {
            source: id(destination),
            remote_label: label(source),
            verdict: -(number(&flow["drop_reason"]) as i32),
            proto: 6,
            flags: 1,
            packet,
            ..monitor_events::Verdict::default()
        }),
        other => panic!("event {other}"),
    }
}

fn timestamp(text: &str) -> Timestamp {
    // All times of the samples have nine digits of nanoseconds; their seconds are checked as text below.
    let time: std::time::SystemTime = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds(text));
    let nanos = text[20..29].parse().unwrap();
    Timestamp { nanos, ..Timestamp::from(time) }
}

/// Returns the seconds of a time on 2026-11-21.
fn seconds(text: &str) -> u64 {
    const MIDNIGHT: u64 = 1_795_219_200;
    let [hours, minutes, seconds] = [11, 14, 17].map(|at| text[at..at + 2].parse::<u64>().unwrap());
    MIDNIGHT + hours * 3600 + minutes * 60 + seconds
}

#[test]
fn flows_are_those_of_recorded_lines() {
    let mut lines = 0;
    for line in SAMPLES.lines() {
        let recorded: Value = serde_json::from_str(line).unwrap();
        let expected = &recorded["flow"];
        let packet = packet_of(expected);
        let flow = parse(&event_of(expected, &packet), &Recorded).unwrap();
        let time = Some(timestamp(expected["time"].as_str().unwrap()));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let emitter = &expected["emitter"];
        let flow = Flow {
            time,
            uuid: text(&expected["uuid"]),
            emitter: Some(Emitter { name: text(&emitter["name"]), version: text(&emitter["version"]) }),
            node_name: text(&expected["node_name"]),
            node_labels: expected["node_labels"].as_array().unwrap().iter().map(text).collect(),
            ..flow
        };
        let node_name = text(&recorded["node_name"]);
        let response = GetFlowsResponse { response_types: Some(ResponseTypes::Flow(flow)), node_name, time };
        assert_eq!(hubble_api::to_json(&response), line);
        lines += 1;
    }
    assert!(lines > 5, "{lines}");
}

/// A TCP packet from p3 to p2.
fn tcp() -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    packet.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 244, 0, 240, 10, 244, 0, 67]);
    packet.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
    packet
}

fn verdict(verdict: i32, flags: u8) -> Flow {
    let packet = tcp();
    let event = monitor_events::Verdict {
        source: 1976,
        remote_label: 11463,
        verdict,
        flags,
        packet: &packet,
        ..Default::default()
    };
    parse(&Event::Verdict(event), &Recorded).unwrap()
}

#[test]
fn verdicts_are_allowed_denied_audited_or_redirected() {
    let both = |value, flags| {
        let flow = verdict(value, flags);
        (flow.verdict(), flow.is_reply, flow.drop_reason, flow.traffic_direction(), flow.policy_match_type)
    };
    use TrafficDirection::{Egress, Ingress};
    assert_eq!(both(0, 1 | 1 << 3), (Verdict::Forwarded, Some(false), 0, Ingress, 1));
    assert_eq!(both(-181, 2), (Verdict::Dropped, None, 181, Egress, 0));
    assert_eq!(both(i32::from(u16::to_be(15001)), 2), (Verdict::Redirected, Some(false), 0, Egress, 0));
    assert_eq!(both(0, 1 << 6 | 1), (Verdict::Audit, Some(false), 0, Ingress, 0));
    let flow = verdict(0, 2);
    // The programs know the identity of the remote side alone.
    assert_eq!((flow.source.unwrap().identity, flow.destination.unwrap().identity), (11463, 11463));
}

fn traced(source: u16, reason: u8, orig_ip: Option<IpAddr>) -> Flow {
    let packet = tcp();
    let trace =
        Trace { point: trace::FROM_LXC, source, reason, orig_ip, packet: &packet, ..Trace::default() };
    parse(&Event::Trace(trace), &Recorded).unwrap()
}

#[test]
fn the_direction_of_traces_is_that_of_the_connection() {
    let direction = |source, reason| traced(source, reason, None).traffic_direction();
    use TrafficDirection::{Egress, Ingress, Unknown};
    // p3 has id 2350, and is the sender.
    assert_eq!((direction(2350, 0), direction(2350, 2)), (Egress, Ingress));
    assert_eq!((direction(1976, 0), direction(1976, 2)), (Ingress, Egress));
    assert_eq!((direction(2350, trace::reason::UNKNOWN), direction(0, 0)), (Unknown, Unknown));
    let unknown = traced(2350, trace::reason::UNKNOWN, None);
    assert_eq!((unknown.is_reply, unknown.trace_reason()), (None, TraceReason::Unknown));
    let encrypted = traced(2350, trace::reason::ENCRYPTED, Some("0.0.0.0".parse().unwrap()));
    let ip = encrypted.ip.unwrap();
    assert_eq!((ip.encrypted, ip.source_xlated.as_str()), (true, ""));
}

#[test]
fn the_end_that_has_looked_up_an_address_names_the_other_end() {
    let mut packet = tcp();
    packet[30..34].copy_from_slice(&[192, 0, 2, 1]);
    let names = |packet: &[u8]| {
        let trace = Trace { point: trace::FROM_LXC, packet, ..Trace::default() };
        let flow = parse(&Event::Trace(trace), &Recorded).unwrap();
        (flow.source_names, flow.destination_names)
    };
    let name = vec!["www.test".to_owned()];
    assert_eq!(names(&packet), (vec![], name.clone()));
    // The reply, and a packet of a pod that has not looked it up.
    packet[26..30].copy_from_slice(&[192, 0, 2, 1]);
    packet[30..34].copy_from_slice(&[10, 244, 0, 240]);
    assert_eq!(names(&packet), (name, vec![]));
    packet[30..34].copy_from_slice(&[10, 244, 0, 67]);
    assert_eq!(names(&packet), (vec![], vec![]));
}

#[test]
fn a_drop_of_a_malformed_packet_is_a_flow_with_its_valid_headers() {
    let packet = &tcp()[..40];
    let drop = Drop { reason: 134, source: 2350, packet, file: 99, ..Drop::default() };
    let flow = parse(&Event::Drop(drop), &Recorded).unwrap();
    assert_eq!(flow.traffic_direction(), TrafficDirection::Egress);
    assert_eq!((flow.l4, flow.ip.unwrap().destination), (None, "10.244.0.67".to_owned()));
    assert_eq!((flow.summary.as_str(), flow.file.unwrap().name.as_str()), ("IPv4", "unknown(99)"));
}

#[test]
fn the_inner_packet_of_a_tunnel_is_the_flow() {
    let inner = tcp();
    let mut packet = vec![2, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0, 3, 8, 0];
    packet.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 192, 168, 0, 1, 192, 168, 0, 2]);
    packet.extend([0xc0, 1, 0x21, 0x18, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 5, 0]);
    packet.extend(&inner);
    let trace =
        Trace { point: trace::TO_OVERLAY, flags: event::flag::VXLAN, packet: &packet, ..Trace::default() };
    let flow = parse(&Event::Trace(trace), &Recorded).unwrap();
    assert_eq!(
        (flow.ip.unwrap().source, flow.summary),
        ("10.244.0.240".to_owned(), "TCP Flags: SYN".to_owned())
    );
    let tunnel = flow.tunnel.unwrap();
    assert_eq!((tunnel.protocol(), tunnel.vni), (tunnel::Protocol::Vxlan, 5));
    let udp =
        Layer4 { protocol: Some(layer4::Protocol::Udp(Udp { source_port: 0xc001, destination_port: 8472 })) };
    assert_eq!((tunnel.ip.unwrap().destination, tunnel.l4), ("192.168.0.2".to_owned(), Some(udp)));
}

#[test]
fn translations_at_sockets_are_flows_of_the_pod_with_the_cgroup() {
    use hubble_api::flow::SocketTranslationPoint as Point;
    let trace = |point, protocol, cgroup| {
        let address = [10, 244, 0, 67].into();
        let trace = monitor_events::SocketTrace { point, protocol, address, port: 80, cookie: 5, cgroup };
        parse(&Event::Socket(trace), &Recorded)
    };
    let flow = trace(2, 1, 9).unwrap();
    assert_eq!((flow.verdict(), flow.r#type(), &*flow.summary), (Verdict::Translated, FlowType::Sock, "TCP"));
    let pods = |flow: &Flow| [&flow.source, &flow.destination].map(|end| end.clone().unwrap().pod_name);
    assert_eq!(pods(&flow), ["p1", "p2"]);
    let tcp = layer4::Protocol::Tcp(Tcp { source_port: 0, destination_port: 80, flags: None });
    assert_eq!(flow.l4, Some(Layer4 { protocol: Some(tcp) }));
    assert_eq!((flow.socket_cookie, flow.cgroup_id), (5, 9));
    assert_eq!((flow.sock_xlate_point(), flow.is_reply), (Point::SockXlatePointPostDirectionFwd, None));
    assert_eq!(flow.event_type, event_type(7, 2));
    let reverse = trace(3, 2, 9).unwrap();
    assert_eq!((reverse.verdict(), pods(&reverse)), (Verdict::Traced, ["p2", "p1"].map(str::to_owned)));
    let udp = layer4::Protocol::Udp(Udp { source_port: 80, destination_port: 0 });
    assert_eq!(reverse.l4, Some(Layer4 { protocol: Some(udp) }));
    assert_eq!(trace(2, 1, 8), None, "of no pod");
    let unknown = trace(1, 0, 9).unwrap();
    assert_eq!((&*unknown.summary, unknown.l4), ("Unknown", None));
}

#[test]
fn captures_name_their_interface_or_port() {
    let packet = tcp();
    let flow = |id, arg| {
        let capture = Capture { id, args: [arg, 0], packet: &packet, ..Capture::default() };
        parse(&Event::Capture(capture), &Recorded).unwrap()
    };
    let delivery = flow(4, 9);
    assert_eq!(delivery.debug_capture_point(), DebugCapturePoint::DbgCaptureDelivery);
    assert_eq!(delivery.interface.unwrap().name, "lxc66da2a01a005");
    assert_eq!(flow(8, u16::to_be(10_001).into()).proxy_port, 10_001);
}

#[test]
fn debug_messages_have_their_endpoint_and_text() {
    let mut message = monitor_events::Debug { id: 3, source: 1772, hash: 9, args: [1, 2, 3] };
    let event = debug_event(&message, 1, &Recorded);
    let source = event.source.unwrap();
    assert_eq!((source.id, &*source.pod_name, source.identity, source.labels.len()), (1772, "p1", 6126, 5));
    assert_eq!((event.r#type, event.hash, event.cpu), (3, Some(9), Some(1)));
    assert_eq!((event.arg1, event.arg2, event.arg3), (Some(1), Some(2), Some(3)));
    assert_eq!(event.message, "Encapsulating to node 1 (0x1) from seclabel 2");
    message.source = 7;
    let unknown = Some(Endpoint { id: 7, ..Endpoint::default() });
    assert_eq!(debug_event(&message, 1, &Recorded).source, unknown);
    message.source = 0;
    assert_eq!(debug_event(&message, 1, &Recorded).source, None);
}

/// A DNS query of p1 to p2, and its answer.
fn dns_records() -> [monitor_events::record::Record; 2] {
    use monitor_events::record::{
        Contents, DNS_PROXY, DnsRecord, ObservationPoint, Party, Record, RecordKind, RecordVerdict,
    };
    let party = |id: u64, address: [u8; 4], port, identity| Party {
        id,
        address: Some(address.into()),
        port,
        identity,
        labels: vec![
            labels::Label::parse("k8s:io.cilium.k8s.policy.cluster=east"),
            labels::Label::parse("k8s:app=x"),
        ],
    };
    let query = DnsRecord {
        query: "www.test.".to_owned(),
        source: DNS_PROXY.to_owned(),
        qtypes: vec![1, 28],
        ..DnsRecord::default()
    };
    let request = Record {
        kind: RecordKind::Request,
        timestamp: "2026-11-21T12:05:29.5Z".to_owned(),
        node: Default::default(),
        point: ObservationPoint::Egress,
        source: party(1772, [10, 244, 0, 2], 40_000, 6126),
        destination: party(0, [10, 244, 0, 9], 53, 2044),
        is_ipv6: false,
        verdict: RecordVerdict::Denied,
        info: String::new(),
        metadata: Vec::new(),
        protocol: 17,
        contents: Contents::Dns(query.clone()),
    };
    let answer = DnsRecord {
        ips: vec![[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
        ttl: 30,
        cnames: vec!["a.test.".to_owned()],
        answer_types: vec![5, 1, 1],
        ..query
    };
    let response = Record {
        kind: RecordKind::Response,
        source: request.destination.clone(),
        destination: request.source.clone(),
        verdict: RecordVerdict::Forwarded,
        contents: Contents::Dns(answer),
        ..request.clone()
    };
    [request, response]
}

#[test]
fn records_of_dns_are_flows_of_the_proxy() {
    use hubble_api::flow::L7FlowType;
    use hubble_api::flow::layer7::Record;
    let [request, mut response] = dns_records();
    let mut records = Records::default();
    let flow = records.parse(&request, &Recorded);
    assert_eq!((flow.verdict(), flow.is_reply, flow.drop_reason_desc), (Verdict::Dropped, Some(false), 0));
    assert_eq!((flow.r#type(), flow.traffic_direction()), (FlowType::L7, TrafficDirection::Egress));
    assert_eq!(flow.event_type, event_type(129, 0));
    assert_eq!(flow.summary, "DNS Query www.test. A,AAAA");
    let udp = layer4::Protocol::Udp(Udp { source_port: 40_000, destination_port: 53 });
    assert_eq!(flow.l4, Some(Layer4 { protocol: Some(udp) }));
    let source = flow.source.unwrap();
    assert_eq!((source.id, source.identity, &*source.pod_name), (1772, 6126, "p1"));
    assert_eq!(
        (&*source.namespace, &*source.cluster_name, &*source.labels[0]),
        ("default", "east", "k8s:app=x")
    );
    assert_eq!(flow.destination.unwrap().pod_name, "", "neither local nor in the ipcache");

    let flow = records.parse(&response, &Recorded);
    assert_eq!((flow.verdict(), flow.is_reply, flow.reply), (Verdict::Forwarded, Some(true), true));
    let l7 = flow.l7.unwrap();
    let Some(Record::Dns(dns)) = &l7.record else { panic!("{l7:?}") };
    assert_eq!((l7.r#type(), l7.latency_ns, dns.ttl, dns.rcode), (L7FlowType::Response, 0, 30, 0));
    assert_eq!(
        (&dns.ips[..], &dns.rrtypes[..]),
        (&["192.0.2.1", "192.0.2.2"].map(String::from)[..], &["CNAME", "A", "A"].map(String::from)[..])
    );
    let summary = "DNS Answer \"192.0.2.1,192.0.2.2\" CNAMEs: \"a.test.\" TTL: 30 (Proxy www.test. A,AAAA)";
    assert_eq!(flow.summary, summary);

    if let monitor_events::record::Contents::Dns(dns) = &mut response.contents {
        (dns.rcode, dns.ttl) = (3, u32::MAX);
        dns.ips.clear();
    }
    let summary = "DNS Answer RCode: Non-Existent Domain TTL: 4294967295 (Proxy www.test. A,AAAA)";
    assert_eq!(records.parse(&response, &Recorded).summary, summary);
}

#[test]
fn responses_have_latency_and_trace_of_their_request_and_headers_are_redacted() {
    use hubble_api::flow::layer7::Record;
    use monitor_events::record::{Contents, Headers, HttpRecord};
    let [mut request, mut response] = dns_records();
    let id = "7b1f0c9e-4d5a-4c3b-9f59-2f1f6f0c9a11";
    let headers = |all: &[(&str, &str)]| -> Headers {
        all.iter().map(|(key, value)| ((*key).to_owned(), vec![(*value).to_owned()])).collect()
    };
    let http = |code, headers| {
        let (method, url) = ("GET".to_owned(), "http://u:p@shop.test/a?b".to_owned());
        let protocol = "HTTP/1.1".to_owned();
        Contents::Http(HttpRecord { code, method, url, protocol, headers, ..HttpRecord::default() })
    };
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    request.contents =
        http(0, headers(&[("X-Request-Id", id), ("Traceparent", &parent), ("Cookie", "secret")]));
    response.contents = http(200, headers(&[("X-Request-Id", id)]));
    response.timestamp = "2026-11-21T12:05:29.5046Z".to_owned();
    let mut records = Records::default();
    let trace_of = |flow: &Flow| flow.trace_context.clone().map(|context| context.parent.unwrap().trace_id);
    let flow = records.parse(&request, &Recorded);
    assert_eq!(flow.summary, "HTTP/1.1 GET http://u:HUBBLE_REDACTED@shop.test/a?b");
    assert_eq!(trace_of(&flow).as_deref(), Some(trace));
    let Some(Record::Http(http)) = flow.l7.unwrap().record else { panic!() };
    assert_eq!(http.headers.iter().map(|header| &*header.value).collect::<Vec<_>>(), ["secret", &parent, id]);
    let flow = records.parse(&response, &Recorded);
    assert_eq!(flow.summary, "HTTP/1.1 200 5ms (GET http://u:HUBBLE_REDACTED@shop.test/a?b)");
    assert_eq!((flow.l7.as_ref().unwrap().latency_ns, trace_of(&flow).as_deref()), (4_600_000, Some(trace)));
    // A response before its request has a negative time.
    response.timestamp = "2026-11-21T12:05:28Z".to_owned();
    assert_eq!(records.parse(&response, &Recorded).l7.unwrap().latency_ns, 0);
    // Requests that are never answered replace the oldest ones.
    for number in 0..10_000 {
        let mut other = request.clone();
        let Contents::Http(http) = &mut other.contents else { panic!() };
        http.headers.insert("X-Request-Id".to_owned(), vec![number.to_string()]);
        records.parse(&other, &Recorded);
    }
    assert_eq!(trace_of(&records.parse(&response, &Recorded)), None);
}

/// The recorded names, with a policy of p2 that decides on packets of p3.
struct Policed {
    packet: Packet,
    deciding: Deciding,
}

impl Names for Policed {
    fn endpoint(&self, address: IpAddr) -> Option<Local> {
        Recorded.endpoint(address)
    }

    fn local(&self, id: u16) -> Option<Local> {
        Recorded.local(id)
    }

    fn address(&self, address: IpAddr) -> Option<Remote> {
        Recorded.address(address)
    }

    fn host(&self, address: IpAddr) -> Option<Remote> {
        Recorded.host(address)
    }

    fn labels(&self, identity: u32) -> Vec<String> {
        Recorded.labels(identity)
    }

    fn service(&self, address: IpAddr, port: u16) -> Option<Service> {
        Recorded.service(address, port)
    }

    fn dns_names(&self, endpoint: u16, address: IpAddr) -> Vec<String> {
        Recorded.dns_names(endpoint, address)
    }

    fn cgroup(&self, id: u64) -> Option<[Option<IpAddr>; 2]> {
        Recorded.cgroup(id)
    }

    fn link(&self, index: u32) -> Option<String> {
        Recorded.link(index)
    }

    fn deciding(&self, packet: &Packet) -> Option<Deciding> {
        assert_eq!(*packet, self.packet);
        Some(self.deciding.clone())
    }

    fn policy_texts(&self, cookie: u32) -> Vec<String> {
        Recorded.policy_texts(cookie)
    }
}

#[test]
fn verdicts_name_the_rules_that_decide_alike() {
    use hubble_api::flow::Policy;
    let rule = |name: &str| Policy { name: name.to_owned(), revision: 3, ..Policy::default() };
    let deciding = |allows| Deciding { allows, policies: vec![rule("web")], log: vec!["text".to_owned()] };
    let flow = |bytes: &[u8], verdict: i32, flags: u8, protocol: u8, port: u16, allows| {
        let packet = Packet { endpoint: 1976, is_ingress: flags & 3 == 1, peer: 11463, protocol, port };
        let names = Policed { packet, deciding: deciding(allows) };
        let (source, remote_label) = (1976, 11463);
        let event = monitor_events::Verdict {
            source,
            remote_label,
            verdict,
            flags,
            packet: bytes,
            ..Default::default()
        };
        let flow = parse(&Event::Verdict(event), &names).unwrap();
        let lists = [
            &flow.ingress_allowed_by,
            &flow.ingress_denied_by,
            &flow.egress_allowed_by,
            &flow.egress_denied_by,
        ];
        assert!(lists.iter().all(|list| list.is_empty() || **list == [rule("web")]));
        (lists.map(|list| list.len()), flow.policy_log.len())
    };
    let tcp = tcp();
    let none = ([0; 4], 0);
    assert_eq!(flow(&tcp, 0, 1, 6, 80, true), ([1, 0, 0, 0], 1));
    assert_eq!(flow(&tcp, i32::from(u16::to_be(15001)), 2, 6, 80, true), ([0, 0, 1, 0], 1));
    assert_eq!(flow(&tcp, -181, 1, 6, 80, false), ([0, 1, 0, 0], 1));
    assert_eq!(flow(&tcp, 0, 1 << 6 | 2, 6, 80, false), ([0, 0, 0, 1], 1), "audited");
    // The policy has been replaced since by one that decides otherwise.
    assert_eq!(flow(&tcp, 0, 1, 6, 80, false), none);
    assert_eq!(flow(&tcp, -133, 1, 6, 80, true), none);
    // A drop for another reason.
    assert_eq!(flow(&tcp, -189, 1, 6, 80, false), none);
    let mut port_0 = tcp.clone();
    port_0[36..38].copy_from_slice(&[0, 0]);
    assert_eq!(flow(&port_0, 0, 1, 6, 0, true), none);
    let mut icmp = tcp[..34].to_vec();
    (icmp[17], icmp[23]) = (28, 1);
    let echo = |kind: u8| [&icmp[..], &[kind, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(flow(&echo(8), 0, 1, 1, 8, true), ([1, 0, 0, 0], 1));
    assert_eq!(flow(&echo(0), 0, 1, 1, 0, true), none, "an echo reply has type 0");
    assert_eq!(flow(&tcp[..34], 0, 1, 0, 0, true), none, "a fragment");
}

#[test]
fn the_log_of_a_verdict_is_that_of_its_event_not_of_the_policy_since() {
    let tcp = tcp();
    let log = |cookie: u32, verdict: i32, allows: bool| {
        let packet = Packet { endpoint: 1976, is_ingress: true, peer: 11463, protocol: 6, port: 80 };
        let deciding =
            Deciding { allows, log: vec!["of the policy since".to_owned()], ..Deciding::default() };
        let event = monitor_events::Verdict {
            source: 1976,
            remote_label: 11463,
            verdict,
            flags: 1,
            cookie,
            packet: &tcp,
            ..Default::default()
        };
        parse(&Event::Verdict(event), &Policed { packet, deciding }).unwrap().policy_log
    };
    assert_eq!(log(7, 0, true), ["of the event"]);
    assert_eq!(log(7, 0, false), ["of the event"], "the policy since denies");
    assert_eq!(log(0, 0, true), ["of the policy since"], "an entry without a text, or of an older agent");
    assert_eq!(log(8, 0, true), ["of the policy since"], "released");
    assert!(log(8, 0, false).is_empty());
    assert!(log(7, -189, false).is_empty(), "a drop for another reason");
}
