//! Each field of filters, on a flow that it matches and on one that differs in this field alone.

use hubble_api::flow::{
    CiliumEventType, DropReason, Endpoint, EventTypeFilter, Flow, FlowFilter, Ip, IpTraceId, IpVersion,
    Layer4, NetworkInterface, Service, Tcp, TcpFlags, TrafficDirection, Verdict, Workload, layer4,
};

use super::*;

fn endpoint(pod: &str, identity: u32, label: &str) -> Option<Endpoint> {
    Some(Endpoint {
        identity,
        cluster_name: "east".into(),
        namespace: "shop".into(),
        labels: vec![label.to_owned()],
        pod_name: pod.into(),
        workloads: vec![Workload { name: pod.trim_end_matches("-1").into(), kind: "Deployment".into() }],
        ..Endpoint::default()
    })
}

fn service(name: &str) -> Option<Service> {
    Some(Service { name: name.into(), namespace: "shop".into() })
}

fn flow() -> Flow {
    let flags = Some(TcpFlags { syn: true, ack: true, ..TcpFlags::default() });
    let tcp = Tcp { source_port: 40000, destination_port: 80, flags };
    Flow {
        uuid: "u".into(),
        verdict: Verdict::Dropped.into(),
        drop_reason_desc: DropReason::PolicyDenied.into(),
        ip: Some(Ip {
            source: "10.0.1.2".into(),
            source_xlated: "10.96.0.1".into(),
            destination: "fd00::2".into(),
            ip_version: IpVersion::IPv4.into(),
            encrypted: true,
        }),
        l4: Some(Layer4 { protocol: Some(layer4::Protocol::Tcp(tcp)) }),
        source: endpoint("client-1", 300, "k8s:app=client"),
        destination: endpoint("server-1", 400, "k8s:app=server"),
        node_name: "k8s1".into(),
        node_labels: vec!["zone=a".into()],
        event_type: Some(CiliumEventType { r#type: 1, sub_type: 133 }),
        source_service: service("from"),
        destination_service: service("to"),
        traffic_direction: TrafficDirection::Ingress.into(),
        source_names: vec!["x.y.cilium.io".into(), "a_b.io".into()],
        destination_names: vec!["cilium.io".into()],
        interface: Some(NetworkInterface { index: 7, name: "lxc7".into() }),
        ip_trace_id: Some(IpTraceId { trace_id: 9, ip_option_type: 0 }),
        is_reply: None,
        ..Flow::default()
    }
}

fn matches(filter: FlowFilter) -> bool {
    Filters::new(&[filter], &[]).unwrap().select(&flow())
}

/// Checks a field of texts: those that match and those that do not.
fn texts(set: impl Fn(&mut FlowFilter, Vec<String>), matching: &[&str], others: &[&str]) {
    let filter = |texts: &[&str]| {
        let mut filter = FlowFilter::default();
        set(&mut filter, texts.iter().map(|text| (*text).to_owned()).collect());
        filter
    };
    for text in matching {
        assert!(matches(filter(&[text])), "{text}");
        if let [other, ..] = others {
            assert!(matches(filter(&[other, text])), "any value of a field: {text}");
        }
    }
    for text in others {
        assert!(!matches(filter(&[text])), "{text}");
    }
}

#[test]
fn texts_select_by_address_name_label_and_port() {
    texts(|f, v| f.uuid = v, &["u"], &["v"]);
    texts(|f, v| f.source_ip = v, &["10.0.1.2", "10.0.0.0/16"], &["10.0.1.3", "fd00::/8", "10.1.0.0/16"]);
    texts(|f, v| f.destination_ip = v, &["fd00::2", "fd00:0::2", "fd00::/8"], &["::/128", "10.0.1.2"]);
    texts(|f, v| f.source_ip_xlated = v, &["10.96.0.1"], &["10.0.1.2"]);
    let pods = &["shop/client-1", "shop/cl", "shop/", "/client"][..];
    texts(|f, v| f.source_pod = v, pods, &["client-1", "shop/server", "other/"]);
    texts(|f, v| f.destination_pod = v, &["shop/server-1"], &["/client"]);
    texts(
        |f, v| f.source_label = v,
        &["app=client", "k8s:app", "app in (client)"],
        &["app=server", "reserved:app"],
    );
    texts(|f, v| f.destination_label = v, &["app=server,!x"], &["!app"]);
    texts(|f, v| f.source_service = v, &["shop/from"], &["shop/to"]);
    texts(|f, v| f.destination_service = v, &["shop/to", "/t"], &["to"]);
    texts(|f, v| f.source_cluster_name = v, &["east"], &["west"]);
    texts(|f, v| f.destination_cluster_name = v, &["east"], &["eas"]);
    let matching = &["*.cilium.io", " *.Cilium.IO. ", "x.*", "a_b.io", "*"][..];
    texts(|f, v| f.source_fqdn = v, matching, &["cilium.io", "x.y", "*b.io", "x.y.ciliumxio"]);
    texts(|f, v| f.destination_fqdn = v, &["cilium.*", "cilium.io"], &["*.cilium.io", "a_b.io"]);
    texts(|f, v| f.protocol = v, &["tcp", "TCP"], &["udp", "icmp", "sctp"]);
    texts(|f, v| f.source_port = v, &["40000"], &["80"]);
    texts(|f, v| f.destination_port = v, &["80"], &["40000", "0"]);
    texts(
        |f, v| f.node_name = v,
        &["k8s1", "k8s*", "*1", "default/k8s1", "default/", "*8*1"],
        &["k8s", "east/", "k*2"],
    );
    texts(|f, v| f.node_labels = v, &["zone=a"], &["zone=b"]);
}

#[test]
fn numbers_and_enums_select_by_value() {
    let is = |set: fn(&mut FlowFilter)| {
        let mut filter = FlowFilter::default();
        set(&mut filter);
        matches(filter)
    };
    assert!(is(|f| f.source_identity = vec![1, 300]) && !is(|f| f.source_identity = vec![400]));
    assert!(is(|f| f.destination_identity = vec![400]) && !is(|f| f.destination_identity = vec![300]));
    let by_workload = |name: &str, kind: &str| {
        let workload = vec![Workload { name: name.into(), kind: kind.into() }];
        matches(FlowFilter { source_workload: workload, ..FlowFilter::default() })
    };
    assert!(
        by_workload("client", "Deployment") && by_workload("", "Deployment") && by_workload("client", "")
    );
    assert!(!by_workload("server", "Deployment") && !by_workload("client", "Job"));
    let server = || vec![Workload { name: "server".into(), kind: String::new() }];
    let of_destination = FlowFilter { destination_workload: server(), ..FlowFilter::default() };
    assert!(matches(of_destination));
    assert!(is(|f| f.verdict = vec![2]) && !is(|f| f.verdict = vec![1]));
    assert!(is(|f| f.drop_reason_desc = vec![133]) && !is(|f| f.drop_reason_desc = vec![134]));
    assert!(is(|f| f.traffic_direction = vec![1]) && !is(|f| f.traffic_direction = vec![2]));
    assert!(is(|f| f.ip_version = vec![1]) && !is(|f| f.ip_version = vec![0, 2]));
    assert!(is(|f| f.encrypted = vec![true]) && !is(|f| f.encrypted = vec![false]));
    assert!(is(|f| f.ip_trace_id = vec![9]) && !is(|f| f.ip_trace_id = vec![8]));
    assert!(is(|f| f.reply = vec![false]) && !is(|f| f.reply = vec![true]), "a drop counts as no reply");
    let event = |r#type, match_sub_type, sub_type| EventTypeFilter { r#type, match_sub_type, sub_type };
    let by_event = |one| matches(FlowFilter { event_type: vec![one], ..FlowFilter::default() });
    assert!(by_event(event(1, false, 0)) && by_event(event(0, true, 133)) && by_event(event(1, true, 133)));
    assert!(!by_event(event(4, false, 0)) && !by_event(event(1, true, 0)));
    let by_link = |index, name: &str| {
        let interface = vec![NetworkInterface { index, name: name.into() }];
        matches(FlowFilter { interface, ..FlowFilter::default() })
    };
    assert!(by_link(7, "") && by_link(0, "lxc7") && !by_link(8, "lxc7") && !by_link(7, "lxc"));
    let by_flags = |flags| matches(FlowFilter { tcp_flags: vec![flags], ..FlowFilter::default() });
    assert!(by_flags(TcpFlags { syn: true, ..TcpFlags::default() }));
    assert!(!by_flags(TcpFlags { syn: true, fin: true, ..TcpFlags::default() }));
}

#[test]
fn lists_allow_any_filter_and_deny_any_filter() {
    let verdict = |verdict: Verdict| FlowFilter { verdict: vec![verdict.into()], ..FlowFilter::default() };
    let select =
        |allow: &[FlowFilter], deny: &[FlowFilter]| Filters::new(allow, deny).unwrap().select(&flow());
    assert!(select(&[], &[]) && select(&[FlowFilter::default()], &[]));
    assert!(select(&[verdict(Verdict::Forwarded), verdict(Verdict::Dropped)], &[]));
    assert!(!select(&[verdict(Verdict::Forwarded)], &[]));
    assert!(!select(&[], &[verdict(Verdict::Dropped)]) && !select(&[], &[FlowFilter::default()]));
    let both = FlowFilter { source_identity: vec![1], ..verdict(Verdict::Dropped) };
    assert!(!select(std::slice::from_ref(&both), &[]) && select(&[], &[both]), "all fields of a filter");
}

#[test]
fn invalid_values_and_fields_without_information_are_errors() {
    let error = |set: fn(&mut FlowFilter)| {
        let mut filter = FlowFilter::default();
        set(&mut filter);
        Filters::new(&[], &[filter]).unwrap_err().field
    };
    assert_eq!(error(|f| f.source_ip = vec!["10.0.0.300".into()]), "source_ip");
    assert_eq!(error(|f| f.destination_ip = vec!["10.0.0.0/33".into()]), "destination_ip");
    assert_eq!(error(|f| f.source_pod = vec![String::new()]), "source_pod");
    assert_eq!(error(|f| f.source_cluster_name = vec![String::new()]), "source_cluster_name");
    assert_eq!(error(|f| f.destination_label = vec!["a in (b".into()]), "destination_label");
    assert_eq!(error(|f| f.protocol = vec!["quic".into()]), "protocol");
    assert_eq!(error(|f| f.source_port = vec!["65536".into()]), "source_port");
    assert_eq!(error(|f| f.node_name = vec!["a b".into()]), "node_name");
    for code in ["", "4", "044", "604", "4x4", "4++", "404+", "+"] {
        let filter = FlowFilter { http_status_code: vec![code.into()], ..FlowFilter::default() };
        assert_eq!(Filters::new(&[filter], &[]).unwrap_err().field, "http_status_code", "{code}");
    }
    assert_eq!(error(|f| f.http_url = vec!["(".into()]), "http_url");
    assert_eq!(error(|f| f.http_path = vec!["(a{1000}){1000}".into()]), "http_path");
    assert_eq!(error(|f| f.dns_query = vec!["[".into()]), "dns_query");
    let drops = |f: &mut FlowFilter| {
        f.http_method = vec!["GET".into()];
        f.event_type = vec![EventTypeFilter { r#type: 1, ..EventTypeFilter::default() }];
    };
    assert_eq!(error(drops), "http_method");
    for name in ["x y", "", ".", "a/b", "é.io"] {
        let filter = FlowFilter { source_fqdn: vec![name.to_owned()], ..FlowFilter::default() };
        assert_eq!(Filters::new(&[filter], &[]).unwrap_err().field, "source_fqdn", "{name}");
    }
    for (expressions, problem) in [
        (vec!["_flow.verdict =="], "_flow.verdict ==:1:17: the expression ends too early"),
        (vec!["true", "_flow.verdict"], "_flow.verdict:1:7: the result is int, not bool"),
        (vec!["true"; 17], "at most 16 expressions"),
    ] {
        let refused = Filters::new(&[expression(&expressions)], &[]).unwrap_err();
        assert_eq!((refused.field, &*refused.problem), ("cel_expression", problem));
    }
}

fn expression(texts: &[&str]) -> FlowFilter {
    let experimental = hubble_api::flow::flow_filter::Experimental {
        cel_expression: texts.iter().map(|text| (*text).to_owned()).collect(),
    };
    FlowFilter { experimental: Some(experimental), ..FlowFilter::default() }
}

#[test]
fn expressions_select_flows_of_which_one_is_true() {
    let selects = |texts: &[&str]| Filters::new(&[expression(texts)], &[]).unwrap().select(&flow());
    let port =
        "_flow.l4.TCP.destination_port == 80u && _flow.source.labels.exists(label, label.startsWith('k8s:'))";
    for (texts, is_match) in [
        (&[][..], true),
        (&["true"], true),
        (&["false"], false),
        (&["false", "true"], true),
        (&[port], true),
        (&["_flow.verdict == Verdict.DROPPED"], flow().verdict() == Verdict::Dropped),
        (&["_flow.verdict != Verdict.DROPPED"], flow().verdict() != Verdict::Dropped),
        // An error while it is evaluated, and one that costs too much.
        (&["_flow.source_names[0] == 'a'"], false),
        (
            &[
                "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, a + b + c + d > 0))))",
            ],
            false,
        ),
    ] {
        assert_eq!(selects(texts), is_match, "{texts:?}");
    }
    let deny = Filters::new(&[], &[expression(&["true"])]).unwrap();
    assert!(!deny.select(&flow()));
    let both = FlowFilter { uuid: vec!["other".to_owned()], ..expression(&["true"]) };
    assert!(!Filters::new(&[both], &[]).unwrap().select(&flow()), "all conditions of a filter hold");
}

#[test]
fn contents_of_requests_select_by_name_method_url_code_and_header() {
    use hubble_api::flow::layer7::Record;
    use hubble_api::flow::{Dns, Http, HttpHeader, Layer7, TraceContext, TraceParent};
    let of = |record| Flow { l7: Some(Layer7 { record: Some(record), ..Layer7::default() }), ..flow() };
    let dns = of(Record::Dns(Dns { query: "www.shop.test.".into(), ..Dns::default() }));
    let header = HttpHeader { key: "X-A".into(), value: "1".into() };
    let http = Http {
        code: 404,
        method: "GET".into(),
        url: "http://shop.test/cart?id=1".into(),
        protocol: "HTTP/1.1".into(),
        headers: vec![header.clone()],
    };
    let parent = TraceParent { trace_id: "0af7".into() };
    let http = Flow { trace_context: Some(TraceContext { parent: Some(parent) }), ..of(Record::Http(http)) };
    let selects = |flow: &Flow, set: &dyn Fn(&mut FlowFilter)| {
        let mut filter = FlowFilter::default();
        set(&mut filter);
        Filters::new(&[filter], &[]).unwrap().select(flow)
    };
    let text = |text: &str| vec![text.to_owned()];
    for (query, is_match) in [("shop", true), ("^www\\..*\\.test\\.$", true), ("^shop", false)] {
        assert_eq!(selects(&dns, &|f| f.dns_query = text(query)), is_match, "{query}");
        assert!(!selects(&http, &|f| f.dns_query = text(query)));
    }
    for (code, is_match) in [("404", true), ("40+", true), ("4+", true), ("403", false), ("5+", false)] {
        assert_eq!(selects(&http, &|f| f.http_status_code = text(code)), is_match, "{code}");
    }
    assert!(
        selects(&http, &|f| f.http_method = text("get")) && !selects(&http, &|f| f.http_method = text("PUT"))
    );
    assert!(
        selects(&http, &|f| f.http_path = text("^/cart$")) && !selects(&http, &|f| f.http_path = text("id"))
    );
    assert!(
        selects(&http, &|f| f.http_url = text("id=1")) && !selects(&http, &|f| f.http_url = text("^/cart"))
    );
    assert!(selects(&http, &|f| f.http_header = vec![header.clone()]));
    let other = HttpHeader { key: "X-A".into(), value: "2".into() };
    assert!(!selects(&http, &|f| f.http_header = vec![other.clone()]));
    assert!(selects(&http, &|f| f.trace_id = text("0af7")) && !selects(&http, &|f| f.trace_id = text("")));
    assert!(selects(&dns, &|f| f.trace_id = text("")));
    for (protocol, of_dns, of_http) in [("dns", true, false), ("HTTP", false, true), ("tcp", true, true)] {
        assert_eq!(selects(&dns, &|f| f.protocol = text(protocol)), of_dns, "{protocol}");
        assert_eq!(selects(&http, &|f| f.protocol = text(protocol)), of_http, "{protocol}");
    }
}
