//! Many services: a restart changes none of them, and maps that are too small have only complete ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use integration_tests::{Node, Pod, ServiceFixture as Fixture, many_services, state_file};
use serde_json::Value;
use test_kit::{NetNs, TcpFlow, UdpFlow, require_root, try_wait_until};

const COUNT: u32 = 5_000;
const LIMIT: Duration = Duration::from_secs(60);
const SERVICE: &str = "10.96.0.10";

fn until(node: &Node, what: &str, mut ready: impl FnMut() -> Result<(), String>) {
    if let Err(error) = try_wait_until(LIMIT, &mut ready) {
        panic!("{what}: {error}\n{}", node.log());
    }
}

/// Waits until the agent has reported this many times that the maps are in sync with all sources.
fn synced(node: &Node, starts: usize) -> u64 {
    until(node, "in the maps", || match node.services_synced().0 {
        count if count >= starts => Ok(()),
        count => Err(format!("{count} starts")),
    });
    node.services_synced().1.unwrap()
}

type Rows = BTreeMap<&'static str, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Returns some of the entries that only one side has.
fn differences(before: &Rows, now: &Rows) -> Vec<String> {
    let missing = |sign: &str, of: &Rows, from: &Rows| -> Vec<String> {
        let rows = of.iter().flat_map(|(map, rows)| rows.iter().map(move |row| (map, row)));
        let missing = rows.filter(|(map, (key, value))| from[*map].get(*key) != Some(value));
        missing.take(5).map(|(map, row)| format!("{sign} {map} {row:02x?}")).collect()
    };
    [missing("-", before, now), missing("+", now, before)].concat()
}

#[expect(clippy::print_stdout, reason = "the numbers of the specification")]
#[test]
fn a_restart_with_thousands_of_services_touches_none_of_them() {
    require_root!();
    let mut node = Node::new();
    node.follow_services("lb.json");
    node.start();
    synced(&node, 1);
    let (client, server) = (node.add_pod("client"), node.add_pod("server"));
    let web = Fixture { ports: vec![80, 81], ..Fixture::new("web", &[SERVICE], &[&server.ipv4.to_string()]) };
    let all = many_services(COUNT, std::slice::from_ref(&web));
    node.write_services(&all);
    // A row for the address, and two a port and protocol.
    let rows = 3 * COUNT as usize + 9;
    until(&node, "rows", || match node.service_rows()["cilium_lb4_services_v2"].len() {
        found if found == rows => Ok(()),
        found => Err(format!("{found} rows instead of {rows}")),
    });
    let before = node.service_rows();
    assert_eq!(before["cilium_lb4_backends_v3"].len(), COUNT as usize + 4);

    let service = |port| SocketAddr::new(SERVICE.parse().unwrap(), port);
    let at = |port| SocketAddr::new(server.ipv4, port);
    let udp = UdpFlow::through(&client.ns, &server.ns, at(8080), Some(service(80))).unwrap();
    let tcp = TcpFlow::through(&client.ns, &server.ns, at(8081), Some(service(81))).unwrap();
    until(&node, "packets", || if udp.received() > 0 { Ok(()) } else { Err("none".to_owned()) });

    // A start with an incomplete source: nothing is added, changed or removed.
    node.kill();
    node.write_services("{\"services\": [");
    node.start();
    until(&node, "a refusal", || match node.log().contains("The state file is refused") {
        true => Ok(()),
        false => Err("no refusal".to_owned()),
    });
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        assert_eq!(differences(&before, &node.service_rows()), [""; 0], "{}", node.log());
    }
    assert_eq!(node.services_synced().0, 1);
    // It has: all is as it was.
    node.write_services(&all);
    let held = synced(&node, 2);
    assert_eq!(differences(&before, &node.service_rows()), [""; 0], "{}", node.log());

    // Services removed meanwhile are pruned once all sources are complete, and no others.
    node.kill();
    let fewer = many_services(COUNT - 1, &[web]);
    node.write_services(&fewer);
    node.spawn();
    let restarted = synced(&node, 3);
    let mut wanted = before.clone();
    until(&node, "one less", || {
        let now = node.service_rows();
        for (map, rows) in &now {
            assert!(
                rows.iter().all(|(key, value)| before[map].get(key) == Some(value)),
                "{map} has other rows"
            );
        }
        wanted.clone_from(&now);
        let gone: Vec<usize> = before.iter().map(|(map, rows)| rows.len() - now[map].len()).collect();
        if gone.iter().sum::<usize>() == 5 { Ok(()) } else { Err(format!("{gone:?}")) }
    });
    node.wait_ready();
    let missing = |map| before[map].len() - wanted[map].len();
    assert_eq!(
        ["cilium_lb4_services_v2", "cilium_lb4_backends_v3", "cilium_lb4_reverse_nat"].map(missing),
        [3, 1, 1]
    );
    let (udp, tcp) = (udp.stop(), tcp.stop());
    assert!(udp.is_perfect(), "{udp:?}\n{}", node.log());
    assert!(tcp.is_perfect(), "{tcp:?}\n{}", node.log());
    println!("{COUNT} services: in step {held} and {restarted} ms after the sources had spoken");
}

/// Answers every request until the test ends.
fn serve(pod: &Pod) {
    let socket = pod.ns.run(|| UdpSocket::bind((pod.ipv4, 8080))).unwrap();
    let work = move || {
        let mut request = [0; 16];
        while let Ok((length, from)) = socket.recv_from(&mut request) {
            let _ = socket.send_to(&request[..length], from);
        }
    };
    Builder::new().name("server".to_owned()).spawn(work).unwrap();
}

fn answers(from: &NetNs, ip: IpAddr, patience: Duration) -> bool {
    let socket =
        from.run(|| UdpSocket::bind("0.0.0.0:0").and_then(|s| s.connect((ip, 80)).map(|()| s))).unwrap();
    socket.set_read_timeout(Some(patience)).unwrap();
    socket.send(b"who").is_ok() && socket.recv(&mut [0; 16]).is_ok()
}

/// Waits until the maps have this many services. Returns them, and the errors of the others.
fn served(node: &Node, count: usize) -> (BTreeSet<IpAddr>, BTreeMap<IpAddr, String>) {
    let (mut done, mut errors) = (BTreeMap::new(), BTreeMap::new());
    until(node, "statuses", || {
        done.clear();
        let frontends = node.frontends();
        let mut all = BTreeSet::new();
        for frontend in &frontends {
            let address = frontend["Address"].as_str().unwrap();
            let ip: IpAddr = address.rsplit_once(':').unwrap().0.parse().unwrap();
            all.insert(ip);
            match (&frontend["Status"]["kind"], &frontend["Status"]["error"]) {
                (Value::String(kind), _) if kind == "Done" => *done.entry(ip).or_insert(0) += 1,
                (_, Value::String(error)) => _ = errors.insert(ip, error.clone()),
                _ => {}
            }
        }
        // A status is none while its frontend is tried again.
        errors.retain(|ip, _| !done.contains_key(ip));
        match done.len() == count && done.len() + errors.len() == all.len() {
            true => Ok(()),
            false => Err(format!("{} are served, {} have errors", done.len(), errors.len())),
        }
    });
    // UDP and TCP.
    assert!(done.values().all(|frontends| *frontends == 2), "half a service: {done:?}");
    (done.into_keys().collect(), errors)
}

#[test]
fn a_full_map_has_whole_services_that_answer_and_takes_others_when_there_is_room() {
    require_root!();
    let mut node = Node::new();
    node.follow_services("lb.json");
    // Five rows a service: ten fit.
    node.config.insert("bpf-lb-service-map-max".into(), "52".into());
    node.start();
    let (client, server) = (node.add_pod("client"), node.add_pod("server"));
    serve(&server);
    let backend = server.ipv4.to_string();
    let ip = |n: usize| IpAddr::from([10, 96, 0, n as u8]);
    let fixture = |n: usize| Fixture::new(&format!("s{n}"), &[&ip(n).to_string()], &[&backend]);
    let mut services: Vec<Fixture> = (1..=20).map(fixture).collect();
    let check = |node: &Node, count: usize| -> BTreeSet<IpAddr> {
        let (served, errors) = served(node, count);
        for error in errors.values() {
            let reported = error.contains("map cilium_lb4_services_v2 is full")
                && error.contains("bpf-lb-service-map-max");
            assert!(reported, "{error}");
        }
        let rows = node.service_rows();
        assert_eq!(rows["cilium_lb4_services_v2"].len(), 5 * count, "half a service");
        assert_eq!(rows["cilium_lb4_reverse_nat"].len(), 2 * count);
        for ip in &served {
            assert!(answers(&client.ns, *ip, LIMIT), "{ip}\n{}", node.log());
        }
        for ip in errors.keys() {
            assert!(!answers(&client.ns, *ip, Duration::from_millis(100)), "{ip} is not in the maps");
        }
        served
    };
    node.write_services(&state_file(&services));
    let first = check(&node, 10);

    // Another agent finds the same ones.
    node.kill();
    node.start();
    sleep(Duration::from_millis(300));
    assert_eq!(check(&node, 10), first);

    // Of the refused services, as many as fit now.
    services.retain(|service| !first.iter().take(5).any(|ip| ip.to_string() == service.addresses[0]));
    node.write_services(&state_file(&services));
    until(&node, "five of them gone", || {
        let found = node.frontends().len();
        if found == 30 { Ok(()) } else { Err(format!("{found} frontends")) }
    });
    let second = check(&node, 10);
    assert_eq!(second.intersection(&first).count(), 5);

    services.truncate(9);
    node.write_services(&state_file(&services));
    until(&node, "six of them gone", || {
        let found = node.frontends().len();
        if found == 18 { Ok(()) } else { Err(format!("{found} frontends")) }
    });
    assert_eq!(check(&node, 9).len(), 9);
}
