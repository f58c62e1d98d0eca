//! Every case recorded from Cilium's policy engine that uses only implemented features yields the recorded flags, rows
//! and verdicts; the lookup yields the recorded verdicts of all cases.

mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use labels::{Label, LabelArray};
use policy_engine::{
    Decision, Direction, Enforcement, Engine, Key, Kind, L4, NamedPorts, ProxyPorts, Redirect, ResolveError,
    Row, Settings, lookup, parse,
};
use serde_json::Value;

const FILES: [&str; 2] = ["policy-basic.jsonl.gz", "policy-mixed.jsonl.gz"];
/// The minimum number of cases in scope: fewer would mean that an implemented feature is refused.
const IN_SCOPE: usize = 3000;
/// Cases in which Cilium writes rows that cannot decide any lookup and that we leave out: rows of peers beside an equal
/// row of all peers, if the one is written as port 443 and the other as the range 443-443.
const REDUNDANT: [&str; 7] =
    ["mixed-00001", "mixed-00268", "mixed-00484", "mixed-00675", "mixed-00785", "mixed-01071", "mixed-01299"];
/// The rows of this case contradict its own verdicts: in Cilium a precedence has overflowed between a Pass rule and the
/// map.
const CONTRADICTORY: &str = "mixed-00362";
/// Cases of which only the verdicts are compared: Cilium's precedence of a row overflows, as in [`CONTRADICTORY`].
const OTHER_ROWS: [&str; 7] =
    ["mixed-00070", CONTRADICTORY, "mixed-00425", "mixed-00513", "mixed-00580", "mixed-01016", "mixed-01290"];

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
        l7_proxy: on("l7Proxy"),
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
    let (precedence, proxy_port) = (number(entry, "precedence") as u32, number(entry, "proxyPort") as u16);
    (key, Row { deny, precedence, proxy_port, auth: number(entry, "auth") as u8, origin: 0 })
}

fn recorded_rows(case: &Value, list: &str) -> BTreeMap<Key, Row> {
    case["expect"][list].as_array().into_iter().flatten().map(recorded_row).collect()
}

/// The proxy ports of a case, by the ids of redirects without that of the endpoint.
#[derive(Debug)]
struct Recorded(BTreeMap<String, u16>);

impl ProxyPorts for Recorded {
    fn port(&self, redirect: &Redirect) -> Option<u16> {
        self.0.get(&redirect.to_string()).copied()
    }
}

fn proxy_ports(case: &Value) -> Recorded {
    let recorded = case["redirects"].as_object().into_iter().flatten();
    let port = |(id, port): (&String, &Value)| {
        (id.split_once(':').unwrap().1.to_owned(), port.as_u64().unwrap() as u16)
    };
    Recorded(recorded.map(port).collect())
}

/// Returns the engine with the whole input of a case; the error is the reason why the case is out of scope.
fn engine(case: &Value) -> Result<Engine, String> {
    let settings = settings(&case["config"]);
    let mut engine = Engine::new(settings.clone());
    engine.set_proxy_ports(Arc::new(proxy_ports(case)));
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
    let resolved = match engine.resolve(number(endpoint, "identity") as u32, &ports(endpoint), usize::MAX) {
        Ok(resolved) => resolved,
        Err(ResolveError::Conflict(_)) if expect["error"] == "resolve" => return Vec::new(),
        Err(error) => return vec![error.to_string()],
    };
    if let Some(error) = expect.get("error") {
        return vec![format!("{error} expected")];
    }
    let mut differences = Vec::new();
    let flags = (expect["ingress"].as_bool().unwrap(), expect["egress"].as_bool().unwrap());
    if flags != (resolved.ingress_enforced, resolved.egress_enforced) {
        differences.push(format!("enforced {flags:?} expected"));
    }
    differences.extend(wrong_verdicts(case, &resolved.rows));
    if OTHER_ROWS.iter().any(|id| case["id"] == *id) {
        return differences;
    }
    let effect = |(key, row): (&Key, &Row)| (*key, row.deny, row.precedence, row.proxy_port, row.auth);
    let ours: BTreeSet<_> = resolved.rows.iter().map(effect).collect();
    let must: BTreeSet<_> = recorded_rows(case, "entries").iter().map(effect).collect();
    let may: BTreeSet<_> = recorded_rows(case, "optionalEntries").iter().map(effect).collect();
    let is_redundant = |key: Key| decides_nothing(key, case, &resolved.rows);
    let missing: Vec<_> = must.difference(&ours).collect();
    match REDUNDANT.iter().any(|id| case["id"] == *id) {
        true if !missing.is_empty() && missing.iter().all(|row| is_redundant(row.0)) => {}
        true => differences.push(format!("redundant rows expected to be missing, not {missing:?}")),
        false => differences.extend(missing.iter().map(|row| format!("missing {row:?}"))),
    }
    let extra = ours.difference(&must).filter(|row| !may.contains(row));
    differences.extend(extra.map(|row| format!("not recorded {row:?}")));
    differences
}

/// Whether the recorded row of a key changes no verdict on packets with the key's first and last port when it is added to
/// `rows`.
fn decides_nothing(key: Key, case: &Value, rows: &BTreeMap<Key, Row>) -> bool {
    let mut both = rows.clone();
    both.insert(key, recorded_rows(case, "entries")[&key]);
    let last = key.l4.port
        | if key.l4.bits < 8 {
            u16::MAX
        } else {
            u16::MAX.checked_shr(u32::from(key.l4.bits) - 8).unwrap_or(0)
        };
    let protocols = if key.l4.bits == 0 { vec![1, 6, 17, 47, 132] } else { vec![key.l4.protocol] };
    let same = |protocol, port| {
        let verdict = |rows| {
            let found = lookup(rows, key.direction, key.identity, protocol, port);
            (found.decision, found.row.map_or(0, |(_, row)| row.proxy_port), found.auth)
        };
        verdict(rows) == verdict(&both)
    };
    protocols.into_iter().all(|protocol| same(protocol, key.l4.port) && same(protocol, last))
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
            let proxy_port = found.row.map_or(0, |(_, row)| u64::from(row.proxy_port));
            let recorded = (number(sample, "proxyPort"), number(sample, "auth"));
            let differs = sample["verdict"] != decision
                || decision == "allow" && recorded != (proxy_port, found.auth.into());
            differs.then(|| format!("{sample}: ours {decision} {found:?}"))
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
