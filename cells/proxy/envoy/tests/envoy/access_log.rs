use envoy_api::Message as _;
use envoy_api::cilium::log_entry::L7;
use envoy_api::cilium::{EntryType, HttpLogEntry, LogEntry};
use monitor::Subscription;
use monitor_events::Event;
use monitor_events::gob::{PREAMBLE, Payload, Reader};
use monitor_events::record::{Record, RecordKind, RecordVerdict};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::world::{World, http};

/// A message about the endpoint with id 7, which is the server.
fn entry(kind: EntryType, path: &str) -> Vec<u8> {
    let http = HttpLogEntry { path: path.to_owned(), ..HttpLogEntry::default() };
    let entry = LogEntry {
        entry_type: kind.into(),
        is_ingress: true,
        source_address: "192.0.2.1:40000".to_owned(),
        source_security_id: 2,
        destination_address: "10.0.0.7:80".to_owned(),
        l7: Some(L7::Http(http)),
        ..LogEntry::default()
    };
    entry.encode_to_vec()
}

/// Waits for so many records.
async fn records(events: &Subscription, number: usize) -> Vec<Record> {
    let (mut reader, mut all) = (Reader::default(), Vec::new());
    reader.push(PREAMBLE);
    while all.len() < number {
        let mut stream = Vec::new();
        events.read(&mut stream, usize::MAX).await;
        reader.push(&stream);
        while let Some(value) = reader.next_value().unwrap() {
            let payload = Payload::from(value);
            let Ok(Event::Record(record)) = monitor_events::decode(&payload.data) else {
                panic!("{payload:?}")
            };
            all.push(*record);
        }
    }
    all
}

#[tokio::test]
async fn each_message_is_a_record() {
    let world = World::start(&[("envoy-access-log-buffer-size", "256")], |_, _, _| ()).await;
    world.set(7, http("/"));
    let events = world.monitor.subscribe();
    let path = world.socket("access_log.sock");
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        socket.connect(&SockAddr::unix(&path).unwrap()).map(|()| socket)
    };
    world.hive.until("the socket is there", || connect().is_ok()).await;
    let (a, b) = (connect().unwrap(), connect().unwrap());
    a.send(&entry(EntryType::Request, "/a")).unwrap();
    a.send(&entry(EntryType::Request, &"x".repeat(1000))).unwrap();
    a.send(&[0xff; 100]).unwrap();
    a.send(&entry(EntryType::Response, "/a")).unwrap();
    b.send(&entry(EntryType::Denied, "/b")).unwrap();
    let all = records(&events, 3).await;
    let find =
        |kind, verdict| all.iter().find(|record| (record.kind, record.verdict) == (kind, verdict)).unwrap();
    for verdict in [RecordVerdict::Forwarded, RecordVerdict::Denied] {
        let request = find(RecordKind::Request, verdict);
        assert_eq!((request.source.id, request.destination.id), (0, 7));
        assert_eq!(request.source.labels[0].to_string(), "reserved:world");
    }
    assert_eq!(find(RecordKind::Response, RecordVerdict::Forwarded).source.id, 7);
    let text = world.metrics.text();
    for (rule, count) in [("received", 2), ("forwarded", 1), ("denied", 1), ("parse_errors", 2)] {
        let line = format!("cilium_policy_l7_total{{rule=\"{rule}\",proxy_type=\"envoy\"}} {count}");
        assert!(text.contains(&line), "{line}\n{text}");
    }
    drop(a);
    b.send(&entry(EntryType::Denied, "/c")).unwrap();
    assert_eq!(records(&events, 1).await.len(), 1, "another connection goes on");
    world.end().await;
}
