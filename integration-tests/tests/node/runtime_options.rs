//! Options that are changed while the agent runs apply to the next packets, without packet loss.

use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use integration_tests::{Event, Events, Node, Pod};
use test_kit::{UdpFlow, require_root};

/// An address without a pod.
const STRANGER: &str = "198.51.100.7";

/// A node with two pods that talk in both families, the first of which also sends packets that are dropped.
struct Talk {
    node: Node,
    events: Events,
    flows: [UdpFlow; 2],
    pods: Vec<Pod>,
    stranger: UdpSocket,
}

impl Talk {
    fn start() -> Self {
        let mut node = Node::started();
        // On the first start of a node the programs are loaded again once the host endpoint has an id.
        node.stop();
        node.start();
        let pods = node.add_pods(2);
        let (a, b) = (&pods[0], &pods[1]);
        a.ns.ip(&format!("addr add {STRANGER}/32 dev lo")).unwrap();
        let stranger = a.ns.run(|| UdpSocket::bind((STRANGER, 0)).unwrap());
        let flows = b.addresses().map(|ip| UdpFlow::start(&a.ns, &b.ns, ip).unwrap());
        Self { events: Events::of(&node), node, flows, pods, stranger }
    }

    /// Ids of the pods' endpoints.
    fn ids(&self) -> [u16; 2] {
        [0, 1].map(|i| {
            let endpoint = self.node.get(&format!("/v1/endpoint/pod-name:default%2F{}", self.pods[i].name));
            u16::try_from(endpoint["id"].as_u64().unwrap()).unwrap()
        })
    }

    /// Events of a moment in which the pods talk and something is dropped.
    fn events(&mut self) -> Vec<Event> {
        let (stranger, to) = (&self.stranger, self.pods[1].ipv4);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..40 {
                    stranger.send_to(b"x", (to, 9)).unwrap();
                    std::thread::sleep(Duration::from_millis(4));
                }
            });
            self.events.of_a_moment()
        })
    }

    /// Changes options, which are in force when this returns.
    fn patch(&self, path: &str, options: &str) {
        let answer = self.node.request("PATCH", path, Some(&format!(r#"{{"options":{options}}}"#))).unwrap();
        assert_eq!(answer.status, 200, "{path} {options}: {answer:?}\n{}", self.node.log());
    }

    /// Returns the ids of the programs on the pods' interfaces.
    fn programs(&self) -> Vec<String> {
        let filters = |pod: &Pod| {
            let interface = pod.result["interfaces"][0]["name"].as_str().unwrap().to_owned();
            let text = self.node.host().exec(&format!("tc filter show dev {interface} ingress")).unwrap();
            let (_, id) =
                text.split_once(" id ").unwrap_or_else(|| panic!("no program on {interface}: {text}"));
            id.split(' ').next().unwrap().to_owned()
        };
        self.pods.iter().map(filters).collect()
    }

    /// Ends the flows and asserts that nothing was lost.
    fn end(self) {
        for flow in self.flows {
            let report = flow.stop();
            assert!(report.is_perfect(), "{report:?}\n{}", self.node.log());
        }
    }
}

#[test]
fn switches_of_the_node_change_the_programs_in_place() {
    require_root!();
    let mut talk = Talk::start();
    let [a, b] = talk.ids();
    let events = talk.events();
    assert!(events.iter().any(|e| e.is_sent_by(a)) && events.iter().any(|e| e.is_delivered_to(b)));
    assert!(events.iter().any(|e| e.is_drop_of(a)));

    let before = talk.programs();
    talk.patch("/v1/config", r#"{"TraceNotification":"Disabled"}"#);
    let after = talk.programs();
    assert!(before.iter().zip(&after).all(|(before, after)| before != after), "{before:?} {after:?}");
    let events = talk.events();
    assert!(events.iter().any(|e| e.is_drop_of(a)));
    assert!(events.iter().all(|e| matches!(e, Event::Drop { .. })), "{events:?}");

    // The same again loads nothing.
    talk.patch("/v1/config", r#"{"TraceNotification":"off"}"#);
    assert_eq!(talk.programs(), after);

    talk.patch("/v1/config", r#"{"DropNotification":"Disabled"}"#);
    assert_eq!(talk.events(), []);

    talk.patch(
        "/v1/config",
        r#"{"DropNotification":"on","TraceNotification":"on","MonitorAggregationLevel":"lowest"}"#,
    );
    let events = talk.events();
    assert!(events.iter().any(|e| e.is_drop_of(a)) && events.iter().any(|e| e.is_delivered_to(b)));
    assert!(!events.iter().any(|e| e.is_sent_by(a)), "left out at this level");

    talk.patch("/v1/config", r#"{"MonitorAggregationLevel":"none"}"#);
    assert!(talk.events().iter().any(|e| e.is_sent_by(a)));
    talk.end();
}

/// Options of the configuration folder change the programs as `PATCH /config` does, and those that are constants of the
/// programs, too.
#[test]
fn the_folder_changes_the_programs_in_place() {
    require_root!();
    let mut talk = Talk::start();
    let [a, b] = talk.ids();
    let folder = talk.node.sandbox().dir().join("config");
    let mut before = talk.programs();
    let mut write = |talk: &Talk, options: &[(&str, &str)]| {
        for (key, value) in options {
            std::fs::write(folder.join(key), value).unwrap();
        }
        let others = || talk.programs().iter().zip(&before).all(|(after, before)| after != before);
        test_kit::wait_until("other programs", Duration::from_secs(20), others);
        before = talk.programs();
    };
    write(&talk, &[("bpf-events-trace-enabled", "false"), ("bpf-events-policy-verdict-enabled", "false")]);
    let events = talk.events();
    assert!(events.iter().any(|e| e.is_drop_of(a)));
    assert!(events.iter().all(|e| matches!(e, Event::Drop { .. })), "{events:?}");
    let options = &talk.node.get("/v1/config")["spec"]["options"];
    assert_eq!(
        (&options["TraceNotification"], &options["DropNotification"]),
        (&"Disabled".into(), &"Enabled".into())
    );

    write(
        &talk,
        &[
            ("bpf-events-drop-enabled", "false"),
            ("bpf-events-trace-enabled", "true"),
            ("monitor-aggregation", "lowest"),
        ],
    );
    let events = talk.events();
    assert!(!events.iter().any(|e| e.is_drop_of(a) || e.is_sent_by(a)), "{events:?}");
    assert!(events.iter().any(|e| e.is_delivered_to(b)));

    // A constant of the programs: it applies from the next packet of existing connections on.
    let life = || {
        let text = talk.node.apiary(&["bpf", "ct", "list", "global"]);
        let rows = text.lines().filter(|row| row.starts_with("UDP OUT"));
        let left =
            rows.filter_map(|row| row.split_once("expires=")?.1.split(' ').next()?.parse::<u64>().ok());
        left.max().unwrap_or_else(|| panic!("no connection: {text}"))
    };
    let minute = life();
    write(&talk, &[("bpf-ct-timeout-regular-any", "1h"), ("monitor-aggregation-flags", "syn")]);
    test_kit::wait_until("connections to live longer", Duration::from_secs(20), || life() > minute + 3000);

    // One of several is invalid: nothing is loaded.
    let log = talk.node.log().len();
    std::fs::write(folder.join("trace-payloadlen"), "64").unwrap();
    std::fs::write(folder.join("monitor-aggregation-flags"), "sin").unwrap();
    test_kit::wait_until("a refusal", Duration::from_secs(20), || {
        let text = talk.node.log();
        text[log..].contains("'sin' is wrong; give syn, fin")
    });
    assert_eq!(talk.programs(), before);
    talk.end();
}

#[test]
fn switches_of_an_endpoint_silence_its_own_programs() {
    require_root!();
    let mut talk = Talk::start();
    let [a, b] = talk.ids();
    let programs = talk.programs();
    let of_a = format!("/v1/endpoint/{a}/config");

    talk.patch(&of_a, r#"{"TraceNotification":"Disabled"}"#);
    let events = talk.events();
    assert!(!events.iter().any(|e| e.is_sent_by(a)));
    assert!(events.iter().any(|e| e.is_drop_of(a)) && events.iter().any(|e| e.is_delivered_to(b)));

    talk.patch(&of_a, r#"{"TraceNotification":"Enabled","DropNotification":"Disabled"}"#);
    let events = talk.events();
    assert!(!events.iter().any(|e| e.is_drop_of(a)));
    assert!(events.iter().any(|e| e.is_sent_by(a)));

    talk.patch(&of_a, r#"{"DropNotification":"Enabled","MonitorAggregationLevel":"lowest"}"#);
    talk.patch(&format!("/v1/endpoint/{b}/config"), r#"{"TraceNotification":"Disabled"}"#);
    let events = talk.events();
    assert!(!events.iter().any(|e| e.is_sent_by(a) || e.is_delivered_to(b)));
    assert!(events.iter().any(|e| e.is_drop_of(a)));
    assert_eq!(talk.programs(), programs, "nothing is loaded for that");
    talk.end();
}

#[test]
fn source_verification_of_the_node_counts_for_endpoints_that_come() {
    require_root!();
    let mut node = Node::started();
    let verified = |node: &Node, name: &str| {
        let endpoint = node.get(&format!("/v1/endpoint/pod-name:default%2F{name}"));
        node.get(&format!("/v1/endpoint/{}/config", endpoint["id"]))["realized"]["options"]
            ["SourceIPVerification"]
            .clone()
    };
    node.add_pod("before");
    let body = r#"{"options":{"SourceIPVerification":"Disabled"}}"#;
    assert_eq!(node.request("PATCH", "/v1/config", Some(body)).unwrap().status, 200);
    let after = node.add_pod("after");
    assert_eq!((verified(&node, "before"), verified(&node, "after")), ("Enabled".into(), "Disabled".into()));

    // Packets from an address that the pod does not have are no longer dropped.
    let mut events = Events::of(&node);
    after.ns.ip(&format!("addr add {STRANGER}/32 dev lo")).unwrap();
    let stranger = after.ns.run(|| UdpSocket::bind((STRANGER, 0)).unwrap());
    for _ in 0..20 {
        stranger.send_to(b"x", (Node::WORLD_IPV4, 9)).unwrap();
    }
    // The other pod's kernel sends from its link's own address now and then, and may not.
    let id = node.get("/v1/endpoint/pod-name:default%2Fafter")["id"].as_u64().unwrap();
    let invalid =
        |e: &Event| matches!(e, Event::Drop { endpoint, reason: 132 } if u64::from(*endpoint) == id);
    assert!(!events.all_so_far().iter().any(invalid));
}

#[test]
fn debug_lines_come_and_go() {
    require_root!();
    let node = Node::started();
    let debug = |value: &str| {
        let body = format!(r#"{{"options":{{"Debug":"{value}"}}}}"#);
        assert_eq!(node.request("PATCH", "/v1/config", Some(&body)).unwrap().status, 200);
    };
    // The end of a connection logs a debug line.
    let lines = || {
        let mut stream = UnixStream::connect(node.socket()).unwrap();
        stream.write_all(b"nonsense\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        node.log().lines().filter(|line| line.contains("level=debug")).count()
    };
    assert_eq!(lines(), 0);
    debug("Enabled");
    test_kit::wait_until("a debug line", Duration::from_secs(5), || lines() > 0);
    debug("Disabled");
    let now = lines();
    assert_eq!((lines(), lines()), (now, now));
}

#[test]
fn options_without_effect_say_so() {
    require_root!();
    let node = Node::started();
    let body = r#"{"options":{"DebugLB":"Enabled","SourceIPVerification":"Disabled"}}"#;
    assert_eq!(node.request("PATCH", "/v1/config", Some(body)).unwrap().status, 200);
    let said: Vec<String> =
        node.log().lines().filter(|l| l.contains("has no effect in this agent")).map(str::to_owned).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("option=DebugLB"), "{said:?}");
}
