use envoy_api::Message as _;
use envoy_api::cilium::log_entry::L7;
use envoy_api::cilium::{EntryType, HttpLogEntry, LogEntry};
use envoy_proxy::RecordKind;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::world::World;

fn entry(kind: EntryType, path: &str) -> Vec<u8> {
    let http = HttpLogEntry { path: path.to_owned(), ..HttpLogEntry::default() };
    let entry = LogEntry { entry_type: kind.into(), l7: Some(L7::Http(http)), ..LogEntry::default() };
    entry.encode_to_vec()
}

#[tokio::test]
async fn each_message_is_a_record() {
    let world = World::start(&[("envoy-access-log-buffer-size", "256")], |_, _, _| ()).await;
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
    world.hive.until("all are there", || world.log.0.lock().len() == 3).await;
    let mut kinds: Vec<RecordKind> = world.log.0.lock().iter().map(|record| record.kind).collect();
    kinds.sort_by_key(|kind| *kind as u8);
    assert_eq!(kinds, [RecordKind::Request, RecordKind::Response, RecordKind::Denied]);
    let text = world.metrics.text();
    for (rule, count) in [("received", 2), ("forwarded", 1), ("denied", 1), ("parse_errors", 2)] {
        let line = format!("cilium_policy_l7_total{{rule=\"{rule}\",proxy_type=\"envoy\"}} {count}");
        assert!(text.contains(&line), "{line}\n{text}");
    }
    drop(a);
    b.send(&entry(EntryType::Denied, "/c")).unwrap();
    world.hive.until("another connection goes on", || world.log.0.lock().len() == 4).await;
    world.end().await;
}
