use std::time::Duration;

use hubble_api::flow::LostEventSource;
use hubble_api::flow_from_json;
use metrics::{Metrics, Selection};
use serde_json::{Value, json};

use super::*;
use crate::spec::{of_file, of_option};

/// A set with the metrics of an option, and its registry.
fn with(option: &str) -> (MetricSet, Metrics) {
    let (set, registry) = (MetricSet::default(), Metrics::with_prefix("hubble", Selection::default()));
    set.replace(of_option(option).unwrap()).unwrap();
    set.register(&registry);
    (set, registry)
}

/// Returns the samples of flows.
fn samples(option: &str, flows: &[Value]) -> Vec<String> {
    let (set, registry) = with(option);
    flows.iter().for_each(|flow| set.count(&event(flow)));
    lines(&registry)
}

fn lines(registry: &Metrics) -> Vec<String> {
    let text = registry.text();
    let samples = text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{"));
    let mut lines: Vec<_> = samples.map(str::to_owned).collect();
    lines.sort();
    lines
}

fn event(flow: &Value) -> Event {
    Event::Flow(Arc::new(flow_from_json(flow).unwrap()))
}

/// Returns a forwarded TCP packet with other fields.
fn tcp(other: Value) -> Value {
    let mut flow = json!({
        "verdict": "FORWARDED", "event_type": {"type": 4, "sub_type": 3}, "is_reply": false,
        "IP": {"source": "10.0.0.1", "destination": "10.0.0.2", "ipVersion": "IPv4"},
        "l4": {"TCP": {"source_port": 40000, "destination_port": 80, "flags": {"SYN": true}}},
        "source": {"identity": 300, "namespace": "shop", "pod_name": "cart",
            "labels": ["k8s:app=cart", "k8s:k8s-app=old"], "workloads": [{"name": "cart", "kind": "Deployment"}]},
        "destination": {"identity": 301, "namespace": "shop", "pod_name": "web", "labels": ["k8s:app=web"]},
        "traffic_direction": "EGRESS",
    });
    flow.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    flow
}

#[test]
fn packets_are_counted_under_ciliums_names_and_labels() {
    let syn_ack = tcp(json!({"is_reply": true, "l4": {"TCP": {"flags": {"SYN": true, "ACK": true}}}}));
    let fin_rst = tcp(json!({"l4": {"TCP": {"flags": {"FIN": true, "RST": true}}}}));
    let dropped = tcp(
        json!({"verdict": "DROPPED", "drop_reason_desc": "POLICY_DENIED", "event_type": {"type": 1, "sub_type": 133}}),
    );
    let unnamed =
        tcp(json!({"verdict": "DROPPED", "drop_reason_desc": 206, "l4": null, "event_type": {"type": 1}}));
    let flows = [tcp(json!({})), tcp(json!({})), syn_ack, fin_rst, dropped, unnamed];
    assert_eq!(
        samples("tcp drop", &flows),
        [
            r#"hubble_drop_total{protocol="TCP",reason="POLICY_DENIED"} 1"#,
            r#"hubble_drop_total{protocol="Unknown L4",reason="206"} 1"#,
            r#"hubble_tcp_flags_total{family="IPv4",flag="FIN"} 1"#,
            r#"hubble_tcp_flags_total{family="IPv4",flag="RST"} 1"#,
            r#"hubble_tcp_flags_total{family="IPv4",flag="SYN"} 2"#,
            r#"hubble_tcp_flags_total{family="IPv4",flag="SYN-ACK"} 1"#,
        ]
    );
    assert_eq!(
        samples("flow port-distribution", &flows[..5]),
        [
            r#"hubble_flows_processed_total{protocol="TCP",subtype="",type="Drop",verdict="DROPPED"} 1"#,
            r#"hubble_flows_processed_total{protocol="TCP",subtype="to-stack",type="Trace",verdict="FORWARDED"} 4"#,
            r#"hubble_port_distribution_total{port="0",protocol="TCP"} 1"#,
            r#"hubble_port_distribution_total{port="80",protocol="TCP"} 2"#,
        ]
    );
    let ping = tcp(json!({"l4": {"ICMPv4": {"type": 8}}, "Summary": "ICMPv4 EchoRequest"}));
    let init = tcp(json!({"l4": {"SCTP": {"destination_port": 5, "chunk_type": "INIT"}}}));
    let data = tcp(json!({"l4": {"SCTP": {"chunk_type": "UNSUPPORTED"}}}));
    assert_eq!(
        samples("icmp sctp", &[ping, init, data]),
        [
            r#"hubble_icmp_total{family="IPv4",type="EchoRequest"} 1"#,
            r#"hubble_sctp_chunk_types_total{chunk_type="INIT",family="IPv4"} 1"#,
        ]
    );
}

#[test]
fn verdicts_and_flows_to_the_world_are_counted() {
    let verdict = |other: Value| {
        let mut flow = tcp(json!({"event_type": {"type": 5}, "policy_match_type": 2}));
        flow.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        flow
    };
    let of_node = verdict(json!({"source": {"identity": 1}}));
    let denied =
        verdict(json!({"verdict": "DROPPED", "traffic_direction": "INGRESS", "policy_match_type": 0}));
    assert_eq!(
        samples("policy", &[verdict(json!({})), of_node, denied, tcp(json!({}))]),
        [
            r#"hubble_policy_verdicts_total{action="dropped",direction="ingress",match="none"} 1"#,
            r#"hubble_policy_verdicts_total{action="forwarded",direction="egress",match="l3-l4"} 1"#,
        ]
    );
    let world = json!({"labels": ["cidr:1.1.1.1/32", "reserved:world"]});
    let out = tcp(json!({"destination": world}));
    let reply = tcp(json!({"destination": world, "is_reply": true}));
    let ack =
        tcp(json!({"destination": world, "l4": {"TCP": {"destination_port": 443, "flags": {"ACK": true}}}}));
    let invalid =
        tcp(json!({"destination": world, "verdict": "DROPPED", "drop_reason_desc": "INVALID_SOURCE_IP"}));
    let flows = [out, reply, ack, invalid, tcp(json!({}))];
    let line = |port: &str, verdict: &str, count| {
        format!("hubble_flows_to_world_total{{{port}protocol=\"TCP\",verdict=\"{verdict}\"}} {count}")
    };
    assert_eq!(samples("flows-to-world", &flows), [line("", "FORWARDED", 2)]);
    assert_eq!(
        samples("flows-to-world:any-drop", &flows),
        [line("", "DROPPED", 1), line("", "FORWARDED", 2)]
    );
    assert_eq!(samples("flows-to-world:port;syn-only", &flows), [line("port=\"80\",", "FORWARDED", 1)]);
}

#[test]
fn records_of_proxies_are_counted() {
    let l7 = |kind: &str, other: Value| {
        let mut flow = tcp(json!({"event_type": {"type": 129}, "is_reply": kind == "RESPONSE"}));
        let mut l7 = json!({"type": kind, "latency_ns": "20000000"});
        l7.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        flow["l7"] = l7;
        flow
    };
    let query = json!({"query": "a.b.", "qtypes": ["A"]});
    let answer =
        json!({"query": "a.b.", "qtypes": ["A"], "ips": ["1.1.1.1"], "rrtypes": ["A", "CNAME"], "rcode": 3});
    let quad_a = json!({"query": "a.b.", "qtypes": ["AAAA"]});
    let flows = [
        l7("REQUEST", json!({"dns": query})),
        l7("RESPONSE", json!({"dns": answer})),
        l7("REQUEST", json!({"dns": quad_a})),
    ];
    assert_eq!(
        samples("dns:query;ignoreAAAA", &flows),
        [
            r#"hubble_dns_queries_total{ips_returned="0",qtypes="A",query="a.b.",rcode=""} 1"#,
            r#"hubble_dns_response_types_total{qtypes="A",query="a.b.",type="A"} 1"#,
            r#"hubble_dns_response_types_total{qtypes="A",query="a.b.",type="CNAME"} 1"#,
            r#"hubble_dns_responses_total{ips_returned="1",qtypes="A",query="a.b.",rcode="Non-Existent Domain"} 1"#,
        ]
    );
    let http = json!({"http": {"method": "GET", "protocol": "HTTP/1.1"}});
    let ok = json!({"http": {"method": "GET", "protocol": "HTTP/1.1", "code": 200}});
    let flows = [l7("REQUEST", http), l7("RESPONSE", ok)];
    assert_eq!(
        samples("http", &flows),
        [
            r#"hubble_http_request_duration_seconds_count{method="GET",reporter="client"} 1"#,
            r#"hubble_http_request_duration_seconds_sum{method="GET",reporter="client"} 0.02"#,
            r#"hubble_http_requests_total{method="GET",protocol="HTTP/1.1",reporter="client"} 1"#,
            r#"hubble_http_responses_total{method="GET",protocol="HTTP/1.1",reporter="client",status="200"} 1"#,
        ]
    );
    // The source of a response is the server: its client is the source of the metric.
    let swapped = samples("httpV2:sourceContext=pod;destinationContext=pod-name", &flows);
    assert_eq!(
        swapped[2],
        r#"hubble_http_requests_total{destination="cart",method="GET",protocol="HTTP/1.1",reporter="client",source="shop/web",status="200"} 1"#
    );
    assert_eq!(samples("policy", &flows[..1]).len(), 1);
}

#[test]
fn contexts_name_both_sides() {
    let of = |context: &str| {
        let dropped = tcp(json!({"verdict": "DROPPED", "drop_reason_desc": 133}));
        let lines = samples(&format!("drop:{context}"), &[dropped]);
        let (_, labels) = lines[0].split_once('{').unwrap();
        // Labels of the metric itself are removed; none of the values ends with a comma.
        let labels = labels.trim_end_matches("} 1").replace("\",", "\" ");
        let own = [r#"protocol="TCP""#, r#"reason="POLICY_DENIED""#];
        own.iter()
            .fold(labels, |labels, own| labels.replace(own, ""))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    for (context, labels) in [
        ("sourceContext=pod", r#"source="shop/cart""#),
        ("sourceContext=dns|ip;destinationContext=namespace", r#"destination="shop" source="10.0.0.1""#),
        ("sourceContext=reserved-identity|identity", r#"source="k8s:app=cart,k8s:k8s-app=old""#),
        (
            "sourceContext=workload;destinationContext=workload-name|app",
            r#"destination="web" source="shop/cart""#,
        ),
        ("sourceEgressContext=app;sourceIngressContext=ip", r#"source="cart""#),
        ("destinationIngressContext=pod", r#"destination="""#),
        (
            "labelsContext=traffic_direction,destination_namespace,source_workload_kind,source_ip",
            r#"destination_namespace="shop" source_ip="10.0.0.1" source_workload_kind="Deployment" traffic_direction="egress""#,
        ),
    ] {
        assert_eq!(of(context), labels, "{context}");
    }
}

#[test]
fn invalid_options_are_named() {
    for (option, fault) in [
        (
            "drop:sourceContext=pods",
            "metric drop: sourceContext: \"pods\" is not one of identity, namespace, pod,",
        ),
        (
            "drop:labelsContext=source_ip,port",
            "metric drop: labelsContext: \"port\" is not one of source_ip,",
        ),
        ("drop:query", "metric drop: \"query\" is no option of it"),
        ("http httpV2", "metrics http and httpV2 have series of the same name"),
    ] {
        let error = of_option(option).unwrap_err().to_string();
        assert!(error.starts_with(fault), "{option}: {error}");
    }
    assert_eq!(of_option("nosuch drop").unwrap().len(), 1);
    for (file, fault) in [
        ("metrics: [{}]", "metrics[0].name: is missing"),
        ("metrics: [{name: drop}, {name: drop}]", "metrics[1].name: drop is there twice"),
        ("metrics: {}", "metrics: must be a list"),
        (
            "metrics: [{name: drop, contextOptions: [{name: x, values: [a]}]}]",
            "metric drop: \"x\" is no option",
        ),
        ("metrics: [{name: drop, includeFilters: [{x: 1}]}]", "metrics[0].includeFilters[0]: x: is no field"),
        (
            "metrics: [{name: drop, includeFilters: [{source_port: [x]}]}]",
            "metric drop: invalid filter source_port",
        ),
        ("metrics: [", "line 1: "),
    ] {
        let error = of_file(file).unwrap_err().to_string();
        assert!(error.starts_with(fault), "{file}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_replaces_filters_and_options_and_series_of_ended_pods_go() {
    let (set, registry) = with("");
    let apply = |text: &str| set.replace(of_file(text).unwrap()).unwrap();
    let pod = "contextOptions: [{name: sourceContext, values: [pod]}]";
    apply(&format!("metrics: [{{name: tcp, {pod}}}, {{name: drop}}]"));
    set.count(&event(&tcp(json!({}))));
    let cart = r#"hubble_tcp_flags_total{family="IPv4",flag="SYN",source="shop/cart"} "#;
    assert_eq!(lines(&registry), [format!("{cart}1")]);
    // The same options with a filter keep the series; a flow of another pod does not count.
    apply(&format!("metrics: [{{name: tcp, {pod}, includeFilters: [{{sourcePod: [shop/cart]}}]}}]"));
    set.count(&event(&tcp(json!({"source": {"namespace": "shop", "pod_name": "other"}}))));
    set.count(&event(&tcp(json!({}))));
    assert_eq!(lines(&registry), [format!("{cart}2")]);
    assert!(set.names_pods());
    set.sweep(Instant::now(), |_, name| name != "cart");
    tokio::time::advance(Duration::from_secs(60)).await;
    set.sweep(Instant::now(), |_, name| name != "cart");
    assert_eq!((lines(&registry), set.names_pods()), (vec![], false));
    set.count(&event(&tcp(json!({}))));
    apply("metrics: [{name: tcp}]");
    assert_eq!(lines(&registry), [""; 0], "other options, other series");
    let lost = LostEvent {
        source: LostEventSource::PerfEventRingBuffer.into(),
        num_events_lost: 7,
        ..LostEvent::default()
    };
    set.count(&Event::Lost(lost));
    assert_eq!(lines(&registry), [r#"hubble_lost_events_total{source="perf_event_ring_buffer"} 7"#]);
}

/// Series and labels that Cilium's dashboards use.
const DASHBOARDS: &str = include_str!("dashboards.tsv");

/// Dashboards by their keys in the table, with the options for which they are made.
const OPTIONS: [(&str, &[&str], &str); 4] = [
    (
        "network",
        &["flow", "tcp", "icmp", "drop"],
        "sourceContext=pod;destinationContext=pod;labelsContext=source_namespace,destination_namespace",
    ),
    (
        "dns",
        &["dns:query"],
        "sourceContext=pod;destinationContext=pod;labelsContext=source_namespace,destination_namespace",
    ),
    (
        "hubble",
        &["flow", "tcp", "icmp", "drop", "port-distribution", "http", "dns:query"],
        "sourceContext=pod;destinationContext=pod",
    ),
    (
        "workload",
        &["httpV2"],
        "labelsContext=source_namespace,source_workload,destination_namespace,destination_workload",
    ),
];

/// Returns whether a sample has a label.
fn has_label(sample: &str, label: &str) -> bool {
    sample.contains(&format!(",{label}=\"")) || sample.contains(&format!("{{{label}=\""))
}

#[test]
fn dashboards_of_cilium_find_their_metrics_labels_and_values() {
    let ipv6 = json!({"source": "fd00::1", "destination": "fd00::2", "ipVersion": "IPv6"});
    let of_family = |ip: &Value, other: Value| {
        let mut flow = tcp(other);
        if ip.is_object() {
            flow["IP"] = ip.clone();
        }
        flow
    };
    let l7 = |is_reply: bool, direction: &str, mut l7: Value| {
        l7["type"] = json!(if is_reply { "RESPONSE" } else { "REQUEST" });
        tcp(
            json!({"event_type": {"type": 129}, "is_reply": is_reply, "traffic_direction": direction, "l7": l7}),
        )
    };
    let mut flows = vec![
        tcp(json!({"verdict": "DROPPED", "drop_reason_desc": "POLICY_DENIED", "event_type": {"type": 1}})),
        l7(false, "EGRESS", json!({"dns": {"query": "a.test.", "qtypes": ["A"]}})),
        l7(
            true,
            "EGRESS",
            json!({"dns": {"query": "a.test.", "qtypes": ["A"], "rrtypes": ["A"], "ips": ["10.0.0.9"]}}),
        ),
        l7(true, "EGRESS", json!({"dns": {"query": "b.test.", "qtypes": ["A"], "rcode": 3}})),
    ];
    for ip in [&Value::Null, &ipv6] {
        let icmp = if ip.is_null() { "ICMPv4" } else { "ICMPv6" };
        let echo = |name: &str| json!({"l4": {icmp: {}}, "Summary": format!("{icmp} {name}")});
        let syn_ack = json!({"is_reply": true, "l4": {"TCP": {"flags": {"SYN": true, "ACK": true}}}});
        let packets = [json!({}), syn_ack, echo("EchoRequest"), echo("EchoReply")];
        flows.extend(packets.map(|packet| of_family(ip, packet)));
    }
    for direction in ["EGRESS", "INGRESS"] {
        let http = json!({"method": "GET", "protocol": "HTTP/1.1", "code": 200});
        flows.push(l7(false, direction, json!({"http": {"method": "GET", "protocol": "HTTP/1.1"}})));
        flows.push(l7(true, direction, json!({"latency_ns": "1000000", "http": http})));
    }
    let flows: Vec<Event> = flows.iter().map(event).collect();
    let texts = OPTIONS.map(|(dashboard, names, context)| {
        let separator = |name: &str| if name.contains(':') { ';' } else { ':' };
        let option = names.iter().map(|name| format!("{name}{}{context}", separator(name)));
        let (set, registry) = with(&option.collect::<Vec<_>>().join(" "));
        flows.iter().for_each(|flow| set.count(flow));
        (dashboard, registry.text())
    });
    let rows = DASHBOARDS.lines().filter(|line| !line.starts_with('#'));
    for row in rows.clone() {
        let columns: Vec<&str> = row.split('\t').collect();
        let (series, labels) = (columns[1], columns[2]);
        let (_, text) = texts.iter().find(|(dashboard, _)| *dashboard == columns[0]).unwrap();
        let samples: Vec<&str> = text.lines().filter(|line| line.split('{').next() == Some(series)).collect();
        assert!(!samples.is_empty(), "{row}: not in {text}");
        for label in labels.split(' ') {
            let has_label = samples.iter().all(|sample| has_label(sample, label));
            assert!(has_label, "{row}: no label {label}: {samples:#?}");
        }
        for selection in columns.get(3).into_iter().flat_map(|selections| selections.split("; ")) {
            let selects = |sample: &&str| {
                let mut pairs = selection.split(',').map(|pair| pair.split_once('=').unwrap());
                pairs.all(|(label, value)| sample.contains(&format!("{label}=\"{value}\"")))
            };
            assert!(samples.iter().any(selects), "{row}: nothing is selected by {selection}: {samples:#?}");
        }
    }
    for (dashboard, ..) in OPTIONS {
        assert!(rows.clone().any(|row| row.split('\t').next() == Some(dashboard)), "{dashboard} has no rows");
    }
}

/// The chart's dashboard of flows.
const CHART: &str = include_str!("../../../../../helm/apiary/dashboards/flows.json");

#[test]
fn the_charts_dashboard_finds_its_metrics_and_labels() {
    let l7 = |kind: &str, l7: Value| {
        let mut flow = tcp(json!({"event_type": {"type": 129}, "is_reply": kind == "RESPONSE", "l7": l7}));
        flow["l7"]["type"] = json!(kind);
        flow
    };
    let request = json!({"http": {"method": "GET", "protocol": "HTTP/1.1"}});
    let response =
        json!({"latency_ns": "1000000", "http": {"method": "GET", "protocol": "HTTP/1.1", "code": 200}});
    let query = json!({"dns": {"query": "a.test.", "qtypes": ["A"]}});
    let flows = [
        tcp(json!({})),
        tcp(json!({"verdict": "DROPPED", "drop_reason_desc": "POLICY_DENIED", "event_type": {"type": 1}})),
        tcp(json!({"event_type": {"type": 5}, "policy_match_type": 2})),
        tcp(json!({"l4": {"ICMPv4": {}}, "Summary": "ICMPv4 EchoRequest"})),
        l7("REQUEST", query.clone()),
        l7("RESPONSE", query),
        l7("REQUEST", request),
        l7("RESPONSE", response),
    ];
    let (set, registry) = with("flow tcp icmp drop dns http policy port-distribution");
    flows.iter().for_each(|flow| set.count(&event(flow)));
    let lost = LostEvent {
        source: LostEventSource::PerfEventRingBuffer.into(),
        num_events_lost: 1,
        ..LostEvent::default()
    };
    set.count(&Event::Lost(lost));
    let text = registry.text();
    let dashboard: Value = serde_json::from_str(CHART).unwrap();
    let targets =
        dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut count = 0;
    for query in targets.map(|target| target["expr"].as_str().unwrap()) {
        let mut words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let name = words.find(|word| word.starts_with("hubble_")).unwrap();
        let samples: Vec<&str> = text.lines().filter(|line| line.split('{').next() == Some(name)).collect();
        assert!(!samples.is_empty(), "{name} is not in {text}");
        let groups = query.split("by (").nth(1).unwrap().split(')').next().unwrap();
        for label in groups.split(", ") {
            let has_label = samples.iter().all(|sample| has_label(sample, label));
            assert!(has_label, "{name} has no label {label}: {samples:#?}");
        }
        count += 1;
    }
    assert!(count >= 12, "{count} queries");
}
