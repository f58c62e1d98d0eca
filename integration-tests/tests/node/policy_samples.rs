//! The answers about policy of a whole agent, compared with those that Cilium has recorded for the same policy and pods.

use std::collections::{BTreeMap, BTreeSet};

use integration_tests::{Node, binary};
use serde_json::{Value, json};
use test_kit::require_root;

macro_rules! sample {
    ($name:literal) => {
        include_str!(concat!("../../../cells/infra/api/models/tests/samples/", $name, ".json"))
    };
}

const ENTRIES: &str = include_str!("../../../cells/policy/cell/tests/samples/mapstate_entries.txt");
const TOP: &str = include_str!("../../../cells/policy/cell/tests/samples/mapstate_topk.txt");

/// The policy of the recorded run, `a.yaml` in `static-cnp-path`.
fn policy() -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {
            "endpointSelector": {"matchLabels": {"app": "p2"}},
            "ingress": [
                {"fromEndpoints": [{"matchLabels": {"app": "p1"}}]},
                {"fromCIDR": ["192.0.2.0/24"], "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}]}]},
            ],
            "egress": [{"toEntities": ["world"]}],
        },
    })
}

/// The numbers of the recorded run by those of this one: identities and endpoints.
struct Numbers(BTreeMap<i64, i64>);

impl Numbers {
    /// Returns the value with identities as recorded, in order: lists of them are sorted.
    fn recorded(&self, value: &Value) -> Value {
        match value {
            Value::Number(number) => {
                number.as_i64().and_then(|id| self.0.get(&id)).map_or(value.clone(), |id| json!(id))
            }
            Value::Array(list) => {
                let mut list: Vec<Value> = list.iter().map(|value| self.recorded(value)).collect();
                if list.iter().all(Value::is_number) {
                    list.sort_by_key(Value::as_i64);
                }
                list.into()
            }
            Value::Object(members) => {
                members.iter().map(|(name, value)| (name.clone(), self.recorded(value))).collect()
            }
            other => other.clone(),
        }
    }
}

/// Returns a recorded answer without the identities that its pods had before their labels were known.
fn without_init(value: &Value) -> Value {
    const OF_INIT: [i64; 2] = [51_071, 6_866];
    match value {
        Value::Array(list) => {
            let is_init = |value: &&Value| value.as_i64().is_some_and(|id| OF_INIT.contains(&id));
            list.iter().filter(|value| !is_init(value)).map(without_init).collect()
        }
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), without_init(value))).collect()
        }
        other => other.clone(),
    }
}

/// Returns the elements as texts, in an order of their own: Cilium lists its maps in none.
fn unordered(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(Value::to_string).collect()
}

fn read(sample: &str) -> Value {
    without_init(&serde_json::from_str(sample).unwrap())
}

fn shell(node: &Node, line: &str) -> String {
    let mut command = node.host().command(binary("apiary").to_str().unwrap());
    command.args(["shell", "--shell-sock-path", &node.config["shell-sock-path"], line]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn answers_about_policy_are_those_that_cilium_has_recorded() {
    require_root!();
    let mut node = Node::new();
    let folder = node.sandbox().dir().join("cnp");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a.yaml"), policy().to_string()).unwrap();
    node.config.insert("static-cnp-path".to_owned(), folder.to_str().unwrap().to_owned());
    node.start();
    let pods = ["p1", "p2", "p3"].map(|app| node.add_pod_with("default", app, &[("app", app)]));
    node.wait_rules("filename", &["a.yaml"]);
    let endpoints = node.get("/v1/endpoint");
    let of_pod = |name: &str| {
        let is = |endpoint: &&Value| {
            endpoint["status"]["external-identifiers"]["pod-name"] == format!("default/{name}")
        };
        endpoints.as_array().unwrap().iter().find(is).unwrap_or_else(|| panic!("{name}: {endpoints}")).clone()
    };
    let identity = |name: &str| of_pod(name)["status"]["identity"]["id"].as_i64().unwrap();
    let prefixes = node.get("/v1/ip?cidr=192.0.2.0/24");
    let prefix = prefixes[0]["identity"].as_i64().unwrap();
    let id = of_pod("p2")["id"].as_i64().unwrap();
    let numbers = Numbers(BTreeMap::from([
        (identity("p1"), 6_592),
        (identity("p2"), 23_941),
        (identity("p3"), 64_805),
        (prefix, 16_777_217),
    ]));

    // The repository: the same rules, byte for byte, in any order.
    let rules = |answer: &Value| {
        let text = answer["policy"].as_str().unwrap();
        let body = text.strip_prefix("[\n").unwrap().strip_suffix("\n]").unwrap();
        (
            answer["revision"].clone(),
            body.split(",\n  {").map(|rule| rule.trim_start_matches("  {").to_owned()).collect(),
        )
    };
    let (ours, recorded): ((Value, BTreeSet<String>), _) =
        (rules(&node.get("/v1/policy")), rules(&serde_json::from_str(sample!("GET_policy")).unwrap()));
    assert_eq!(ours, recorded);

    // Both families are enabled here, not so in the recorded run: prefixes of IPv4 have a world of their own.
    let ours = numbers.recorded(&node.get("/v1/policy/selectors"));
    let mut recorded = read(sample!("GET_policy_selectors"));
    for selector in recorded.as_array_mut().unwrap() {
        match selector["selector"].as_str().unwrap() {
            text if text.contains("reserved:world: ") => selector["identities"] = json!([2]),
            text if text.contains("reserved:world-ipv4: ") => selector["identities"] = json!([9, 16_777_217]),
            _ => {}
        }
    }
    assert_eq!(unordered(&ours), unordered(&recorded));
    let ours = numbers.recorded(&node.get("/v1/policy/subject-selectors"));
    assert_eq!(ours, read(sample!("GET_policy_subject-selectors")));

    // The endpoint's policy, with the lists of filters and of their peers in any order.
    let sorted = |policy: &Value| {
        let mut policy = policy.clone();
        for part in ["realized", "spec"] {
            policy[part]["build"] = json!(0);
            for direction in ["ingress", "egress"] {
                let rule = |filter: &Value| {
                    let mut filter = filter.clone();
                    let mut rule: Value = serde_json::from_str(filter["rule"].as_str().unwrap()).unwrap();
                    rule["l7-rules"] = unordered(&rule["l7-rules"]).into_iter().collect();
                    filter["rule"] = rule;
                    filter.to_string()
                };
                let filters = policy[part]["l4"][direction].as_array().unwrap();
                policy[part]["l4"][direction] =
                    filters.iter().map(rule).collect::<BTreeSet<_>>().into_iter().collect();
            }
        }
        policy
    };
    let ours = numbers.recorded(&node.get(&format!("/v1/endpoint/{id}"))["status"]["policy"]);
    let recorded = read(sample!("GET_endpoint_ID_with_policy"))["status"]["policy"].clone();
    assert_eq!(sorted(&ours), sorted(&recorded));

    // The identities of the node's endpoints, and where addresses belong.
    let ours = numbers.recorded(&node.get("/v1/identity/endpoints"));
    let references = |list: &Value| -> BTreeMap<i64, Value> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|row| (row["identity"]["id"].as_i64().unwrap(), row["refCount"].clone()))
            .collect()
    };
    let mut recorded = references(&read(sample!("GET_identity_endpoints")));
    // No health endpoint runs here.
    recorded.remove(&4);
    assert_eq!(references(&ours), recorded);
    let members = |list: &Value, cidr: &str| {
        let row = list.as_array().unwrap().iter().find(|row| row["cidr"] == cidr).unwrap().clone();
        let mut row = row.as_object().unwrap().clone();
        row.remove("cidr");
        if row.contains_key("hostIP") {
            row["hostIP"] = json!("");
        }
        if let Some(metadata) = row.get_mut("metadata") {
            // The recorded run got its pods from the kvstore.
            metadata["source"] = json!("");
        }
        Value::Object(row)
    };
    let (ours, recorded) = (numbers.recorded(&node.get("/v1/ip")), read(sample!("GET_ip")));
    for (own, of_sample) in [
        (format!("{}/32", pods[0].ipv4), "10.244.183.160/32"),
        (format!("{}/32", pods[1].ipv4), "10.244.63.210/32"),
        ("192.0.2.0/24".to_owned(), "192.0.2.0/24"),
        (format!("{}/32", Node::IPV4), "10.99.0.1/32"),
    ] {
        assert_eq!(members(&ours, &own), members(&recorded, of_sample), "{own}");
    }

    // The shell, with the widths of columns.
    let lines = |text: &str| -> BTreeSet<Vec<String>> {
        text.lines()
            .map(|line| {
                line.split("   ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
            })
            .collect()
    };
    let renumber = |text: String| {
        let mut text = text.replace(&format!("ID: {id}\t"), "ID: 1644\t");
        for (own, recorded) in &numbers.0 {
            text = text.replace(&format!("   {own} "), &format!("   {recorded} "));
        }
        text
    };
    let ours = renumber(shell(&node, "policy/mapstate/entries default/p2"));
    let recorded: String = ENTRIES.replace("Entries:7", "Entries:6");
    let recorded: String =
        recorded.lines().filter(|line| !line.contains("   51071 ")).map(|line| format!("{line}\n")).collect();
    assert_eq!(lines(&ours), lines(&recorded));
    let ours = renumber(shell(&node, "policy/mapstate/topk default/p2"));
    assert_eq!(ours, TOP.replace("Entries: 7", "Entries: 6").replace("]   7\n", "]   6\n"));
}
