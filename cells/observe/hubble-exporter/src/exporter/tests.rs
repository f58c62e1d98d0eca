use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hubble_api::flow::{AgentEvent, AgentEventType, DebugEvent, DebugEventType};
use hubble_api::{filter_from_json, flow_from_json};
use serde_json::json;

use super::*;
use crate::file::Limits;

fn spec(path: &Path) -> Spec {
    Spec {
        name: "x".to_owned(),
        path: path.display().to_string(),
        allow: vec![],
        deny: vec![],
        fields: vec![],
        aggregate: vec![],
        interval: Duration::ZERO,
        limits: Limits { max_size: 1 << 20, max_backups: 1, compress: false },
        end: None,
    }
}

fn moment() -> Moment {
    let time = "2026-11-21T12:05:30Z".parse().unwrap();
    Moment { time, instant: Instant::now(), node: "n".to_owned() }
}

fn flow(pod: &str, direction: &str) -> Event {
    let json = json!({
        "time": "2026-11-21T12:05:29.803Z", "uuid": "u", "verdict": "FORWARDED", "node_name": "east/n",
        "source": {"namespace": "bees", "pod_name": pod}, "traffic_direction": direction,
    });
    Event::Flow(Arc::new(flow_from_json(&json).unwrap()))
}

fn lost(count: u64) -> Event {
    let source = LostEventSource::ObserverEventsQueue.into();
    Event::Lost(LostEvent { source, num_events_lost: count, ..LostEvent::default() })
}

#[tokio::test]
async fn lines_are_events_with_node_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.log");
    let mut all = Exporter::new(spec(&path)).unwrap();
    all.write(&[flow("a", "INGRESS"), lost(3)], 0, &moment()).unwrap();
    let expected = concat!(
        r#"{"flow":{"time":"2026-11-21T12:05:29.803Z","uuid":"u","verdict":"FORWARDED","source":{"namespace":"bees","pod_name":"a"},"node_name":"east/n","traffic_direction":"INGRESS"},"node_name":"east/n","time":"2026-11-21T12:05:29.803Z"}"#,
        "\n",
        r#"{"lost_events":{"source":"OBSERVER_EVENTS_QUEUE","num_events_lost":"3"},"node_name":"n","time":"2026-11-21T12:05:30Z"}"#,
        "\n"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);

    // Filters and a mask: no losses of others, and the time only if it is selected.
    let path = folder.path().join("some.log");
    let mut some = Exporter::new(Spec {
        allow: vec![filter_from_json(&json!({"source_pod": ["bees/b"]})).unwrap()],
        fields: vec!["verdict".to_owned(), "source.pod_name".to_owned()],
        end: Some("2026-11-21T13:00:00Z".parse().unwrap()),
        ..spec(&path)
    })
    .unwrap();
    some.write(&[flow("a", "INGRESS"), lost(3), flow("b", "EGRESS")], 0, &moment()).unwrap();
    let late = Moment { time: "2026-11-21T13:00:00Z".parse().unwrap(), ..moment() };
    some.write(&[flow("b", "EGRESS")], 0, &late).unwrap();
    let expected = "{\"flow\":{\"verdict\":\"FORWARDED\",\"source\":{\"pod_name\":\"b\"}}}\n";
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
}

#[tokio::test]
async fn notifications_and_debug_messages_are_lines_unless_filters_select_others() {
    let time = prost_types::Timestamp { seconds: 1_795_262_729, nanos: 803_000_000 };
    let agent = AgentEvent { r#type: AgentEventType::AgentStarted.into(), ..AgentEvent::default() };
    let debug = DebugEvent { r#type: DebugEventType::DbgEncap.into(), ..DebugEvent::default() };
    let events = [
        flow("a", "INGRESS"),
        Event::Agent(Arc::new(agent), time),
        Event::Debug(Arc::new(debug), time),
        lost(3),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.log");
    let kinds = |allow: &[serde_json::Value], deny: &[serde_json::Value]| {
        let filters =
            |list: &[serde_json::Value]| list.iter().map(|json| filter_from_json(json).unwrap()).collect();
        let spec = Spec { allow: filters(allow), deny: filters(deny), ..spec(&path) };
        Exporter::new(spec).unwrap().write(&events, 0, &moment()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        drop(std::fs::remove_file(&path));
        text
    };
    let all = kinds(&[], &[]);
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(
        lines[1],
        r#"{"agent_event":{"type":"AGENT_STARTED"},"node_name":"n","time":"2026-11-21T12:05:29.803Z"}"#
    );
    assert_eq!(
        lines[2],
        r#"{"debug_event":{"type":"DBG_ENCAP"},"node_name":"n","time":"2026-11-21T12:05:29.803Z"}"#
    );
    let agent = json!({"event_type": [{"type": 130}]});
    let count = |text: &str| {
        ["\"flow\"", "agent_event", "debug_event", "lost_events"].map(|kind| text.matches(kind).count())
    };
    assert_eq!(count(&all), [1, 1, 1, 1]);
    assert_eq!(count(&kinds(std::slice::from_ref(&agent), &[])), [0, 1, 0, 1]);
    assert_eq!(count(&kinds(&[], &[agent])), [1, 0, 1, 0]);
    let other = json!({"event_type": [{"type": 2, "match_sub_type": true, "sub_type": 1}]});
    assert_eq!(count(&kinds(&[other], &[])), [0, 0, 0, 1]);
    // Fields of flows match no other events.
    assert_eq!(count(&kinds(&[json!({"source_pod": ["bees/a"]})], &[])), [1, 0, 0, 0]);
}

#[tokio::test]
async fn events_that_were_not_written_are_reported_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep");
    let mut exporter = Exporter::new(spec(&path)).unwrap();
    std::fs::create_dir(&path).unwrap();
    exporter.write(&[flow("a", "INGRESS"), flow("a", "INGRESS")], 5, &moment()).unwrap_err();
    exporter.write(&[flow("a", "INGRESS")], 0, &moment()).unwrap_err();
    std::fs::remove_dir(&path).unwrap();
    exporter.write(&[flow("b", "INGRESS")], 0, &moment()).unwrap();
    exporter.write(&[flow("c", "INGRESS")], 0, &moment()).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].starts_with(r#"{"lost_events":{"source":"HUBBLE_RING_BUFFER","num_events_lost":"8","#),
        "{text}"
    );
    assert_eq!((lines.len(), text.matches("lost_events").count()), (3, 1), "{text}");
}

#[tokio::test(start_paused = true)]
async fn equal_flows_of_an_interval_are_one_line_with_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sums.log");
    let fields = vec!["source.pod_name".to_owned()];
    let mut sums =
        Exporter::new(Spec { aggregate: fields, interval: Duration::from_secs(5), ..spec(&path) }).unwrap();
    let events = [flow("a", "INGRESS"), flow("b", "EGRESS"), flow("a", "INGRESS"), flow("a", "EGRESS")];
    sums.write(&events, 0, &moment()).unwrap();
    assert!(!path.exists() && sums.due() == Some(Instant::now() + Duration::from_secs(5)));
    tokio::time::advance(Duration::from_secs(5)).await;
    sums.write(&[], 0, &moment()).unwrap();
    let line = |pod: &str, counts: &str| {
        format!(
            "{{\"flow\":{{\"time\":\"2026-11-21T12:05:29.803Z\",\"source\":{{\"pod_name\":\"{pod}\"}},\
             \"aggregate\":{{{counts}}}}},\"time\":\"2026-11-21T12:05:29.803Z\"}}\n"
        )
    };
    let first =
        line("a", "\"ingress_flow_count\":2,\"egress_flow_count\":1") + &line("b", "\"egress_flow_count\":1");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
    assert_eq!(sums.due(), None);
    // The end does not wait for the interval.
    sums.write(&[flow("c", "TRAFFIC_DIRECTION_UNKNOWN")], 0, &moment()).unwrap();
    sums.finish(&moment()).unwrap();
    let last = line("c", "\"unknown_direction_flow_count\":1");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), first + &last);
}

#[test]
fn an_exporter_with_an_invalid_filter_or_mask_is_refused() {
    let filter = filter_from_json(&json!({"source_port": ["http"]})).unwrap();
    let bad = Exporter::new(Spec { allow: vec![filter], ..spec(Path::new("x")) });
    assert!(bad.unwrap_err().to_string().contains("source_port"));
    let bad = Exporter::new(Spec { fields: vec!["sauce".to_owned()], ..spec(Path::new("x")) });
    assert!(bad.unwrap_err().to_string().contains("sauce"));
}
