//! Events of real packets, as the command `monitor` and other listeners of the socket get them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use datapath_abi::event::{DROP, TRACE};
use datapath_abi::trace as point;
use integration_tests::cast::identity;
use integration_tests::{Node, Pod};
use monitor_events::Event;
use monitor_events::gob::{LOST, Payload, Reader, SAMPLE};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use test_kit::{NetNs, require_root, wait_until};

/// Generous: nothing here depends on the time it takes.
const LIMIT: Duration = Duration::from_secs(30);

/// The command, with its output in a file.
struct Follower {
    child: Child,
    file: PathBuf,
}

impl Follower {
    fn start(node: &Node, name: &str, options: &[&str]) -> Self {
        let file = node.sandbox().dir().join(name);
        let words = [&["monitor"], options].concat();
        let output = File::create(&file).unwrap();
        let mut command = node.apiary_command(&words);
        let errors = output.try_clone().unwrap();
        let child = command.stdout(output).stderr(errors).stdin(Stdio::null()).spawn().unwrap();
        let follower = Self { child, file };
        wait_until("the command has connected", LIMIT, || follower.text().contains("Press Ctrl-C to quit"));
        wait_until("the rings are open", LIMIT, || node_monitor(node).is_object());
        follower
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap()
    }

    /// Waits for a line that contains all of these.
    fn line(&self, parts: &[&str]) -> String {
        let find = || {
            let text = self.text();
            text.lines().find(|line| parts.iter().all(|part| line.contains(part))).map(str::to_owned)
        };
        wait_until(&format!("a line with {parts:?} in\n{}", self.text()), LIMIT, || find().is_some());
        find().unwrap()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn node_monitor(node: &Node) -> Value {
    node.get("/v1/healthz")["nodeMonitor"].clone()
}

fn endpoint_id(node: &Node, pod: &Pod) -> u64 {
    let path = format!("/v1/endpoint/cni-attachment-id:{}:eth0", pod.container());
    node.get(&path)["id"].as_u64().unwrap()
}

/// Sends echo requests; whether they are answered.
fn ping(from: &NetNs, to: IpAddr, count: u32) -> bool {
    let mut ping = from.command("ping");
    ping.args(["-c", &count.to_string(), "-i0.01", "-W1", "-q", &to.to_string()]).stdout(Stdio::null());
    ping.status().unwrap().success()
}

fn pods(node: &mut Node) -> (Pod, Pod) {
    (node.add_pod("a"), node.add_pod("b"))
}

/// Lets none of the pods send to this one.
fn close(node: &Node, name: &str) {
    let policy = json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "closed", "namespace": "default"},
        "spec": {"endpointSelector": {"matchLabels": {"name": name}}, "ingress": [{"fromEndpoints": [{"matchLabels": {"name": "other"}}]}]},
    });
    node.apply("closed.yaml", &policy.to_string());
    node.wait_policies(&["closed"]);
}

#[test]
fn the_command_shows_traces_and_drops_with_identities_and_endpoints() {
    require_root!();
    let mut node = Node::started();
    let (a, b) = pods(&mut node);
    assert_eq!(node_monitor(&node), Value::Null, "no ring is open without a listener");
    let all = Follower::start(&node, "all", &[]);
    let drops =
        Follower::start(&node, "drops", &["-j", "-t", "drop", "--to", &endpoint_id(&node, &b).to_string()]);
    let monitor = node_monitor(&node);
    assert_eq!(monitor["npages"], 64, "{monitor}");

    assert!(ping(&a.ns, b.ipv4, 2), "{}", node.log());
    let (from, to) = (identity(&node, &a), identity(&node, &b));
    let link = b.result["interfaces"][0]["name"].as_str().unwrap();
    let traced = all.line(&[&format!("-> endpoint {} flow", endpoint_id(&node, &b)), "EchoRequest"]);
    let expected = format!(
        " , identity {from}->{to} state new ifindex {link} orig-ip {a}: {a} -> {b} icmp EchoRequest",
        a = a.ipv4,
        b = b.ipv4
    );
    assert!(traced.ends_with(&expected), "{traced}\nends not with {expected}");
    all.line(&[&format!("-> endpoint {}", endpoint_id(&node, &a)), "state reply", "EchoReply"]);

    let agent = Follower::start(&node, "agent", &["-t", "agent"]);
    close(&node, "b");
    wait_until("the policy is in force", LIMIT, || !ping(&a.ns, b.ipv4, 1));
    let dropped = all.line(&["xx drop (Policy denied)", "EchoRequest"]);
    let expected = format!(", identity {from}->{to}: {} -> {} icmp EchoRequest", a.ipv4, b.ipv4);
    assert!(dropped.ends_with(&expected), "{dropped}\nends not with {expected}");
    assert!(dropped.contains(&format!("to endpoint {}, ifindex ", endpoint_id(&node, &b))), "{dropped}");
    let json: Value = serde_json::from_str(&drops.line(&["{", "EchoRequest"])).unwrap();
    assert_eq!(json["type"], "drop", "{json}");
    assert_eq!((&json["srcLabel"], &json["dstLabel"]), (&json!(from), &json!(to)), "{json}");
    assert_eq!(json["summary"]["l3"]["src"], a.ipv4.to_string(), "{json}");
    assert!(!drops.text().contains("endpoint"), "only drops: {}", drops.text());

    agent.line(&[">> Policy updated: {", "k8s:io.cilium.k8s.policy.name=closed", r#""rule_count":1}"#]);
    let c = node.add_pod("c");
    let (id, address) = (endpoint_id(&node, &c), c.ipv4);
    let name = format!(r#"{{"id":{id},"#);
    let created = agent.line(&[">> Endpoint created: ", &name]);
    assert!(created.ends_with(r#""pod-name":"c","namespace":"default"}"#), "{created}");
    agent.line(&[">> Endpoint regenerated: ", &name, "k8s:name=c"]);
    let upserted = format!(r#"{{"cidr":"{address}/32","id":{},"#, identity(&node, &c));
    agent.line(&[">> IPCache entry upserted: ", &upserted]);
    node.delete_pod(c);
    agent.line(&[">> Endpoint deleted: ", &name, r#""pod-name":"c""#]);
    agent.line(&[">> IPCache entry deleted: ", &format!(r#"{{"cidr":"{address}/32","#)]);
    node.withdraw("closed.yaml");
    agent.line(&[">> Policy deleted: ", "cilium.io/resource=cnp/default/closed", r#""rule_count":1}"#]);
    assert!(!agent.text().contains("flow"), "only notifications: {}", agent.text());

    drop((all, drops, agent));
    wait_until("the rings are closed with the last listener", LIMIT, || node_monitor(&node).is_null());
}

/// Returns flows by these options, as JSON.
fn flows(node: &Node, options: &[&str]) -> Vec<Value> {
    let words = [&["hubble", "observe", "--all", "-o", "json"], options].concat();
    let output = node.apiary_command(&words).output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), node.log());
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["flow"].take()).collect()
}

/// A forwarded and a dropped packet are flows with the names of the pods.
fn flows_have_names(node: &Node, a: &Pod, b: &Pod) {
    let sides = ["--protocol", "icmp", "--from-pod", "default/b", "--to-pod", "default/a"];
    let flow = |point: &str, options: &[&str]| {
        let options = [&sides[..], options].concat();
        let find = || {
            let is_there =
                |flow: &Value| flow["trace_observation_point"].as_str().unwrap_or_default() == point;
            flows(node, &options).into_iter().find(is_there)
        };
        wait_until(&format!("a flow by {options:?}"), LIMIT, || find().is_some());
        let flow = find().unwrap();
        for (side, pod) in [("source", b), ("destination", a)] {
            let expected = json!([endpoint_id(node, pod), identity(node, pod), "default"]);
            let found = &flow[side];
            assert_eq!(json!([found["ID"], found["identity"], found["namespace"]]), expected, "{flow}");
            let labels = found["labels"].as_array().unwrap();
            assert!(labels.iter().any(|label| label.as_str().unwrap().starts_with("k8s:name=")), "{flow}");
        }
        assert_eq!(
            json!([flow["IP"]["source"], flow["IP"]["destination"]]),
            json!([b.ipv4, a.ipv4]),
            "{flow}"
        );
        assert_eq!(flow["Summary"], "ICMPv4 EchoRequest", "{flow}");
        flow
    };
    let forwarded = flow("TO_ENDPOINT", &["--verdict", "forwarded", "-t", "trace"]);
    assert_eq!(forwarded["interface"]["name"], a.result["interfaces"][0]["name"], "{forwarded}");
    let drops = ["--verdict", "dropped", "-t", "drop"];
    assert_eq!(
        flows(node, &[&sides[..], &drops].concat()),
        [Value::Null; 0],
        "nothing is dropped without a policy"
    );
    close(node, "a");
    wait_until("the policy is in force", LIMIT, || !ping(&b.ns, a.ipv4, 1));
    let dropped = flow("", &drops);
    assert_eq!(
        (&dropped["drop_reason_desc"], &dropped["traffic_direction"]),
        (&json!("POLICY_DENIED"), &json!("INGRESS"))
    );
    let events = || {
        let events = node.apiary_command(&["hubble", "observe", "agent-events", "--all"]).output().unwrap();
        String::from_utf8(events.stdout).unwrap()
    };
    wait_until("the policy is reported", LIMIT, || events().contains(": POLICY_UPDATED (labels: ["));
    let status = node.apiary_command(&["hubble", "status"]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("): Ok\nCurrent/Max Flows: "), "{status}");
    let drops: Value = serde_json::from_str(&node.apiary(&["top", "drops", "--once", "-o", "json"])).unwrap();
    let expected = json!(["POLICY_DENIED", "default/b", "default/a", "ICMPv4", "no rule allows it"]);
    let is_there = |row: &Value| {
        let found = json!([row["reason"], row["source"], row["destination"], row["port"], row["rule"]]);
        found == expected && row["dropped"].as_u64() > Some(0)
    };
    assert!(drops["rows"].as_array().unwrap().iter().any(is_there), "{drops:#}");
    let endpoints = node.apiary(&["top", "endpoints", "--once"]);
    for pod in ["default/a", "default/b"] {
        assert!(endpoints.lines().any(|line| line.contains(pod)), "{endpoints}");
    }
}

/// Starts a node that serves flows.
fn with_hubble() -> Node {
    let mut node = Node::new();
    node.config.insert("enable-hubble".into(), "true".into());
    let socket = node.socket().with_file_name("hubble.sock");
    node.config.insert("hubble-socket-path".into(), socket.display().to_string());
    node.start();
    node
}

#[test]
fn a_follower_goes_on_after_a_restart_of_the_agent() {
    require_root!();
    let mut node = with_hubble();
    let (a, b) = pods(&mut node);
    let follower = Follower::start(&node, "follower", &["-t", "trace"]);
    assert!(ping(&a.ns, b.ipv4, 1), "{}", node.log());
    follower.line(&["-> endpoint", "EchoRequest", "state new"]);
    node.kill();
    node.start();
    follower.line(&["Connected again"]);
    wait_until("the rings are open", LIMIT, || node_monitor(&node).is_object());
    assert!(ping(&b.ns, a.ipv4, 1), "{}", node.log());
    follower.line(&[&format!("{} -> {} icmp EchoRequest", b.ipv4, a.ipv4)]);
    flows_have_names(&node, &a, &b);
}

/// The text that a rule has for the log reaches the events that it decides, and `why`. Its number stays over a restart.
#[test]
fn events_name_the_text_of_the_rule_that_has_decided() {
    require_root!();
    let mut node = with_hubble();
    let (a, b) = pods(&mut node);
    let deny = |text: &str, peer: &str| {
        json!({
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumNetworkPolicy",
            "metadata": {"name": text, "namespace": "default"},
            "spec": {
                "endpointSelector": {"matchLabels": {"name": "a"}},
                "log": {"value": format!("text {text}")},
                "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"name": peer}}]}],
            },
        })
    };
    node.apply("first.yaml", &deny("first", "b").to_string());
    node.wait_policies(&["first"]);
    let follower = Follower::start(&node, "verdicts", &["-t", "policy-verdict"]);
    assert!(!ping(&b.ns, a.ipv4, 1), "{}", node.log());
    let line = follower.line(&["Policy verdict log: ", "ingress, action deny"]);
    assert!(line.ends_with("icmp EchoRequest, log \"text first\""), "{line}");
    let denied = ["--verdict", "dropped", "-t", "policy-verdict", "--to-pod", "default/a"];
    let logs = |node: &Node| -> Vec<Value> {
        flows(node, &denied).iter_mut().map(|flow| flow["policy_log"].take()).collect()
    };
    wait_until("a flow", LIMIT, || logs(&node).contains(&json!(["text first"])));
    let why = |node: &Node| {
        let words = ["why", "default/b", "default/a", "8/icmp", "-o", "json"];
        let answer: Value =
            serde_json::from_slice(&node.apiary_command(&words).output().unwrap().stdout).unwrap();
        answer["ingress"]["entry"].clone()
    };
    let before = why(&node);
    assert_eq!((&before["log"], before["cookie"].as_u64()), (&json!(["text first"]), Some(1)), "{before}");

    // Another policy that is first in the order of names does not take the number in force.
    node.kill();
    node.apply("another.yaml", &deny("another", "c").to_string());
    node.start();
    node.wait_policies(&["first", "another"]);
    assert_eq!(why(&node), before);
    assert!(!ping(&b.ns, a.ipv4, 1), "{}", node.log());
    wait_until("a flow of the new run", LIMIT, || logs(&node).contains(&json!(["text first"])));
}

/// A listener in this process.
struct Listener {
    stream: UnixStream,
    reader: Reader,
    /// Whether it was accepted: the stream has begun.
    has_begun: bool,
    /// Whether it has seen the first event of the marker, from which on events are counted.
    counts: bool,
    /// Events of packets.
    samples: u64,
    /// Events that were reported as lost.
    lost: u64,
}

/// Bytes of data in an echo request that no other packet has, and the length of its frame.
const MARKER: u32 = 77;
const MARKER_LEN: u32 = 14 + 20 + 8 + MARKER;

impl Listener {
    fn connect(node: &Node) -> Self {
        let stream = UnixStream::connect(node.socket().with_file_name("monitor1_2.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Self { stream, reader: Reader::default(), has_begun: false, counts: false, samples: 0, lost: 0 }
    }

    /// Reads what is there.
    fn read(&mut self) {
        self.read_each(|_| {});
    }

    /// Reads what is there, and calls the function with each event.
    fn read_each(&mut self, mut each: impl FnMut(&[u8])) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the agent has closed the connection"),
                Ok(count) => {
                    self.has_begun = true;
                    self.reader.push(&buffer[..count]);
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return,
                Err(error) => panic!("{error}"),
            }
            while let Some(value) = self.reader.next_value().unwrap() {
                let payload = Payload::from(value);
                match payload.kind {
                    // Notifications of the agent are left out.
                    SAMPLE if payload.data[0] < 128 => {
                        each(&payload.data);
                        let len =
                            payload.data.get(8..12).map(|len| u32::from_ne_bytes(len.try_into().unwrap()));
                        self.counts |= payload.data[0] == TRACE && len == Some(MARKER_LEN);
                        self.samples += u64::from(self.counts);
                    }
                    SAMPLE => {}
                    LOST => self.lost += if self.counts { payload.lost } else { 0 },
                    other => panic!("type {other}"),
                }
            }
        }
    }
}

#[test]
fn each_event_is_delivered_or_counted_whoever_reads_or_not() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("monitor-queue-size".into(), "32".into());
    node.config.insert("monitor-aggregation".into(), "none".into());
    node.start();
    let (a, b) = pods(&mut node);
    let mut listeners: Vec<Listener> = (0..20).map(|_| Listener::connect(&node)).collect();
    // One sends garbage, more than is read of it.
    let garbage = listeners[0].stream.try_clone().unwrap();
    garbage.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let _full_in_the_end = (0..1000).try_for_each(|_| (&garbage).write_all(&[0xff; 4096]));
    wait_until("the rings are open", LIMIT, || node_monitor(&node).is_object());

    wait_until("all are accepted", LIMIT, || {
        listeners.iter_mut().filter(|listener| !listener.has_begun).for_each(Listener::read);
        listeners.iter().all(|listener| listener.has_begun)
    });
    // Events before this packet are those of different times for each.
    let marker = format!("ping -c 1 -W 1 -s {MARKER} {}", b.ipv4);
    a.ns.exec(&marker).unwrap();

    // Ten read while packets flow, ten do not.
    let mut unread = listeners.split_off(10);
    for _ in 0..10 {
        assert!(ping(&a.ns, b.ipv4, 50), "packets never wait for listeners\n{}", node.log());
        listeners.iter_mut().for_each(Listener::read);
    }
    listeners.append(&mut unread);
    wait_until("all have got or lost the same number of events", LIMIT, || {
        listeners.iter_mut().for_each(Listener::read);
        let total = |listener: &Listener| listener.samples + listener.lost;
        listeners.iter().all(|listener| listener.counts && total(listener) == total(&listeners[0]))
    });
    let (reader, sleeper) = (&listeners[5], &listeners[15]);
    // Requests and replies of 500 echoes: into and out of each pod.
    assert!(reader.samples + reader.lost >= 2000, "{} and {}", reader.samples, reader.lost);
    assert!(sleeper.lost > 0, "a queue of 32 messages cannot hold {} events", sleeper.samples);
    assert!(reader.samples >= sleeper.samples, "{} {}", reader.samples, sleeper.samples);
    assert!(ping(&b.ns, a.ipv4, 1));
}

/// Bytes of data in a numbered datagram, which begins with its number.
const NUMBERED: usize = 91;

/// Sends datagrams from one pod to another one as fast as they are received, which is faster than a listener in a build
/// without optimizations reads their events. Each event is delivered once or counted as lost: as many as the sockets have
/// sent and received.
fn many_packets_are_reported_or_counted(from: &Pod, to: &Pod, listener: &mut Listener) {
    const BURST: usize = 64;
    // Solicitations of neighbours and datagrams without a number, which may be among the lost events.
    const OTHERS: u64 = 30;
    let is_full = std::env::var_os("FULL").is_some_and(|full| !full.is_empty());
    let packets: usize = if is_full { 1_000_000 } else { 20_000 };
    let sender = from.ns.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let receiver = to.ns.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    sender.connect((to.ipv4, receiver.local_addr().unwrap().port())).unwrap();
    let mut data = [0; NUMBERED];
    let mut send = |number: usize| {
        data[..4].copy_from_slice(&(number as u32).to_be_bytes());
        assert_eq!(sender.send(&data).unwrap(), data.len());
    };
    let mut receive = |expected: usize| {
        let mut data = [0; NUMBERED];
        assert_eq!(receiver.recv(&mut data).unwrap(), data.len());
        assert_eq!(data[..4], (expected as u32).to_be_bytes());
    };

    let lost_before = listener.lost;
    // By number: a bit of each point.
    let (mut points, seen) = (vec![0_u8; packets], Cell::new(0));
    let mut note = |event: &[u8]| {
        let Some((number, at)) = numbered(event) else { return };
        let bit = 1 << u8::from(at == point::TO_LXC);
        assert!(matches!(at, point::FROM_LXC | point::TO_LXC), "{at}");
        assert_eq!(points[number] & bit, 0, "the event of packet {number} at {at} is there twice");
        points[number] |= bit;
        seen.set(seen.get() + 1);
    };
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            for first in (0..packets).step_by(BURST) {
                let burst = first..packets.min(first + BURST);
                burst.clone().for_each(&mut send);
                burst.for_each(&mut receive);
            }
        });
        while !traffic.is_finished() {
            listener.read_each(&mut note);
        }
        traffic.join().unwrap();
    });
    let expected = 2 * packets as u64;
    let mut accounted = 0;
    wait_until("each event is delivered or counted", LIMIT, || {
        // The kernel reports what did not fit into a ring with the next record of that CPU.
        send_from_each_cpu(&sender);
        listener.read_each(&mut note);
        accounted = seen.get() + listener.lost - lost_before;
        accounted >= expected
    });
    let seen = seen.get();
    assert!(accounted <= expected + OTHERS, "{accounted} of {expected}, {seen} of them delivered");
    assert!(seen > 0);
}

/// Sends a datagram without a number from each CPU of this process.
fn send_from_each_cpu(socket: &UdpSocket) {
    let all = sched_getaffinity(None).unwrap();
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)) {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).unwrap();
        socket.send(&[0]).unwrap();
    }
    sched_setaffinity(None, &all).unwrap();
}

/// Returns the number of a numbered datagram and the point of its trace event.
fn numbered(event: &[u8]) -> Option<(usize, u8)> {
    const HEADERS: usize = 14 + 20 + 8;
    let Ok(Event::Trace(trace)) = monitor_events::decode(event) else { return None };
    let number = trace.packet.get(HEADERS..HEADERS + 4)?;
    let is_numbered = trace.len as usize == HEADERS + NUMBERED && trace.packet[23] == 17;
    is_numbered.then(|| (u32::from_be_bytes(number.try_into().unwrap()) as usize, trace.point))
}

/// An echo in an event: sequence number, whether it is a reply, drop or trace, and the point or reason.
type Echo = (u16, bool, u8, u8);

/// Returns the echo with this number of data bytes that a drop or trace event is of.
fn echo(event: &[u8], data: u32) -> Option<Echo> {
    const ETHERNET_AND_IP: usize = 14 + 20;
    let (subtype, len, packet) = match monitor_events::decode(event) {
        Ok(Event::Drop(drop)) => (drop.reason, drop.len, drop.packet),
        Ok(Event::Trace(trace)) => (trace.point, trace.len, trace.packet),
        _ => return None,
    };
    let icmp = packet.get(ETHERNET_AND_IP..)?;
    let is_echo = len == 14 + 20 + 8 + data && matches!(icmp[0], 0 | 8);
    is_echo.then(|| (u16::from_be_bytes([icmp[6], icmp[7]]), icmp[0] == 0, event[0], subtype))
}

#[test]
fn at_aggregation_none_each_packet_has_its_events_and_no_others() {
    require_root!();
    const PACKETS: u16 = 400;
    let mut node = Node::new();
    node.config.insert("monitor-aggregation".into(), "none".into());
    node.start();
    let (a, b) = pods(&mut node);
    let mut listener = Listener::connect(&node);
    wait_until("the rings are open", LIMIT, || node_monitor(&node).is_object());
    wait_until("the listener is accepted", LIMIT, || {
        listener.read();
        listener.has_begun
    });
    listener.counts = true;
    // All packets have a length of their own, by which their events are known. At most 1,600 events wait in a queue of
    // 2,048, so that none may be lost.
    let events_of = |listener: &mut Listener, data: u32, count: u16| {
        let send = format!("ping -q -i 0.002 -W 1 -c {count} -s {data} {}", b.ipv4);
        let output = a.ns.command("sh").args(["-c", &send]).output().unwrap();
        let (mut seen, lost) = (BTreeMap::<Echo, usize>::new(), listener.lost);
        listener.read_each(|event| {
            if let Some(echo) = echo(event, data) {
                *seen.entry(echo).or_default() += 1;
            }
        });
        assert_eq!(listener.lost, lost);
        (String::from_utf8(output.stdout).unwrap(), seen)
    };
    let expected = |count: u16, points: &[(bool, u8, u8)]| -> BTreeMap<Echo, usize> {
        let of_packet =
            |seq| points.iter().map(move |(is_reply, kind, at)| ((seq, *is_reply, *kind, *at), 1));
        (1..=count).flat_map(of_packet).collect()
    };
    let (answers, seen) = events_of(&mut listener, 71, PACKETS);
    assert!(answers.contains(&format!("{PACKETS} received")), "{answers}");
    let points = [
        (false, TRACE, point::FROM_LXC),
        (false, TRACE, point::TO_LXC),
        (true, TRACE, point::FROM_LXC),
        (true, TRACE, point::TO_LXC),
    ];
    assert_eq!(seen, expected(PACKETS, &points));

    many_packets_are_reported_or_counted(&a, &b, &mut listener);

    close(&node, "b");
    wait_until("the policy is in force", LIMIT, || !ping(&a.ns, b.ipv4, 1));
    let (answers, seen) = events_of(&mut listener, 73, 50);
    assert!(answers.contains("0 received"), "{answers}");
    let points = [(false, TRACE, point::FROM_LXC), (false, DROP, datapath_abi::drop::POLICY_DENIED)];
    assert_eq!(seen, expected(50, &points));
}
