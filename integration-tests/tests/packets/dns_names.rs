//! A pod reaches what a DNS name that policy allows resolves to, and nothing else, over a kill of the agent. A standalone
//! proxy answers meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{Process, TcpFlow, require_command, require_root, wait_until};

/// The address of names, and one that only names with `new` have.
const NAMED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 3);
const LIMIT: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);
/// The code of a refused query (RFC 1035).
const REFUSED: u8 = 5;

/// Returns a query for the address of a name.
fn query(name: &str) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// Returns the answer of the server: [`OTHER`] for names that begin with `new`, [`NAMED`] for any other.
fn answer(query: &[u8]) -> Vec<u8> {
    let mut answer = query.to_vec();
    (answer[2], answer[3], answer[7]) = (0x81, 0x80, 1);
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    answer.extend(if query[13..].starts_with(b"new") { OTHER.octets() } else { NAMED.octets() });
    answer
}

/// Asks the server for a name. Returns the code of the answer and whether it has the address.
fn ask(pod: &Pod, name: &str) -> Option<(u8, bool)> {
    ask_udp(pod, Node::WORLD_IPV4, name)
}

fn ask_udp(pod: &Pod, server: &str, name: &str) -> Option<(u8, bool)> {
    let server = SocketAddr::new(server.parse().unwrap(), 53);
    let any: IpAddr = if server.is_ipv4() { "0.0.0.0".parse().unwrap() } else { "::".parse().unwrap() };
    let socket = pod.ns.run(|| UdpSocket::bind((any, 0))).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.send_to(&query(name), server).ok()?;
    let mut buffer = [0; 512];
    let (length, from) = socket.recv_from(&mut buffer).ok()?;
    assert_eq!(from, server);
    Some((buffer[3] & 15, buffer[..length].ends_with(&NAMED.octets())))
}

fn ask_tcp(pod: &Pod, server: &str, name: &str) -> Option<(u8, bool)> {
    let server = SocketAddr::new(server.parse().unwrap(), 53);
    let mut stream = pod.ns.run(|| TcpStream::connect_timeout(&server, TIMEOUT)).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let query = query(name);
    stream.write_all(&[&[0, u8::try_from(query.len()).unwrap()], &query[..]].concat()).ok()?;
    let mut length = [0; 2];
    stream.read_exact(&mut length).ok()?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer).ok()?;
    Some((answer[3] & 15, answer.ends_with(&NAMED.octets())))
}

/// Answers queries at port 53 of the world's addresses, over UDP and TCP, until `done`.
fn serve<'s>(scope: &'s thread::Scope<'s, '_>, node: &Node, done: &'s AtomicBool) {
    for address in [Node::WORLD_IPV4, Node::WORLD_IPV6] {
        let address = SocketAddr::new(address.parse().unwrap(), 53);
        let (udp, tcp) =
            node.world().run(|| (UdpSocket::bind(address).unwrap(), TcpListener::bind(address).unwrap()));
        udp.set_read_timeout(Some(POLL)).unwrap();
        tcp.set_nonblocking(true).unwrap();
        scope.spawn(move || {
            let mut buffer = [0; 512];
            while !done.load(Ordering::Relaxed) {
                if let Ok((length, from)) = udp.recv_from(&mut buffer) {
                    let _ = udp.send_to(&answer(&buffer[..length]), from);
                }
            }
        });
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = tcp.accept() else {
                    thread::sleep(POLL);
                    continue;
                };
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let mut length = [0; 2];
                while stream.read_exact(&mut length).is_ok() {
                    let mut query = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut query).unwrap();
                    let answer = answer(&query);
                    let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                    stream.write_all(&[&length[..], &answer].concat()).unwrap();
                }
            }
        });
    }
}

fn reaches(node: &Node, pod: &Pod, to: Ipv4Addr) -> bool {
    let server = node.world().run(|| UdpSocket::bind((to, 0))).unwrap();
    let client = pod.ns.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let _ = client.send_to(b"first", server.local_addr().unwrap());
    server.recv_from(&mut [0; 16]).is_ok()
}

/// Runs `check` with a node, and a pod that may ask the world for names of `allowed.test` and reach their addresses.
fn staged(options: &[(&str, &str)], check: impl FnOnce(&mut Node, &Pod)) {
    let mut node = Node::new();
    node.config.insert("install-iptables-rules".to_owned(), "true".to_owned());
    node.config.extend(options.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())));
    node.config.insert("enable-ipv4-masquerade".to_owned(), "false".to_owned());
    node.config.insert("enable-hubble".to_owned(), "true".to_owned());
    let socket = node.socket().with_file_name("hubble.sock");
    node.config.insert("hubble-socket-path".to_owned(), socket.display().to_string());
    for address in [NAMED, OTHER] {
        node.world().ip(&format!("addr add {address}/32 dev eth0")).unwrap();
    }
    node.start();
    node.apply("names.yaml", &policy("*.allowed.test"));
    let pod = node.add_pod("client");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        serve(scope, &node, &done);
        let checks = std::panic::AssertUnwindSafe(|| check(&mut node, &pod));
        let result = std::panic::catch_unwind(checks);
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Lets pods ask the world for names of a pattern, and reach the addresses of those of `allowed.test`.
fn policy(pattern: &str) -> String {
    let policy = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "names", "namespace": "default"},
        "spec": {"endpointSelector": {}, "egress": [
            {
                "toCIDR": [format!("{}/32", Node::WORLD_IPV4), format!("{}/128", Node::WORLD_IPV6)],
                "toPorts": [{
                    "ports": [{"port": "53", "protocol": "ANY"}],
                    "rules": {"dns": [{"matchPattern": pattern}]},
                }],
            },
            {"toFQDNs": [{"matchPattern": "*.allowed.test"}]},
        ]},
    });
    policy.to_string()
}

/// Checks the flows of the denied query, of the allowed one with its answer, and of the verdict on their packets.
fn check_flows(node: &Node) {
    let flows = || -> Vec<Value> {
        let lines = node.apiary(&["hubble", "observe", "--all", "-o", "json"]);
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["flow"].clone()).collect()
    };
    let find = |matches: &dyn Fn(&Value) -> bool| flows().into_iter().find(|flow| matches(flow));
    let wait = |matches: &dyn Fn(&Value) -> bool| {
        wait_until("the flow", LIMIT, || find(matches).is_some());
        find(matches).unwrap()
    };
    let denied = wait(&|flow| flow["l7"]["dns"]["query"] == "www.denied.test.");
    assert_eq!(
        (&denied["verdict"], &denied["traffic_direction"]),
        (&json!("DROPPED"), &json!("EGRESS")),
        "{denied}"
    );
    assert_eq!(
        (&denied["source"]["pod_name"], &denied["l7"]["type"]),
        (&json!("client"), &json!("REQUEST")),
        "{denied}"
    );
    assert_eq!(denied["Summary"], "DNS Query www.denied.test. A");
    let labels = denied["source"]["labels"].as_array().unwrap();
    assert!(labels.contains(&json!("k8s:io.kubernetes.pod.namespace=default")), "{denied}");
    let answer = wait(&|flow| flow["l7"]["type"] == "RESPONSE");
    assert_eq!(answer["l7"]["dns"]["ips"], json!([NAMED.to_string()]), "{answer}");
    assert_eq!(
        (&answer["IP"]["source"], &answer["l4"]["UDP"]["source_port"]),
        (&json!(Node::WORLD_IPV4), &json!(53)),
        "{answer}"
    );
    assert_eq!(
        (&answer["destination"]["pod_name"], &answer["is_reply"]),
        (&json!("client"), &json!(true)),
        "{answer}"
    );
    let verdict =
        wait(&|flow| flow["event_type"]["type"] == 5 && flow["l4"]["UDP"]["destination_port"] == 53);
    let policy = &verdict["egress_allowed_by"][0];
    assert_eq!(
        (&policy["name"], &policy["kind"]),
        (&json!("names"), &json!("CiliumNetworkPolicy")),
        "{verdict}"
    );
    assert_eq!(verdict["verdict"], "REDIRECTED", "{verdict}");
    let named = wait(&|flow| flow["destination_names"].is_array());
    assert_eq!(named["IP"]["destination"], NAMED.to_string(), "{named}");
    let name = named["destination_names"][0].as_str().unwrap();
    assert!(name.ends_with(".allowed.test"), "{named}");
    let by_name = node.apiary(&["hubble", "observe", "--all", "--to-fqdn", "*.allowed.test", "-o", "json"]);
    assert!(by_name.lines().count() > 0 && by_name.lines().all(|line| line.contains(name)), "{by_name}");
}

#[test]
fn a_pod_reaches_the_addresses_of_allowed_names_over_a_kill() {
    require_root!();
    require_command!("iptables");
    staged(&[("dns-policy-unload-on-shutdown", "true")], |node, pod| {
        check(node, pod);
        check_unload(node, pod);
    });
}

/// An orderly end lets queries pass where every name is allowed, and no others.
fn check_unload(node: &mut Node, pod: &Pod) {
    node.stop();
    assert_eq!(ask(pod, "www.allowed.test"), None, "without a proxy names of a pattern are not allowed");
    node.apply("names.yaml", &policy("*"));
    node.start();
    let cached = |node: &Node, name: &str| node.get("/v1/fqdn/cache").to_string().contains(name);
    let by_proxy = |node: &Node, name: &str| {
        wait_until("queries are answered by the proxy", LIMIT, || {
            ask(pod, name) == Some((0, true)) && cached(node, name)
        });
    };
    by_proxy(node, "first.denied.test");
    node.stop();
    for server in [Node::WORLD_IPV4, Node::WORLD_IPV6] {
        for ask in [ask_udp, ask_tcp] {
            assert_eq!(ask(pod, server, "www.denied.test"), Some((0, true)), "{server}\n{}", node.log());
        }
    }
    node.start();
    by_proxy(node, "second.denied.test");
    assert!(!cached(node, "www.denied.test"), "asked without the proxy");
}

/// The same, but that programs give the queries to sockets of the proxy: no rule of iptables leads there.
#[test]
fn queries_reach_the_proxy_without_rules_of_iptables() {
    require_root!();
    require_command!("iptables");
    for install in ["true", "false"] {
        staged(&[("enable-bpf-tproxy", "true"), ("install-iptables-rules", install)], |node, pod| {
            check(node, pod);
            for family in ["iptables-save", "ip6tables-save"] {
                let rules = node.host().exec(family).unwrap();
                assert_eq!(rules.contains("CILIUM_PRE_mangle"), install == "true", "{rules}");
                assert!(!rules.contains("TPROXY"), "{rules}");
            }
        });
    }
}

fn check(node: &mut Node, pod: &Pod) {
    wait_until("queries are decided by the proxy", LIMIT, || {
        ask(pod, "www.denied.test") == Some((REFUSED, false))
    });
    assert!(!reaches(node, pod, NAMED), "before its name was asked for");
    assert_eq!(ask(pod, "www.allowed.test"), Some((0, true)), "{}", node.log());
    assert!(reaches(node, pod, NAMED), "the first packet passes\n{}", node.log());
    assert!(!reaches(node, pod, OTHER), "no name has this address");
    for server in [Node::WORLD_IPV4, Node::WORLD_IPV6] {
        for ask in [ask_udp, ask_tcp] {
            assert_eq!(ask(pod, server, "www.allowed.test"), Some((0, true)), "{server}\n{}", node.log());
            assert_eq!(ask(pod, server, "www.denied.test"), Some((REFUSED, false)), "{server}");
        }
    }
    let names = node.get("/v1/fqdn/cache");
    assert_eq!(names[0]["fqdn"], "www.allowed.test.", "{names}");

    check_flows(node);

    let flow = TcpFlow::start(&pod.ns, node.world(), NAMED.into()).unwrap();
    node.kill();
    let records = std::fs::read_dir(node.endpoint_files()).unwrap().filter_map(|entry| {
        let file = std::fs::read(entry.unwrap().path().join("ep_config.json")).ok()?;
        Some(serde_json::from_slice::<Value>(&file).unwrap())
    });
    let records: Vec<Value> = records.collect();
    let has_names = |record: &&Value| {
        record["DNSHistory"][0]["fqdn"] == "www.allowed.test." && !record["DNSRulesV2"]["17891381"].is_null()
    };
    assert_eq!(records.iter().filter(has_names).count(), 1, "{records:#?}");
    thread::sleep(Duration::from_millis(100));
    node.start();
    thread::sleep(Duration::from_millis(500));
    let report = flow.stop();
    assert!(report.is_perfect(), "{report:?}\n{}", node.log());
    assert!(reaches(node, pod, NAMED), "the name outlives the agent");
    assert!(!reaches(node, pod, OTHER));
}

/// Ends a flow, also if the test panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Queries at a rate, from one socket.
struct Flow {
    sent: usize,
    answered: usize,
    refused: usize,
    /// Answers that took longer than [`LATE`].
    late: usize,
    slowest: Duration,
}

/// The time after which an answer is late.
const LATE: Duration = Duration::from_millis(20);

/// Asks for a known and for ever new names by turns until `done`, one each interval, and waits for the last answers.
fn flow(pod: &Pod, interval: Duration, done: &AtomicBool) -> Flow {
    let socket = pod.ns.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    socket.connect((Node::WORLD_IPV4, 53)).unwrap();
    socket.set_read_timeout(Some(interval)).unwrap();
    let mut flow = Flow { sent: 0, answered: 0, refused: 0, late: 0, slowest: Duration::ZERO };
    let mut times = vec![None; 1 << 16];
    let mut buffer = [0; 512];
    let (mut next, mut last_answer) = (Instant::now(), Instant::now());
    while !done.load(Ordering::Relaxed) || flow.answered < flow.sent && last_answer.elapsed() < TIMEOUT {
        if next <= Instant::now() && !done.load(Ordering::Relaxed) {
            let name = match flow.sent % 2 {
                0 => "www.allowed.test".to_owned(),
                _ => format!("n{}.allowed.test", flow.sent),
            };
            let mut query = query(&name);
            // Ids of answered queries are used again.
            let id = u16::try_from(flow.sent % times.len()).unwrap();
            query[..2].copy_from_slice(&id.to_be_bytes());
            times[usize::from(id)] = Some(Instant::now());
            socket.send(&query).unwrap();
            flow.sent += 1;
            next += interval;
        }
        let Ok(length) = socket.recv(&mut buffer) else { continue };
        let id = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
        let sent: Instant = times[id].take().expect("one answer to each query");
        last_answer = Instant::now();
        let took = sent.elapsed();
        flow.slowest = flow.slowest.max(took);
        flow.late += usize::from(took > LATE);
        flow.answered += 1;
        flow.refused += usize::from(buffer[3] & 15 != 0 || !buffer[..length].ends_with(&NAMED.octets()));
    }
    flow
}

#[test]
fn a_standalone_proxy_answers_while_the_agent_is_away() {
    require_root!();
    require_command!("iptables");
    let options = [("enable-standalone-dns-proxy", "true"), ("tofqdns-proxy-port", "10094")];
    staged(&options, |node, pod| {
        let mut command = node.host().command(node.program.to_str().unwrap());
        let log = std::fs::File::create(node.sandbox().dir().join("proxy.log")).unwrap();
        command.args(["standalone-dns-proxy", "--config-dir"]).arg(node.sandbox().dir().join("config"));
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let _proxy = Process::start(&mut command).unwrap();
        wait_until("queries are decided by the proxy", LIMIT, || {
            ask(pod, "www.denied.test") == Some((REFUSED, false))
        });
        assert!(!reaches(node, pod, NAMED), "before its name was asked for");
        assert_eq!(ask(pod, "www.allowed.test"), Some((0, true)), "{}", node.log());
        assert!(reaches(node, pod, NAMED), "the first packet passes\n{}", node.log());
        check_flows(node);
        let done = AtomicBool::new(false);
        let flow = thread::scope(|scope| {
            let flow = scope.spawn(|| flow(pod, Duration::from_millis(2), &done));
            let end = SetOnDrop(&done);
            node.kill();
            thread::sleep(Duration::from_secs(2));
            assert_eq!(ask(pod, "www.denied.test"), Some((REFUSED, false)), "by the last policies");
            assert_eq!(ask(pod, "new.allowed.test"), Some((0, false)), "answered");
            let is_early = reaches(node, pod, OTHER);
            node.start();
            wait_until("the agent learns what was answered", LIMIT, || reaches(node, pod, OTHER));
            assert!(reaches(node, pod, NAMED));
            drop(end);
            assert!(!is_early, "there was no agent that could learn the address");
            flow.join().unwrap()
        });
        let proxy = std::fs::read_to_string(node.sandbox().dir().join("proxy.log")).unwrap();
        let Flow { sent, answered, refused, slowest, .. } = flow;
        assert!(sent > 1000 && answered == sent && refused == 0, "{sent} {answered} {refused}\n{proxy}");
        assert!(slowest < TIMEOUT, "{slowest:?}\n{proxy}");
    });
}

/// The first words of a command whose processes have a namespace of their own, which ends as a whole with its first
/// process, as a container does.
const OWN_NAMESPACE: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child=KILL"];

/// Starts the agent in a process namespace of its own, with another process beside it.
fn spawn_in_namespace(node: &mut Node) {
    let program = node.program.to_str().unwrap().to_owned();
    let beside = ["sh", "-c", "sleep 600 & exec \"$@\"", "sh", &program];
    let command = node.agent_command_of(&[&OWN_NAMESPACE[..], &beside].concat());
    node.spawn_command(command);
}

/// Returns a process and all below it.
fn family(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    std::iter::once(pid).chain(children.flat_map(family)).collect()
}

/// The drill of a DaemonSet: the container of the agent ends with all of its processes, that of the proxy does not.
#[test]
fn queries_at_a_kilohertz_survive_the_process_namespace_of_the_agent() {
    const ROUNDS: usize = 3;
    require_root!();
    require_command!("iptables");
    let options = [("enable-standalone-dns-proxy", "true"), ("tofqdns-proxy-port", "10096")];
    staged(&options, |node, pod| {
        node.stop();
        spawn_in_namespace(node);
        node.wait_ready();
        let mut command = node.host().command(OWN_NAMESPACE[0]);
        let log = std::fs::File::create(node.sandbox().dir().join("proxy.log")).unwrap();
        command.args(&OWN_NAMESPACE[1..]).arg(&node.program);
        command.args(["standalone-dns-proxy", "--config-dir"]).arg(node.sandbox().dir().join("config"));
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let _proxy = Process::start(&mut command).unwrap();
        wait_until("queries are decided by the proxy", LIMIT, || {
            ask(pod, "www.denied.test") == Some((REFUSED, false))
        });
        assert_eq!(ask(pod, "www.allowed.test"), Some((0, true)), "{}", node.log());
        let done = AtomicBool::new(false);
        let begin = Instant::now();
        let flow = thread::scope(|scope| {
            let flow = scope.spawn(|| flow(pod, Duration::from_millis(1), &done));
            let end = SetOnDrop(&done);
            for round in 0..ROUNDS {
                let processes = family(node.agent_pid());
                assert_eq!(processes.len(), 3, "unshare, the agent, sleep: {processes:?}");
                node.kill();
                let is_gone = |pid: &u32| {
                    // A zombie is waited for by another process.
                    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                    status.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
                };
                wait_until("the whole namespace is gone", LIMIT, || processes.iter().all(is_gone));
                assert_eq!(ask(pod, "www.denied.test"), Some((REFUSED, false)), "by the last policies");
                thread::sleep(Duration::from_millis(500));
                spawn_in_namespace(node);
                node.wait_ready();
                let new = format!("round{round}.allowed.test");
                assert_eq!(ask(pod, &new), Some((0, true)), "{}", node.log());
            }
            drop(end);
            flow.join().unwrap()
        });
        let proxy = std::fs::read_to_string(node.sandbox().dir().join("proxy.log")).unwrap();
        let Flow { sent, answered, refused, late, slowest } = flow;
        let counts = format!("{sent} queries in {:?}, {late} late, slowest {slowest:?}", begin.elapsed());
        assert!(
            sent > 500 * ROUNDS && answered == sent && refused == 0,
            "{counts}: {answered} answered, {refused} refused\n{proxy}"
        );
        // Beside other tests the machine itself delays some by 20 ms; a proxy that waits for an agent delays all queries
        // of its absence, half a second a round at least.
        assert!(late < 100 * ROUNDS && slowest < Duration::from_millis(500), "{counts}\n{proxy}");
    });
}
