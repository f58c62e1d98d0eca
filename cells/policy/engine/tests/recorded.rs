//! Every case recorded from Cilium's policy engine that uses only implemented features yields the recorded flags, rows
//! and verdicts; the lookup yields the recorded verdicts of all cases.

mod oracle;

use std::collections::{BTreeMap, BTreeSet};

use labels::{Label, LabelArray};
use policy_engine::{
    Decision, Direction, Enforcement, Engine, Key, Kind, L4, NamedPorts, Row, Settings, lookup, parse,
};
use serde_json::Value;

const FILES: [&str; 2] = ["policy-basic.jsonl.gz", "policy-mixed.jsonl.gz"];
/// The minimum number of cases in scope: fewer would mean that an implemented feature is refused.
const IN_SCOPE: usize = 1641;
/// The rows of this case contradict its own verdicts: in Cilium a precedence has overflowed between a Pass rule and the
/// map.
const CONTRADICTORY: &str = "mixed-00362";
/// Cases of which only the verdicts are compared. In the first one, Cilium's precedence of a row overflows. In the others
/// a range of a single port (`endPort` equal to `port`) has rows that repeat those for any peer: such a range is not a
/// single port to Cilium.
const OTHER_ROWS: [&str; 3] = ["mixed-00425", "mixed-00675", "mixed-00785"];

fn settings(config: &Value) -> Settings {
    let on = |name: &str| config[name].as_bool().unwrap();
    Settings {
        cluster: config["cluster"].as_str().unwrap().into(),
        enforcement: match config["enforcement"].as_str().unwrap() {
            "default" => Enforcement::Default,
            "always" => Enforcement::Always,
            "never" => Enforcement::Never,
            other => panic!("enforcement {other}"),
        },
        ipv4: on("ipv4"),
        ipv6: on("ipv6"),
        host_firewall: on("hostFirewall"),
        allow_localhost: config["allowLocalhost"] == "always",
        default_local_cluster: on("policyDefaultLocalCluster"),
        node_selector_labels: on("nodeSelectorLabels"),
        non_default_deny: on("nonDefaultDenyPolicies"),
        extended_protocols: on("extendedIPProtocols"),
        ..Settings::default()
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

fn ports(value: &Value) -> NamedPorts {
    let protocol = |text: &str| match text {
        "TCP" => 6,
        "UDP" => 17,
        "SCTP" => 132,
        other => panic!("protocol {other}"),
    };
    let ports = value["namedPorts"].as_object().into_iter().flatten();
    ports.map(|(name, p)| (name, protocol(p["proto"].as_str().unwrap()), number(p, "port") as u16)).collect()
}

fn direction(value: &Value) -> Direction {
    match value["dir"].as_str().unwrap() {
        "ingress" => Direction::Ingress,
        "egress" => Direction::Egress,
        other => panic!("direction {other}"),
    }
}

fn recorded_row(entry: &Value) -> (Key, Row) {
    let l4 = L4 {
        protocol: number(entry, "proto") as u8,
        port: number(entry, "port") as u16,
        bits: number(entry, "prefixLen") as u8 - 40,
    };
    let key = Key { direction: direction(entry), identity: number(entry, "identity") as u32, l4 };
    let deny = entry["deny"].as_bool().unwrap_or(false);
    (key, Row { deny, precedence: number(entry, "precedence") as u32, origin: 0 })
}

fn recorded_rows(case: &Value, list: &str) -> BTreeMap<Key, Row> {
    case["expect"][list].as_array().into_iter().flatten().map(recorded_row).collect()
}

/// Returns the engine with the whole input of a case; the error is the reason why the case is out of scope.
fn engine(case: &Value) -> Result<Engine, String> {
    let settings = settings(&case["config"]);
    let mut engine = Engine::new(settings.clone());
    let mut policies = Vec::new();
    for manifest in case["policies"].as_array().unwrap() {
        let kind = match manifest["kind"].as_str().unwrap() {
            "CiliumNetworkPolicy" => Kind::CiliumNetworkPolicy,
            "CiliumClusterwideNetworkPolicy" => Kind::CiliumClusterwideNetworkPolicy,
            "NetworkPolicy" => Kind::NetworkPolicy,
            "ClusterNetworkPolicy" => Kind::ClusterNetworkPolicy,
            other => return Err(other.to_owned()),
        };
        policies
            .push(parse(kind, manifest, &settings).map_err(|refusal| refusal.problems[0].reason.clone())?);
    }
    for identity in case["identities"].as_array().unwrap() {
        let labels = identity["labels"].as_array().unwrap().iter();
        let labels: LabelArray = labels.map(|label| Label::parse(label.as_str().unwrap())).collect();
        engine.add_identity(number(identity, "id") as u32, labels, ports(identity));
    }
    for policy in policies {
        engine.set(policy);
    }
    Ok(engine)
}

/// Returns the differences between the recorded result of a case and the result of `engine`, one text each.
fn differences(case: &Value, engine: &Engine) -> Vec<String> {
    let (expect, endpoint) = (&case["expect"], &case["endpoint"]);
    let resolved = engine.resolve(number(endpoint, "identity") as u32, &ports(endpoint), usize::MAX).unwrap();
    let mut differences = Vec::new();
    let flags = (expect["ingress"].as_bool().unwrap(), expect["egress"].as_bool().unwrap());
    if flags != (resolved.ingress_enforced, resolved.egress_enforced) {
        differences.push(format!("enforced {flags:?} expected"));
    }
    differences.extend(wrong_verdicts(case, &resolved.rows));
    if OTHER_ROWS.iter().any(|id| case["id"] == *id) {
        return differences;
    }
    let effect = |(key, row): (&Key, &Row)| (*key, row.deny, row.precedence);
    let ours: BTreeSet<_> = resolved.rows.iter().map(effect).collect();
    let must: BTreeSet<_> = recorded_rows(case, "entries").iter().map(effect).collect();
    let may: BTreeSet<_> = recorded_rows(case, "optionalEntries").iter().map(effect).collect();
    differences.extend(must.difference(&ours).map(|row| format!("missing {row:?}")));
    let extra = ours.difference(&must).filter(|row| !may.contains(row));
    differences.extend(extra.map(|row| format!("not recorded {row:?}")));
    differences
}

fn wrong_verdicts(case: &Value, rows: &BTreeMap<Key, Row>) -> Vec<String> {
    let samples = case["expect"]["verdicts"].as_array().into_iter().flatten();
    let samples = samples.filter(|sample| sample["verdict"] != "varies");
    samples
        .filter_map(|sample| {
            let found = lookup(
                rows,
                direction(sample),
                number(sample, "peer") as u32,
                number(sample, "proto") as u8,
                number(sample, "port") as u16,
            );
            let decision = match found.decision {
                Decision::Allow => "allow",
                Decision::Deny => "deny",
                Decision::NoMatch => "no-match",
            };
            (sample["verdict"] != decision).then(|| format!("{sample}: ours {decision} {:?}", found.row))
        })
        .collect()
}

#[expect(clippy::print_stderr, reason = "says what was compared")]
#[test]
fn recorded_cases_give_the_recorded_rows() {
    let Some(folder) = oracle::folder() else { test_kit::skip!("no recorded answers beside the checkout") };
    let (mut in_scope, mut wrong) = (0, Vec::new());
    let mut skipped: BTreeMap<String, usize> = BTreeMap::new();
    for case in FILES.iter().flat_map(|file| oracle::cases(&folder, file)) {
        let engine = match engine(&case) {
            Ok(engine) => engine,
            Err(reason) => {
                *skipped.entry(reason).or_default() += 1;
                continue;
            }
        };
        in_scope += 1;
        let differences = differences(&case, &engine);
        if !differences.is_empty() {
            wrong.push(format!("{}:\n  {}", case["id"], differences.join("\n  ")));
        }
    }

    eprintln!("{in_scope} cases compared; not built: {skipped:#?}");
    assert!(
        wrong.is_empty(),
        "{} cases differ, first of them:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(5)].join("\n")
    );
    assert!(in_scope >= IN_SCOPE, "only {in_scope} cases in scope: {skipped:#?}");
}

#[test]
fn the_lookup_gives_the_recorded_verdicts_of_all_cases() {
    let Some(folder) = oracle::folder() else { test_kit::skip!("no recorded answers beside the checkout") };
    let (mut cases, mut wrong) = (0, Vec::new());
    for case in FILES.iter().flat_map(|file| oracle::cases(&folder, file)) {
        cases += 1;
        if case["id"] == CONTRADICTORY {
            continue;
        }
        let mut rows = recorded_rows(&case, "entries");
        rows.extend(recorded_rows(&case, "optionalEntries"));
        wrong.extend(wrong_verdicts(&case, &rows).into_iter().map(|line| format!("{}: {line}", case["id"])));
    }
    assert_eq!(cases, 3000);
    assert!(wrong.is_empty(), "{} verdicts differ: {:#?}", wrong.len(), &wrong[..wrong.len().min(10)]);
}
