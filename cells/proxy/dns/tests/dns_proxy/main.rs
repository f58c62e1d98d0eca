//! The proxy between a client and a DNS server in namespaces of their own. Routes lead the client's packets to it, as
//! rules of iptables do on a node.

mod stage;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dns_proxy::{Directory, DnsProxyConfig, RejectCode, testing};
use hickory_proto::op::{Message, ResponseCode};
use labels::Label;
use metrics::Metrics;
use monitor::Subscription;
use monitor_events::gob::{PREAMBLE, Payload, Reader};
use monitor_events::record::{Contents, DnsRecord, Record as LogRecord, RecordKind, RecordVerdict};
use test_kit::require_root;

use stage::*;

#[test]
fn queries_of_both_families_and_protocols_are_answered_by_the_asked_server() {
    require_root!();
    staged(DnsProxyConfig::default(), async |stage| {
        for server in [SERVER_V4, SERVER_V6, MARKED_SERVER] {
            let answer = stage.ask(server, "One.allowed.").await;
            assert_eq!((answer.id(), answer.answers().len()), (7, 1), "{server}");
            assert_eq!(stage.learned().pop(), Some(("one.allowed.".to_owned(), vec![ip(1)], 60)));
        }
        let mut stream = stage.connect();
        write(&mut stream, &query(9, "alias.allowed.")).await.unwrap();
        let answer = Message::from_vec(&read(&mut stream).await.unwrap()).unwrap();
        assert_eq!((answer.id(), answer.answers().len()), (9, 3), "as the server has sent it");
        // The name that was asked for has the addresses of its alias, and not those that the server adds.
        assert_eq!(stage.learned().pop(), Some(("alias.allowed.".to_owned(), vec![ip(2)], 30)));
        // The node's own addresses, without transparent mode.
        let seen = stage.seen.lock();
        let sources: Vec<String> = seen.iter().map(|(_, client)| client.ip().to_string()).collect();
        assert_eq!(sources, ["10.2.0.1", "fd02::1", "10.2.0.1", "10.2.0.1"]);
    });
}

#[test]
fn denied_queries_are_refused_and_not_forwarded() {
    require_root!();
    for (code, expected) in
        [(RejectCode::Refused, ResponseCode::Refused), (RejectCode::NameError, ResponseCode::NXDomain)]
    {
        let config = DnsProxyConfig { tofqdns_dns_reject_response_code: code, ..DnsProxyConfig::default() };
        staged(config, async |stage| {
            let answer = stage.ask(SERVER_V4, "other.test.").await;
            assert_eq!((answer.response_code(), answer.id()), (expected, 7));
            assert_eq!(answer.query().unwrap().name().to_string(), "other.test.");
            assert!(stage.seen.lock().is_empty() && stage.learned().is_empty());
            assert_eq!(
                stage.ask(SERVER_V4, "missing.allowed.").await.response_code(),
                ResponseCode::NXDomain
            );
            assert!(stage.learned().is_empty(), "no addresses");
            let text = stage.metrics.text();
            for line in [
                r#"cilium_policy_l7_total{rule="received",proxy_type="fqdn"} 2"#,
                r#"cilium_policy_l7_total{rule="denied",proxy_type="fqdn"} 1"#,
                r#"cilium_policy_l7_total{rule="forwarded",proxy_type="fqdn"} 1"#,
                r#"cilium_proxy_upstream_reply_seconds_count{error="denied",protocol_l7="dns",scope="totalTime"} 1"#,
            ] {
                assert!(text.contains(line), "{line} in {text}");
            }
        });
    }
}

/// Returns the records that a subscription has.
async fn records(events: &Subscription) -> Vec<LogRecord> {
    let (mut stream, mut reader) = (PREAMBLE.to_vec(), Reader::default());
    let _ = tokio::time::timeout(Duration::from_millis(1), events.read(&mut stream, usize::MAX)).await;
    reader.push(&stream);
    let mut all = Vec::new();
    while let Some(value) = reader.next_value().unwrap() {
        let payload = Payload::from(value);
        let Ok(monitor_events::Event::Record(record)) = monitor_events::decode(&payload.data) else {
            panic!("{payload:?}")
        };
        all.push(*record);
    }
    all
}

fn dns(record: &LogRecord) -> &DnsRecord {
    let Contents::Dns(dns) = &record.contents else { panic!("{record:?}") };
    assert_eq!(dns.source, "proxy");
    dns
}

#[test]
fn queries_answers_and_refusals_are_records_for_monitors() {
    require_root!();
    let config = DnsProxyConfig { dnsproxy_concurrency_limit: 1, ..DnsProxyConfig::default() };
    staged(config, async |stage| {
        stage.ask(SERVER_V4, "before.allowed.").await;
        let events = stage.monitor.subscribe();
        assert_eq!(records(&events).await, [], "none of the time without a subscription");
        assert!(stage.node.described.lock().is_empty(), "and nothing was looked up");

        let mut stream = stage.connect();
        write(&mut stream, &query(9, "alias.allowed.")).await.unwrap();
        read(&mut stream).await.unwrap();
        let all = records(&events).await;
        let [request, response] = &all[..] else { panic!("{all:?}") };
        assert_eq!((request.kind, request.verdict), (RecordKind::Request, RecordVerdict::Forwarded));
        assert_eq!(request.metadata, ["rack=1"]);
        assert_eq!(
            (request.info.as_str(), request.protocol, request.is_ipv6),
            ("Allowed by policy", 6, false)
        );
        assert_eq!(request.node, ["192.0.2.1".to_owned(), String::new()]);
        let (client, server) = (&request.source, &request.destination);
        assert_eq!(
            (client.id, client.identity, client.address),
            (7, 1000, Some(IpAddr::from([10, 1, 0, 2])))
        );
        assert_eq!(client.labels, [Label::parse("k8s:id=1000")]);
        assert_eq!((server.id, server.identity, server.port), (0, 2, 53));
        assert_eq!((dns(request).query.as_str(), &dns(request).qtypes[..]), ("alias.allowed.", &[1][..]));
        assert_eq!((dns(request).ips.len(), dns(request).ttl), (0, 0));
        assert_eq!(
            (response.kind, &response.source, &response.destination),
            (RecordKind::Response, server, client)
        );
        // The answer has the ends of its query, whatever has become of the endpoint.
        assert_eq!(*stage.node.described.lock(), [1000, 2]);
        let answer = dns(response);
        assert_eq!((&answer.ips[..], answer.ttl, answer.rcode), (&[ip(2)][..], 30, 0));
        assert_eq!(
            (&answer.cnames[..], &answer.answer_types[..]),
            (&["target.test.".to_owned()][..], &[5, 1, 1][..])
        );

        // A standalone proxy reports these events, and the agent publishes and counts them.
        let metrics = Metrics::default();
        let observer = testing::observer(stage.node.clone(), &metrics, stage.monitor.clone());
        let client = stage.node.client(IpAddr::from([10, 1, 0, 2])).unwrap();
        let observed = std::mem::take(&mut *stage.node.observed.lock());
        observed[observed.len() - 2..].iter().for_each(|event| observer.observe(client, event));
        let mut reported = records(&events).await;
        assert_eq!(reported.len(), 2);
        for (reported, own) in reported.iter_mut().zip(&all) {
            let Contents::Dns(dns) = &mut reported.contents else { panic!("{reported:?}") };
            assert_eq!(std::mem::replace(&mut dns.source, "proxy".to_owned()), "standalone-proxy");
            reported.timestamp.clone_from(&own.timestamp);
            assert_eq!(reported, own);
        }
        let text = metrics.text();
        for line in [
            r#"cilium_policy_l7_total{rule="received",proxy_type="fqdn"} 1"#,
            r#"cilium_policy_l7_total{rule="forwarded",proxy_type="fqdn"} 1"#,
            r#"cilium_proxy_upstream_reply_seconds_count{error="allow",protocol_l7="dns",scope="totalTime"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }

        // A denied query over IPv6, with a name that would control a terminal.
        let mut message = query(7, "12345.Other.test.");
        let at = message.windows(5).position(|bytes| bytes == b"12345").unwrap();
        message[at..at + 5].copy_from_slice(b"\x1b]0;x");
        let socket = stage.udp(SERVER_V6);
        socket.send(&message).await.unwrap();
        assert_eq!(reply(&socket).await.response_code(), ResponseCode::Refused);
        let all = records(&events).await;
        let [denied] = &all[..] else { panic!("{all:?}") };
        assert_eq!(
            (denied.kind, denied.verdict, denied.is_ipv6),
            (RecordKind::Request, RecordVerdict::Denied, true)
        );
        assert_eq!((denied.info.as_str(), denied.protocol), ("Denied by policy", 17));
        assert_eq!(dns(denied).query, "\\027\\]0\\;x.other.test.");

        // One query in flight is the limit: the second one is refused.
        let gated = stage.udp(SERVER_V4);
        gated.send(&query(7, "gated.allowed.")).await.unwrap();
        while stage.learned().last().is_none_or(|(name, ..)| name != "gated.allowed.") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(stage.ask(SERVER_V4, "second.allowed.").await.response_code(), ResponseCode::ServFail);
        stage.node.gate.notify_one();
        reply(&gated).await;
        assert_eq!(stage.ask(SERVER_V4, "missing.allowed.").await.response_code(), ResponseCode::NXDomain);
        let all = records(&events).await;
        let short: Vec<_> = all
            .iter()
            .map(|record| (dns(record).query.as_str(), record.verdict, dns(record).rcode, dns(record).ttl))
            .collect();
        use RecordVerdict::{Error, Forwarded};
        let expected = [
            ("gated.allowed.", Forwarded, 0, 0),
            ("second.allowed.", Error, 0, 0),
            // Of the answer when it is released.
            ("gated.allowed.", Forwarded, 0, 60),
            ("missing.allowed.", Forwarded, 0, 0),
            ("missing.allowed.", Forwarded, 3, u32::MAX),
        ];
        assert_eq!(short, expected);
        assert_eq!(all[1].info, "Error: too many DNS queries at once");
    });
}

#[test]
fn a_query_before_the_rules_of_its_client_is_decided_later() {
    require_root!();
    staged(DnsProxyConfig::default(), async |stage| {
        stage.node.is_behind.store(true, Ordering::Relaxed);
        let rules = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            stage.node.is_behind.store(false, Ordering::Relaxed);
        };
        let (answer, ()) = tokio::join!(stage.ask(SERVER_V4, "a.allowed."), rules);
        assert_eq!(answer.response_code(), ResponseCode::NoError);
        stage.node.is_behind.store(true, Ordering::Relaxed);
        let answer = stage.ask(SERVER_V4, "a.allowed.").await;
        assert_eq!(answer.response_code(), ResponseCode::Refused, "rules that do not come");
    });
}

#[test]
fn forged_answers_are_ignored() {
    require_root!();
    staged(DnsProxyConfig::default(), async |stage| {
        let answer = stage.ask(SERVER_V4, "forged.allowed.").await;
        assert_eq!(answer.query().unwrap().name().to_string(), "forged.allowed.");
        assert_eq!(stage.learned(), [("forged.allowed.".to_owned(), vec![ip(1)], 60)]);
    });
}

#[test]
fn answers_are_released_after_their_addresses_are_known() {
    require_root!();
    staged(DnsProxyConfig::default(), async |stage| {
        let socket = stage.udp(SERVER_V4);
        socket.send(&query(1, "gated.allowed.")).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(300), reply(&socket)).await;
        assert!(early.is_err() && stage.learned().len() == 1, "held, after it was reported");
        stage.node.gate.notify_one();
        assert_eq!(reply(&socket).await.id(), 1);
    });
}

#[test]
fn queries_over_tcp_are_pipelined() {
    require_root!();
    staged(DnsProxyConfig::default(), async |stage| {
        let mut stream = stage.connect();
        // The first answer comes last; all have the same id.
        for name in ["late.allowed.", "denied.test.", "early.allowed."] {
            write(&mut stream, &query(5, name)).await.unwrap();
        }
        let mut names = Vec::new();
        for _ in 0..3 {
            let answer = Message::from_vec(&read(&mut stream).await.unwrap()).unwrap();
            assert_eq!(answer.id(), 5);
            names.push(answer.query().unwrap().name().to_string());
        }
        assert_eq!(names, ["denied.test.", "early.allowed.", "late.allowed."]);
        for id in 0..200 {
            write(&mut stream, &query(id, "more.allowed.")).await.unwrap();
            let answer = Message::from_vec(&read(&mut stream).await.unwrap()).unwrap();
            assert_eq!((answer.id(), answer.response_code()), (id, ResponseCode::NoError));
        }
    });
}

#[test]
fn transparent_mode_shows_the_client_to_servers_of_the_cluster() {
    require_root!();
    let config = DnsProxyConfig { dnsproxy_enable_transparent_mode: true, ..DnsProxyConfig::default() };
    staged(config, async |stage| {
        let socket = stage.udp(SERVER_V4);
        // As glibc does: two queries by one socket. These even have the same id.
        socket.send(&query(3, "a.allowed.")).await.unwrap();
        socket.send(&query(3, "b.allowed.")).await.unwrap();
        let mut names = Vec::new();
        for _ in 0..2 {
            let answer = reply(&socket).await;
            assert_eq!(answer.id(), 3);
            names.push(answer.query().unwrap().name().to_string());
        }
        names.sort();
        assert_eq!(names, ["a.allowed.", "b.allowed."]);
        let client = socket.local_addr().unwrap();
        assert_eq!(client.ip(), IpAddr::from([10, 1, 0, 2]));
        assert!(stage.seen.lock().iter().all(|(_, seen)| *seen == client));
        // A server that must not see the client sees the node.
        stage.ask(SERVER_V6, "c.allowed.").await;
        assert_eq!(stage.seen.lock().last().unwrap().1.ip().to_string(), "fd02::1");
        let mut stream = stage.connect();
        write(&mut stream, &query(9, "d.allowed.")).await.unwrap();
        read(&mut stream).await.unwrap();
        assert_eq!(stage.seen.lock().last().unwrap().1, stream.local_addr().unwrap());
    });
}

#[test]
fn the_limit_of_queries_refuses_after_the_grace_period() {
    require_root!();
    let limited = DnsProxyConfig { dnsproxy_concurrency_limit: 1, ..DnsProxyConfig::default() };
    let grace = Duration::from_secs(20);
    let patient = DnsProxyConfig { dnsproxy_concurrency_processing_grace_period: grace, ..limited.clone() };
    for config in [limited, patient] {
        let is_patient = !config.dnsproxy_concurrency_processing_grace_period.is_zero();
        staged(config, async |stage| {
            let (first, second) = (stage.udp(SERVER_V4), stage.udp(SERVER_V4));
            first.send(&query(1, "gated.allowed.")).await.unwrap();
            while stage.learned().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            second.send(&query(2, "b.allowed.")).await.unwrap();
            let early = tokio::time::timeout(Duration::from_millis(300), reply(&second)).await;
            match early {
                Ok(answer) => assert!(!is_patient && answer.response_code() == ResponseCode::ServFail),
                Err(_) => assert!(is_patient, "a query waits without a grace period"),
            }
            stage.node.gate.notify_one();
            assert_eq!(reply(&first).await.response_code(), ResponseCode::NoError);
            if is_patient {
                assert_eq!(reply(&second).await.response_code(), ResponseCode::NoError);
            }
        });
    }
}

#[test]
fn queries_that_wait_for_the_limit_cannot_fill_the_memory() {
    require_root!();
    let grace = Duration::from_secs(20);
    let config = DnsProxyConfig {
        dnsproxy_concurrency_limit: 1,
        dnsproxy_concurrency_processing_grace_period: grace,
        ..DnsProxyConfig::default()
    };
    staged(config, async |stage| {
        let first = stage.udp(SERVER_V4);
        first.send(&query(1, "gated.allowed.")).await.unwrap();
        while stage.learned().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut stream = stage.connect();
        let mut large = query(2, "b.allowed.");
        large.resize(60_000, 0);
        for _ in 0..75 {
            write(&mut stream, &large).await.unwrap();
        }
        // 69 of them have 4 MiB.
        for _ in 0..6 {
            let answer = Message::from_vec(&read(&mut stream).await.unwrap()).unwrap();
            assert_eq!(answer.response_code(), ResponseCode::ServFail);
        }
        assert!(tokio::time::timeout(Duration::from_millis(100), read(&mut stream)).await.is_err());
        stage.node.gate.notify_one();
        assert_eq!(reply(&first).await.response_code(), ResponseCode::NoError);
    });
}

#[test]
fn large_answers_come_over_tcp() {
    require_root!();
    staged(DnsProxyConfig::default(), async |stage| {
        let answer = stage.ask(SERVER_V4, "large.allowed.").await;
        assert!(answer.truncated() && answer.answers().is_empty());
        let mut stream = stage.connect();
        write(&mut stream, &query(9, "large.allowed.")).await.unwrap();
        let answer = Message::from_vec(&read(&mut stream).await.unwrap()).unwrap();
        assert_eq!((answer.truncated(), answer.answers().len()), (false, 60));
        assert_eq!(stage.learned().pop().unwrap().1.len(), 60);
    });
}

#[test]
fn a_server_that_does_not_answer_is_reported() {
    require_root!();
    staged(DnsProxyConfig::default(), async |stage| {
        // Only the limit of the query moves the time.
        tokio::time::pause();
        let answer = stage.ask(SERVER_V4, "silent.allowed.").await;
        assert_eq!(answer.response_code(), ResponseCode::ServFail);
        let line = r#"cilium_proxy_upstream_reply_seconds_count{error="timeout",protocol_l7="dns",scope="totalTime"} 1"#;
        assert!(stage.metrics.text().contains(line));
    });
}

#[test]
fn a_server_that_ends_its_connection_is_an_error_for_its_queries() {
    require_root!();
    staged(DnsProxyConfig::default(), async |stage| {
        let mut stream = stage.connect();
        for (id, name) in [(1, "late.allowed."), (2, "reset.allowed.")] {
            write(&mut stream, &query(id, name)).await.unwrap();
        }
        let mut failed = BTreeSet::new();
        for _ in 0..2 {
            let answer = Message::from_vec(&read(&mut stream).await.unwrap()).unwrap();
            assert_eq!(answer.response_code(), ResponseCode::ServFail);
            failed.insert(answer.id());
        }
        assert_eq!(failed, [1, 2].into(), "both, at once");
        assert!(stage.learned().is_empty());
        // The client's own connection goes on, by another one to the server.
        write(&mut stream, &query(3, "a.allowed.")).await.unwrap();
        let answer = Message::from_vec(&read(&mut stream).await.unwrap()).unwrap();
        assert_eq!((answer.id(), answer.response_code()), (3, ResponseCode::NoError));
    });
}

#[test]
fn messages_that_are_no_queries_are_not_forwarded() {
    require_root!();
    staged(DnsProxyConfig::default(), async |stage| {
        let socket = stage.udp(SERVER_V4);
        let mut response = query(1, "a.allowed.");
        response[2] |= 0x80;
        let mut update = query(2, "a.allowed.");
        update[2] |= 5 << 3;
        for message in [&response[..], &[1, 2, 3], &update] {
            socket.send(message).await.unwrap();
        }
        // Only the last one is answered.
        let answer = reply(&socket).await;
        assert_eq!((answer.id(), answer.response_code()), (2, ResponseCode::NotImp));
        assert!(stage.seen.lock().is_empty());
    });
}
