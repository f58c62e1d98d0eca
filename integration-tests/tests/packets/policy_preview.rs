//! `apiary policy preview`: it names the connections that a policy then cuts, and no others. `apiary policy rules`: which
//! rule has decided.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::{Value, json};
use test_kit::{require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(20);
const PORT: u16 = 7000;

/// A connection from a pod to another one.
struct Connection([TcpStream; 2]);

impl Connection {
    fn open(from: &Pod, to: &Pod) -> Connection {
        let listener = to.ns.run(|| TcpListener::bind((to.ipv4, PORT))).unwrap();
        let client = from.ns.run(|| TcpStream::connect((to.ipv4, PORT))).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        Connection([client, server])
    }

    /// Whether a byte arrives.
    fn passes(&mut self) -> bool {
        let [client, server] = &mut self.0;
        client.write_all(b"x").unwrap();
        server.read(&mut [0]).is_ok_and(|read| read == 1)
    }
}

/// Sends datagrams of a new flow until one arrives; false if none does.
fn udp_passes(from: &Pod, to: &Pod, port: u16) -> bool {
    let receiver = to.ns.run(|| UdpSocket::bind((to.ipv4, port))).unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let sender = from.ns.run(|| UdpSocket::bind(("0.0.0.0", 0))).unwrap();
    (0..3).any(|_| {
        sender.send_to(b"x", (to.ipv4, port)).unwrap();
        receiver.recv(&mut [0]).is_ok()
    })
}

fn policy() -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "server", "namespace": "default"},
        "spec": {
            "endpointSelector": {"matchLabels": {"app": "server"}},
            "ingress": [{
                "fromEndpoints": [{"matchLabels": {"app": "client"}}],
                "toPorts": [{"ports": [{"port": PORT.to_string(), "protocol": "TCP"}]}],
            }, {
                "fromEndpoints": [{"matchLabels": {"app": "other"}}],
                "toPorts": [{"ports": [{"port": "9", "protocol": "TCP"}]}],
            }],
        },
    })
}

#[test]
fn a_preview_names_the_connections_that_the_policy_cuts() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("enable-hubble".into(), "true".into());
    let socket = node.socket().with_file_name("hubble.sock");
    node.config.insert("hubble-socket-path".into(), socket.display().to_string());
    node.start();
    let mut pod = |app: &str| node.add_pod_with("default", app, &[("app", app)]);
    let (client, other, server) = (pod("client"), pod("other"), pod("server"));
    let mut allowed = Connection::open(&client, &server);
    let mut cut = Connection::open(&other, &server);
    assert!(allowed.passes() && cut.passes() && udp_passes(&client, &server, PORT + 1));

    let file = node.sandbox().dir().join("preview.yaml");
    std::fs::write(&file, policy().to_string()).unwrap();
    let file = file.to_str().unwrap();
    let preview = || -> Value {
        serde_json::from_str(&node.apiary(&["policy", "preview", file, "-o", "json"])).unwrap()
    };
    // Flows of Hubble follow the packets after a moment.
    let hubble = |preview: &Value| preview["cut"].as_array().unwrap().iter().all(|cut| cut["flows"] != 0);
    wait_until("flows of Hubble", LIMIT, || hubble(&preview()));
    let found = preview();
    let ends = |cut: &Value| {
        let address = |name: &str| -> IpAddr { cut[name].as_str().unwrap().parse().unwrap() };
        (address("source"), address("destination"), cut["protocol_name"].clone(), cut["port"].clone())
    };
    let list: Vec<_> = found["cut"].as_array().unwrap().iter().map(ends).collect();
    let expected = |from: &Pod, protocol: &str, port| (from.ipv4, server.ipv4, json!(protocol), json!(port));
    let (by_client, by_other) = (expected(&client, "UDP", PORT + 1), expected(&other, "TCP", PORT));
    assert!(list.len() == 2 && list.contains(&by_client) && list.contains(&by_other), "{found:#}");
    let tcp = found["cut"].as_array().unwrap().iter().find(|cut| cut["protocol_name"] == "TCP").unwrap();
    assert_eq!((&tcp["connections"], &tcp["direction"]), (&json!(1), &json!("ingress")));
    assert_eq!(
        (&tcp["source_pod"], &tcp["destination_pod"]),
        (&json!("default/other"), &json!("default/server"))
    );
    let text = node.apiary(&["policy", "preview", file]);
    assert!(text.starts_with("Policy cnp/default/server: new\n"), "{text}");
    assert!(text.contains("2 flows would be cut:") && text.contains("default/other ("), "{text}");

    // Nothing is applied by that; once it is, exactly these are cut.
    assert!(cut.passes() && udp_passes(&client, &server, PORT + 1));
    let revision = node.get("/v1/policy")["revision"].clone();
    node.apply("policy.yaml", &policy().to_string());
    wait_until("the policy", LIMIT, || node.get("/v1/policy")["revision"] != revision);
    wait_until("a denied flow", LIMIT, || !udp_passes(&client, &server, PORT + 1));
    assert!(allowed.passes() && !cut.passes());
    let rules: Value = serde_json::from_str(&node.apiary(&["policy", "rules", "-o", "json"])).unwrap();
    let counts: Vec<_> = rules["rules"].as_array().unwrap().iter().collect();
    let (used, unused) = (counts[0], counts[1]);
    assert_eq!((&used["endpoints"], &unused["endpoints"]), (&json!(1), &json!(1)), "{rules:#}");
    assert!(used["packets"].as_u64().unwrap() > 0 && unused["packets"] == 0, "{rules:#}");
    let text = node.apiary(&["policy", "rules", "--unused"]);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("cnp/default/server") && text.contains("spec.ingress[1]"), "{text}");

    let shell = node.config["shell-sock-path"].as_str();
    let listed = node.apiary(&["policy", "list", "-o", "json", "--shell-sock-path", shell]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert!(listed.to_string().contains("server"), "{listed:#}");
    let port = format!("{PORT}/tcp");
    let answer = |words: &[&str], source: &str| {
        let words = [words, &[source, "default/server", &port, "-o", "json"]].concat();
        let output = node.apiary_command(&words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let value = serde_json::from_slice::<Value>(&output.stdout);
        (output.status.code(), value.unwrap_or_else(|_| panic!("{words:?}: {error}")))
    };
    for (source, is_allowed) in [("default/client", true), ("default/other", false)] {
        let why = answer(&["policy", "why"], source);
        assert_eq!(why, answer(&["why"], source), "one command by two names");
        assert_eq!(why.1["allowed"], is_allowed, "{why:#?}");
    }

    let mut wrong = policy();
    wrong["spec"]["ingress"][0]["toPorts"][0]["ports"][0]["port"] = json!("99999");
    std::fs::write(file, wrong.to_string()).unwrap();
    let refused = node.apiary_command(&["policy", "preview", file]).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    assert!(
        error.contains("document 1: cnp/default/server: spec.ingress[0].toPorts[0].ports[0].port"),
        "{error}"
    );
}
