//! Lines as the real Cilium has printed them (`tests/samples`), of events that are built from their fields.

use super::*;
use crate::gob;

const MONITOR: &str = include_str!("../../tests/samples/monitor.txt");
const MONITOR_JSON: &str = include_str!("../../tests/samples/monitor_j.txt");

/// An ICMP echo over Ethernet as in the samples: 98 bytes, and two of the kernel's padding.
struct Echo {
    src_mac: [u8; 6],
    dst_mac: [u8; 6],
    id: u16,
    df: bool,
    checksum: u16,
    src: [u8; 4],
    dst: [u8; 4],
    is_reply: bool,
    icmp_checksum: u16,
    icmp_id: u16,
}

impl Echo {
    fn bytes(&self) -> Vec<u8> {
        let mut out = [self.dst_mac, self.src_mac].concat();
        out.extend([8, 0, 0x45, 0, 0, 84]);
        out.extend(self.id.to_be_bytes());
        out.extend([if self.df { 0x40 } else { 0 }, 0, 63, 1]);
        out.extend(self.checksum.to_be_bytes());
        out.extend(self.src);
        out.extend(self.dst);
        out.extend([if self.is_reply { 0 } else { 8 }, 0]);
        out.extend(self.icmp_checksum.to_be_bytes());
        out.extend(self.icmp_id.to_be_bytes());
        out.extend([0, 1]);
        out.resize(98, 0x41);
        out.extend([0xaa, 0xbb]);
        out
    }
}

fn request() -> Echo {
    Echo {
        src_mac: [0xc6, 0x79, 0x43, 0xb2, 0x7a, 0xc9],
        dst_mac: [0xba, 0xaa, 0xc5, 0xd2, 0x58, 0x0d],
        id: 27,
        df: true,
        checksum: 9570,
        src: [10, 244, 0, 2],
        dst: [10, 244, 0, 67],
        is_reply: false,
        icmp_checksum: 19204,
        icmp_id: 2935,
    }
}

fn reply() -> Echo {
    Echo {
        src_mac: [0x9e, 0x89, 0xf1, 0x1e, 0xb2, 0x5d],
        dst_mac: [0x16, 0x97, 0x50, 0x2b, 0x24, 0x89],
        id: 49770,
        df: false,
        checksum: 41746,
        src: [10, 244, 0, 67],
        dst: [10, 244, 0, 2],
        is_reply: true,
        icmp_checksum: 21252,
        icmp_id: 2935,
    }
}

fn denied() -> Echo {
    Echo {
        id: 15407,
        checksum: 59487,
        src: [10, 244, 0, 240],
        icmp_checksum: 61320,
        icmp_id: 2936,
        ..request()
    }
}

/// The common header of events with packets.
fn header(kind: u8, subtype: u8, source: u16, version: u8) -> Vec<u8> {
    let mut out = vec![kind, subtype];
    out.extend(source.to_ne_bytes());
    out.extend(0_u32.to_ne_bytes());
    out.extend(98_u32.to_ne_bytes());
    out.extend(98_u16.to_ne_bytes());
    out.extend([version, 0]);
    out
}

struct TraceOf {
    source: u16,
    labels: (u32, u32),
    reason: u8,
    ifindex: u32,
    orig_ip: [u8; 4],
}

fn trace(of: &TraceOf, packet: &[u8]) -> Vec<u8> {
    let mut out = header(4, 0, of.source, 2);
    out.extend(of.labels.0.to_ne_bytes());
    out.extend(of.labels.1.to_ne_bytes());
    out.extend(of.source.to_ne_bytes());
    out.extend([of.reason, 0]);
    out.extend(of.ifindex.to_ne_bytes());
    out.extend(of.orig_ip);
    out.resize(56, 0);
    out.extend(packet);
    out
}

fn verdict(remote: u32, verdict: i32, match_type: u8, packet: &[u8]) -> Vec<u8> {
    let mut out = header(5, 0, 1976, 1);
    out.extend(remote.to_ne_bytes());
    out.extend(verdict.to_ne_bytes());
    out.extend([0, 0, 1, 1 | match_type << 3]);
    out.resize(40, 0);
    out.extend(packet);
    out
}

fn dropped(packet: &[u8]) -> Vec<u8> {
    let mut out = header(1, 133, 1976, 3);
    out.extend(11463_u32.to_ne_bytes());
    out.extend(2044_u32.to_ne_bytes());
    out.extend(1976_u32.to_ne_bytes());
    out.extend(2421_u16.to_ne_bytes());
    out.extend([2, 0]);
    out.extend(13_u32.to_ne_bytes());
    out.resize(48, 0);
    out.extend(packet);
    out
}

/// The events of the samples in their order.
fn events() -> [Vec<u8>; 5] {
    let to_pod =
        TraceOf { source: 1976, labels: (6126, 2044), reason: 0, ifindex: 13, orig_ip: [10, 244, 0, 2] };
    let to_peer =
        TraceOf { source: 1772, labels: (2044, 6126), reason: 2, ifindex: 11, orig_ip: [10, 244, 0, 67] };
    [
        verdict(6126, 0, 1, &request().bytes()),
        trace(&to_pod, &request().bytes()),
        trace(&to_peer, &reply().bytes()),
        verdict(11463, -133, 0, &denied().bytes()),
        dropped(&denied().bytes()),
    ]
}

fn printer(format: Format) -> Printer {
    let links = [(13, "lxcc1a86b6221ba"), (11, "lxc66da2a01a005")];
    let links: BTreeMap<u32, String> = links.map(|(index, name)| (index, name.to_owned())).into();
    Printer { format, links: Box::new(links), ..Printer::default() }
}

/// The lines of a sample below its three lines of greeting.
fn sample(text: &str) -> Vec<&str> {
    text.lines().skip(3).filter(|line| !line.is_empty()).collect()
}

#[test]
fn lines_are_those_of_cilium() {
    let printer = printer(Format::Brief);
    let ours: Vec<String> =
        events().iter().filter_map(|event| printer.event(event, 1, &Filter::default())).collect();
    let ours = ours.concat();
    assert_eq!(ours.lines().collect::<Vec<_>>(), sample(MONITOR));
}

#[test]
fn json_is_that_of_cilium() {
    let printer = printer(Format::Json);
    let ours: Vec<String> =
        events().iter().filter_map(|event| printer.event(event, 1, &Filter::default())).collect();
    let ours = ours.concat();
    for (ours, theirs) in ours.lines().zip(sample(MONITOR_JSON)) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.lines().count(), 5);
}

#[test]
fn types_and_endpoints_choose_events() {
    let printer = printer(Format::Brief);
    let chosen = |filter: &Filter| -> Vec<usize> {
        let events = events();
        let numbered = events.iter().enumerate();
        numbered.filter_map(|(number, event)| printer.event(event, 0, filter).map(|_| number)).collect()
    };
    assert_eq!(chosen(&Filter { kinds: vec![Kind::Drop], ..Filter::default() }), [4]);
    assert_eq!(chosen(&Filter { kinds: vec![Kind::Drop, Kind::Trace], ..Filter::default() }), [1, 2, 4]);
    assert_eq!(chosen(&Filter { from: vec![1772], ..Filter::default() }), [2]);
    assert_eq!(chosen(&Filter { to: vec![1976], ..Filter::default() }), [1, 4]);
    assert_eq!(chosen(&Filter { related: vec![1772, 5], ..Filter::default() }), [2]);
    assert_eq!(chosen(&Filter { from: vec![1772], to: vec![1976], ..Filter::default() }), [0; 0]);
}

#[test]
fn losses_and_notifications_have_their_lines() {
    let printer = printer(Format::Brief);
    let lost = Payload { kind: LOST, lost: 7, cpu: 1, data: Vec::new() };
    assert_eq!(printer.payload(&lost, &Filter::default()).unwrap(), "CPU 01: Lost 7 events\n");
    let notify = gob::agent_notify(7, r#"{"id":5}"#);
    let line = printer.event(&notify, 0, &Filter::default()).unwrap();
    assert_eq!(line, ">> Endpoint created: {\"id\":5}\n");
    let json = self::printer(Format::Json).event(&notify, 0, &Filter::default()).unwrap();
    assert_eq!(json, "{\"type\":\"agent\",\"subtype\":\"Endpoint created\",\"message\":{\"id\":5}}\n");
    let unknown = printer.event(&[77, 1, 2], 0, &Filter::default()).unwrap();
    assert_eq!(unknown, "CPU 00: Unknown event: [77 1 2]\n");
    let short = printer.event(&[1, 2, 3], 0, &Filter::default()).unwrap();
    assert_eq!(short, "cannot decode message type '1': expected at least 36 but got 3\n");
}

#[test]
fn text_of_the_agent_cannot_control_the_terminal() {
    let notify = gob::agent_notify(7, "{\"pod\":\"\u{1b}[2J\r\n\u{202e}x\"}");
    for format in [Format::Brief, Format::Debug, Format::Json] {
        let line = printer(format).event(&notify, 0, &Filter::default()).unwrap();
        assert!(line.trim_end_matches('\n').chars().all(|c| !c.is_control() && c != '\u{202e}'), "{line:?}");
    }
    let links = Box::new(BTreeMap::from([(13, "lxc\u{1b}[2J".to_owned())]));
    let line = Printer { links, ..Printer::default() }.event(&events()[1], 0, &Filter::default()).unwrap();
    assert!(line.contains("ifindex lxc\\u001b[2J orig-ip"), "{line}");
}

#[test]
fn a_verdict_has_the_texts_of_its_policies_if_they_are_known() {
    let mut event = verdict(6126, 0, 1, &request().bytes());
    event[32..36].copy_from_slice(&7_u32.to_ne_bytes());
    let line = |texts: &[(u32, &[&str])]| {
        let texts =
            texts.iter().map(|(id, list)| (*id, list.iter().map(|text| (*text).to_owned()).collect()));
        let texts: BTreeMap<u32, Vec<String>> = texts.collect();
        Printer { texts: Box::new(texts), ..printer(Format::Brief) }
            .event(&event, 1, &Filter::default())
            .unwrap()
    };
    let without = printer(Format::Brief).event(&events()[0], 1, &Filter::default()).unwrap();
    assert_eq!(line(&[(8, &["another"])]), without, "the line is Cilium's");
    let with = format!("{}, log \"to web\", log \"\\u{{202e}}\"\n", without.trim_end());
    assert_eq!(line(&[(7, &["to web", "\u{202e}"])]), with, "it cannot control the terminal");
}

#[test]
fn older_versions_are_read() {
    let mut old = dropped(&[]);
    (old[14], old[40]) = (1, 0);
    old.truncate(36);
    let printer = printer(Format::Brief);
    let line = printer.event(&old, 0, &Filter::default()).unwrap();
    assert!(line.ends_with("identity 11463->2044: [unknown]\n"), "{line}");
    old[14] = 4;
    let line = printer.event(&old, 0, &Filter::default()).unwrap();
    assert_eq!(line, "cannot decode message type '1': unrecognized event version 4\n");
}

#[test]
fn tunnelled_packets_are_their_inner_flow() {
    let inner = request().bytes();
    let mut outer = [request().dst_mac, request().src_mac].concat();
    let udp_len = 8 + 8 + inner.len();
    outer.extend([8, 0, 0x45, 0]);
    outer.extend((20 + udp_len as u16).to_be_bytes());
    outer.extend([0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    outer.extend(4000_u16.to_be_bytes());
    outer.extend(8472_u16.to_be_bytes());
    outer.extend((udp_len as u16).to_be_bytes());
    outer.extend([0, 0, 8, 0, 0, 0, 0, 7, 0xfc, 0]);
    outer.extend(&inner);
    let mut event = dropped(&outer);
    event[36] = 4;
    let line = printer(Format::Brief).event(&event, 0, &Filter::default()).unwrap();
    let expected =
        ": 10.244.0.2 -> 10.244.0.67 icmp EchoRequest [tunnel 192.0.2.1:4000 -> 192.0.2.2:8472 vxlan]\n";
    assert!(line.ends_with(expected), "{line}");
    let json = printer(Format::Json).event(&event, 0, &Filter::default()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["summary"]["l3"]["dst"], "10.244.0.67");
    assert_eq!(json["summary"]["tunnel"]["l4"]["dst"], "8472");
    assert!(json["summary"]["tunnel"]["vxlan"].as_str().unwrap().contains("VNI=2044"));
}

#[test]
fn the_long_form_has_layers_and_hexadecimal_numbers_if_asked() {
    let event = &events()[4];
    let mut printer = printer(Format::Debug);
    let text = printer.event(event, 1, &Filter::default()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "-".repeat(78));
    assert_eq!(
        lines[1],
        "CPU 01: MARK 0x0 FROM 1976 DROP: 98 bytes, reason Policy denied, identity 11463->2044, to endpoint 1976"
    );
    assert!(lines[2].starts_with("Ethernet\t{Contents=[..14..] Payload=[..86..] "), "{text}");
    assert_eq!(lines.len(), 5);
    printer.hex = true;
    let text = printer.event(event, 1, &Filter::default()).unwrap();
    let first = "00000000  ba aa c5 d2 58 0d c6 79  43 b2 7a c9 08 00 45 00  |....X..yC.z...E.|";
    assert_eq!(text.lines().nth(2), Some(first));
}

#[test]
fn translations_at_sockets_are_lines_of_the_verbose_form() {
    use datapath_abi::Pod as _;
    use datapath_abi::event::{TRACE_SOCK, TraceSockNotify, sock_protocol, xlate};
    let event = TraceSockNotify {
        kind: TRACE_SOCK,
        point: xlate::POST_FWD,
        protocol: sock_protocol::TCP,
        dport: 8080,
        cookie: 77,
        cgroup: 4711,
        address: [u32::from_ne_bytes([10, 244, 0, 67]), 0, 0, 0],
        ..TraceSockNotify::default()
    };
    let line = |format, event: &TraceSockNotify| {
        printer(format).event(event.as_bytes(), 1, &Filter::default()).unwrap_or_default()
    };
    let expected =
        "CPU 01: [post-xlate-fwd] cgroup_id: 4711 sock_cookie: 77, dst [10.244.0.67]:8080 proto tcp\n";
    assert_eq!(line(Format::Verbose, &event), expected);
    let ipv6 =
        TraceSockNotify { point: xlate::PRE_REV, is_ipv6: 1, address: [0, 0, 0, 1_u32.to_be()], ..event };
    let expected = "CPU 01: [pre-xlate-rev] cgroup_id: 4711 sock_cookie: 77, dst [::1]:8080 proto tcp\n";
    assert_eq!(line(Format::Verbose, &ipv6), expected);
    for format in [Format::Brief, Format::Debug, Format::Json] {
        assert_eq!(line(format, &event), "", "as in Cilium");
    }
}

#[test]
fn records_of_proxies_have_their_lines_and_objects() {
    use crate::record::{access_log, tests};
    let print = |format, record: &crate::record::Record| {
        printer(format).event(&access_log(record), 0, &Filter::default()).unwrap()
    };
    let (pod, server) = ("7 ([k8s:app=web k8s:io.kubernetes.pod.namespace=shop])", "0 ([reserved:world])");
    for format in [Format::Brief, Format::Verbose, Format::Debug] {
        assert_eq!(
            print(format, &tests::query()),
            format!(
                "-> Request dns from {pod} to {server}, identity 1000->world, verdict Forwarded DNS Proxy: a.test. A\n"
            )
        );
        assert_eq!(
            print(format, &tests::answer()),
            format!(
                "-> Response dns to {server} from {pod}, identity world->1000, verdict Forwarded DNS Proxy: a.test. \
                 AAAA TTL: 30 Answer: '198.51.100.7,2001:db8::7' CNAMEs: b.test.\n"
            )
        );
        assert_eq!(
            print(format, &tests::http()),
            format!(
                "<- Request http from {pod} to {server}, identity 1000->world, verdict Denied \
                 GET http://shop.test/a?b=c => 403\n"
            )
        );
    }
    let ends = concat!(
        r#""srcEpID":0,"srcEpLabels":["reserved:world"],"srcIdentity":2,"dstEpID":7,"dstEpLabels":["k8s:app=web","#,
        r#""k8s:io.kubernetes.pod.namespace=shop"],"dstIdentity":1000"#
    );
    let head = r#"{"type":"logRecord","observationPoint":"Egress","flowType":"Response","l7Proto":"dns""#;
    let dns = concat!(
        r#""dns":{"Query":"a.test.","IPs":["198.51.100.7","2001:db8::7"],"TTL":30,"CNAMEs":["b.test."],"#,
        r#""ObservationSource":"proxy","QTypes":[28],"AnswerTypes":[5,28]}}"#
    );
    let expected = format!("{head},{ends},\"verdict\":\"Forwarded\",{dns}\n");
    assert_eq!(print(Format::Json, &tests::answer()), expected);
    let http = print(Format::Json, &tests::http());
    assert!(http.contains(r#""http":{"Code":403,"Method":"GET","URL":"http://shop.test/a?b=c""#), "{http}");
}

#[test]
fn records_of_proxies_are_chosen_by_type_and_endpoints_and_cannot_control_the_terminal() {
    use crate::record::{Contents, access_log, tests};
    let mut record = tests::query();
    if let Contents::Dns(dns) = &mut record.contents {
        dns.query = "\u{1b}]0;x\u{7}\r\n\u{202e}.".to_owned();
    }
    record.source.labels[0].value = "\u{9b}2J".to_owned();
    let event = access_log(&record);
    for format in [Format::Brief, Format::Debug, Format::Json] {
        let line = printer(format).event(&event, 0, &Filter::default()).unwrap();
        assert!(line.trim_end_matches('\n').chars().all(|c| !c.is_control() && c != '\u{202e}'), "{line:?}");
    }
    let is_chosen = |filter: &Filter| printer(Format::Brief).event(&event, 0, filter).is_some();
    assert!(is_chosen(&Filter { kinds: vec![Kind::L7], ..Filter::default() }));
    assert!(!is_chosen(&Filter { kinds: vec![Kind::Agent], ..Filter::default() }));
    assert!(is_chosen(&Filter { from: vec![7], ..Filter::default() }));
    assert!(!is_chosen(&Filter { to: vec![7], ..Filter::default() }));
    assert!(is_chosen(&Filter { related: vec![7], ..Filter::default() }));
}
