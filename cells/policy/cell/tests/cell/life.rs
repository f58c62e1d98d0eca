use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath_abi::{PolicyEntry, PolicyKey, policy_flag};
use datapath_api::Datapath as _;
use datapath_api::testing::Call;
use hive::prelude::*;
use policy::{NotRealized, ObjectState, RealizationState, Verdict};
use policy_engine::{Decision, Direction, Reason};
use runtime_options::RuntimeOption;
use serde_json::{Value, json};

use crate::kit::{Agent, TCP, World, allow};

fn policy_calls(world: &World) -> Vec<Call> {
    let policy = |call: &Call| matches!(call, Call::WritePolicy(..) | Call::SwapPolicy(..));
    world.fake.calls().into_iter().filter(policy).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_changes_before_all_sources_have_been_read() {
    let mut world = World::new();
    let (web, client) = (world.pod(7, "web"), world.subject(8, "client"));
    // Entries of the previous run: the client's, and a stale one.
    let row = |peer, bits: u32, dport: u16| PolicyKey {
        prefixlen: 40 + bits,
        sec_label: peer,
        egress: 0,
        protocol: if bits > 0 { 6 } else { 0 },
        dport: dport.to_be(),
    };
    let everything = (PolicyKey::any(true), PolicyEntry::allow(0));
    let kept = (row(client.identity, 24, 80), PolicyEntry::allow(24));
    let stale = (row(4711, 0, 0), PolicyEntry::allow(0));
    world.fake.restore_policy(7, [everything, kept, stale]);

    let agent = world.start().await;
    agent.policies.enforce(web.clone());
    world.write(&[("web", allow("web", "client", 80))], false);
    let realized = agent.policies.realized(7);
    assert!(tokio::time::timeout(Duration::from_millis(50), realized).await.is_err());
    assert!(policy_calls(&world).is_empty());
    assert_eq!(agent.row(7).state, RealizationState::Pending);

    world.write(&[], true);
    let revision = agent.policies.realized(7).await.unwrap();
    assert_eq!(revision, 2, "the repository's first, and one policy");
    assert_eq!(policy_calls(&world), [Call::WritePolicy(7, 1)], "in place: the stale row goes");
    assert!(world.ingress(7, client.identity, TCP | 80) && !world.ingress(7, 4711, TCP | 80));
    let row = agent.row(7);
    assert_eq!((row.enabled(), row.ingress.allow, row.egress.allow), ("ingress", 1, 1));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_added_changed_refused_and_removed() {
    let mut world = World::new();
    world.write(&[], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.subject(8, "client"));
    agent.policies.enforce(web);
    assert_eq!(agent.policies.realized(7).await, Ok(1));
    assert_eq!(agent.row(7).enabled(), "none");
    assert!(world.ingress(7, client.identity, TCP | 80), "without policy everything passes");

    world.write(&[("web", allow("web", "client", 80))], false);
    agent.hive.until("the policy", || !world.ingress(7, client.identity, TCP | 81)).await;
    assert!(world.ingress(7, client.identity, TCP | 80) && !world.ingress(7, 4711, TCP | 80));
    world.write(&[("web", allow("web", "client", 81))], false);
    agent.hive.until("the next", || world.ingress(7, client.identity, TCP | 81)).await;
    agent.hive.until("its end", || !world.ingress(7, client.identity, TCP | 80)).await;
    agent.hive.until("the revision", || agent.row(7).realized == 3).await;

    // An invalid field: the whole previous version stays in force.
    let mut wrong = allow("web", "client", 82);
    wrong["ingress"][0]["toPorts"][0]["ports"][0]["protocol"] = "XYZ".into();
    world.write(&[("web", wrong), ("more", allow("web", "other", 90))], false);
    let other = world.subject(9, "other");
    agent.hive.until("the good one", || world.ingress(7, other.identity, TCP | 90)).await;
    assert!(world.ingress(7, client.identity, TCP | 81));
    agent.hive.until("the status", || agent.statuses().len() == 2).await;
    let statuses = agent.statuses();
    let web = statuses.iter().find(|status| &*status.object.name == "web").unwrap();
    assert_eq!((web.state, web.revision), (ObjectState::RefusedPreviousInForce, 3));
    assert_eq!(web.problems[0].path, "spec.ingress[0].toPorts[0].ports[0].protocol");
    assert_eq!(&*web.origin, "web.yaml, document 1");
    let health = || agent.hive.health("policy.job-policy-maps");
    agent.hive.until("health", || health().level == Level::Degraded).await;
    assert!(health().error.contains("web.yaml"), "{:?}", health());

    world.write(&[("web", Value::Null), ("more", Value::Null)], false);
    agent.hive.until("everything to pass again", || world.ingress(7, 4711, TCP | 1)).await;
    agent.hive.until("no status", || agent.statuses().is_empty()).await;
    agent.hive.until("health", || health().level == Level::Ok).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_with_500_ports_reaches_100_endpoints_computed_once() {
    let mut world = World::new();
    world.write(&[], true);
    let agent = world.start().await;
    for endpoint in 1..=100 {
        agent.policies.enforce(world.pod(endpoint, "web"));
    }
    for endpoint in 1..=100 {
        agent.policies.realized(endpoint).await.unwrap();
    }
    let ports: Vec<Value> =
        (1..=500).map(|port| json!({"port": (port * 2).to_string(), "protocol": "TCP"})).collect();
    let rules: Vec<Value> = ports.chunks(40).map(|ports| json!({"toPorts": [{"ports": ports}]})).collect();
    let spec = json!({"endpointSelector": {}, "ingress": rules});
    let started = Instant::now();
    world.write(&[("many", spec)], false);
    agent
        .hive
        .until("the last endpoint", || (1..=100).all(|endpoint| agent.row(endpoint).realized == 2))
        .await;
    let took = started.elapsed();
    for endpoint in [1, 50, 100] {
        assert_eq!(agent.row(endpoint).ingress.allow, 500);
        assert!(world.ingress(endpoint, 4711, TCP | 1000) && !world.ingress(endpoint, 4711, TCP | 999));
    }
    assert!(took < Duration::from_secs(3), "{took:?}");
    let (first, last) = (agent.row(1), agent.row(100));
    assert!(
        Arc::ptr_eq(&first.filters, &last.filters) && Arc::ptr_eq(&first.filters, &last.realized_filters)
    );
    assert_eq!(first.filters.ingress.iter().filter(|filter| filter.ports.is_some()).count(), 500);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_map_denies_only_its_endpoint_is_reported_and_recovers() {
    let mut world = World::new();
    world.fake.set_policy_capacity(8);
    world.write(&[("web", allow("web", "client", 80))], true);
    let agent = world.start().await;
    let (web, db, client) = (world.pod(7, "web"), world.pod(8, "db"), world.subject(9, "client"));
    agent.policies.enforce(web);
    agent.policies.enforce(db);
    agent.policies.realized(7).await.unwrap();
    agent.policies.realized(8).await.unwrap();
    assert!(world.ingress(7, client.identity, TCP | 80));

    let mut large = allow("web", "client", 80);
    let ports: Vec<Value> =
        (1..=9).map(|port| json!({"port": (port * 2).to_string(), "protocol": "TCP"})).collect();
    large["ingress"][0]["toPorts"][0]["ports"] = ports.into();
    world.write(&[("web", large)], false);
    agent.hive.until("the full map", || agent.row(7).state == RealizationState::Full).await;
    assert!(world.rows(7).is_empty(), "denied wholly, also what was allowed before");
    let row = agent.row(7);
    assert!(row.error.as_deref().unwrap().contains("bpf-policy-map-max"), "{row:?}");
    let ports = |filters: &policy::Filters| filters.ingress.iter().filter(|f| f.ports.is_some()).count();
    assert_eq!((ports(&row.filters), ports(&row.realized_filters)), (9, 1), "wanted and realized");
    assert!(matches!(agent.policies.realized(7).await, Err(NotRealized::Full { .. })));
    assert!(agent.policies.realized(8).await.is_ok(), "others are not touched");
    let text = world.metrics.text();
    assert!(text.contains("cilium_bpf_map_pressure{map_name=\"cilium_policy_v2_*\"} 1"), "{text}");
    assert!(text.contains("cilium_policy_endpoints_overflowed 1"), "{text}");

    world.write(&[("web", allow("web", "client", 81))], false);
    agent.hive.until("the map to fit again", || agent.row(7).state == RealizationState::Realized).await;
    assert!(world.ingress(7, client.identity, TCP | 81));
    assert!(agent.policies.realized(7).await.is_ok());
    assert_eq!(agent.row(7).error, None);
    assert!(world.metrics.text().contains("cilium_policy_endpoints_overflowed 0"));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_in_lockdown_is_denied_by_entries_until_its_policy_fits() {
    let mut world = World::new();
    world.fake.set_policy_capacity(8);
    world.write(&[("web", allow("web", "client", 80))], true);
    let agent = world.start_with(&[("enable-endpoint-lockdown-on-policy-overflow", "true")]).await;
    let client = world.subject(9, "client");
    // One after another: the first round waits for the announcement of all that are attached.
    for (endpoint, app) in [(7, "web"), (8, "db")] {
        agent.policies.enforce(world.pod(endpoint, app));
        agent.policies.realized(endpoint).await.unwrap();
    }
    let many = |first: u16| {
        let mut many = allow("web", "client", 80);
        let ports = (0..9).map(|n| json!({"port": (first + 2 * n).to_string(), "protocol": "TCP"}));
        many["ingress"][0]["toPorts"][0]["ports"] = ports.collect::<Vec<_>>().into();
        many
    };
    world.write(&[("web", many(1))], false);
    agent.hive.until("the lockdown", || agent.row(7).state == RealizationState::Full).await;

    // Cilium's entries: a deny of the highest precedence, for each direction.
    let deny = PolicyEntry { flags: policy_flag::DENY, precedence: u32::MAX, ..PolicyEntry::default() };
    let lockdown = [(PolicyKey::any(false), deny), (PolicyKey::any(true), deny)];
    let mut rows = world.fake.policy_rows(7).unwrap();
    rows.sort_by_key(|(key, _)| key.egress);
    assert_eq!(rows, lockdown);
    assert_eq!(world.rows(7).verdict(false, client.identity, TCP | 80), Verdict::Deny);
    assert_eq!(world.rows(7).verdict(true, client.identity, TCP | 80), Verdict::Deny);
    assert!(world.ingress(8, client.identity, TCP | 80), "others are not touched");
    let row = agent.row(7);
    assert_eq!((row.ingress.allow, row.ingress.deny, row.egress.deny), (0, 1, 1), "{row:?}");
    let text = world.metrics.text();
    assert!(text.contains("cilium_policy_endpoints_overflowed 1"), "{text}");
    assert!(text.contains("cilium_bpf_map_pressure{map_name=\"cilium_policy_v2_*\"} 1"), "{text}");

    // Another policy that does not fit either, or an identity that comes, changes nothing.
    let (calls, before) = (policy_calls(&world).len(), agent.row(7).revision);
    world.write(&[("web", many(101))], false);
    agent.hive.until("the next revision", || agent.row(7).revision > before).await;
    world.subject(10, "other");
    assert_eq!((policy_calls(&world).len(), agent.row(7).state), (calls, RealizationState::Full));

    world.write(&[("web", allow("web", "client", 81))], false);
    agent.hive.until("the map to fit again", || agent.row(7).state == RealizationState::Realized).await;
    assert!(world.ingress(7, client.identity, TCP | 81) && !world.ingress(7, client.identity, TCP | 80));
    assert!(world.metrics.text().contains("cilium_policy_endpoints_overflowed 0"));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_map_that_is_exactly_full_still_changes() {
    let mut world = World::new();
    world.write(&[("web", allow("web", "client", 80))], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.subject(9, "client"));
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    assert!(world.ingress(7, client.identity, TCP | 80));
    let rows = world.rows(7).len();
    world.fake.set_policy_capacity(rows);

    // The same key with another verdict.
    let mut deny = allow("web", "client", 80);
    deny["ingressDeny"] = deny["ingress"].take();
    deny["ingress"] = json!([]);
    world.write(&[("web", deny)], false);
    agent.hive.until("the verdict", || !world.ingress(7, client.identity, TCP | 80)).await;
    agent.policies.realized(7).await.unwrap();
    assert_eq!((world.rows(7).len(), agent.row(7).state), (rows, RealizationState::Realized));
    assert!(
        matches!(policy_calls(&world).last(), Some(Call::SwapPolicy(7, _))),
        "{:?}",
        policy_calls(&world)
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mode_of_enforcement_changes_while_the_agent_runs() {
    let mut world = World::new();
    world.write(&[], true);
    let agent = world.start().await;
    agent.policies.enforce(world.pod(7, "web"));
    agent.policies.realized(7).await.unwrap();
    assert!(world.ingress(7, 4711, TCP | 80));
    let mode = |value: &str| {
        let option = RuntimeOption::new(runtime_options::POLICY_ENFORCEMENT, value).unwrap();
        world.options.transact(|txn| drop(txn.insert(option)));
    };
    mode("always");
    agent.hive.until("denial", || !world.ingress(7, 4711, TCP | 80)).await;
    agent.hive.until("the row", || agent.row(7).enabled() == "both").await;
    mode("never");
    agent.hive.until("everything", || world.ingress(7, 4711, TCP | 80)).await;
    mode("default");
    agent.hive.until("the row", || agent.row(7).enabled() == "none").await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_change_their_identity_and_are_removed() {
    let mut world = World::new();
    world.write(&[("web", allow("web", "client", 80)), ("db", allow("db", "web", 81))], true);
    let agent = world.start().await;
    let client = world.subject(8, "client");
    agent.policies.enforce(world.pod(7, "web"));
    agent.policies.realized(7).await.unwrap();
    assert!(world.ingress(7, client.identity, TCP | 80));
    agent.policies.enforce(world.subject(7, "db"));
    agent.policies.realized(7).await.unwrap();
    assert!(!world.ingress(7, client.identity, TCP | 80), "of another policy now");
    // A peer that is added later is selected, too.
    let web = world.subject(9, "web");
    agent.hive.until("the peer", || world.ingress(7, web.identity, TCP | 81)).await;
    agent.policies.forget(7);
    assert_eq!(agent.policies.realized(7).await, Err(NotRealized::Unknown { endpoint: 7 }));

    // Another endpoint with its id and identity, before the job has run: its map is empty, and must be filled.
    agent.policies.enforce(world.subject(7, "db"));
    agent.policies.realized(7).await.unwrap();
    agent.policies.forget(7);
    world.datapath.detach(7).unwrap();
    agent.policies.enforce(world.pod(7, "db"));
    agent.policies.realized(7).await.unwrap();
    assert!(world.ingress(7, web.identity, TCP | 81));
    agent.policies.forget(7);

    // An endpoint without a map fails, and recovers by itself.
    agent.policies.enforce(world.subject(10, "web"));
    let failed = agent.policies.realized(10).await.unwrap_err();
    assert!(failed.to_string().contains("not attached"), "{failed}");
    world.pod(10, "web");
    agent.hive.until("the map", || agent.row(10).state == RealizationState::Realized).await;
    agent.end().await;
}

/// Returns a policy for pods of the app `web` with one ingress entry.
fn web_from_client(port: u16, entry: &Value) -> Value {
    let mut spec = allow("web", "client", port);
    let into = spec["ingress"][0].as_object_mut().unwrap();
    into.extend(entry.as_object().unwrap().clone());
    spec
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_for_a_proxy_is_denied_and_reported_without_one() {
    let mut world = World::new();
    let http =
        json!([{"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{"method": "GET"}]}}]);
    let names = json!({
        "endpointSelector": {"matchLabels": {"app": "web"}},
        "egress": [{"toFQDNs": [{"matchName": "apiary.example"}]}],
    });
    let web = [("http", web_from_client(80, &json!({"toPorts": http}))), ("names", names)];
    world.write(&[web.as_slice(), &[("plain", allow("web", "client", 81))]].concat(), true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.subject(8, "client"));
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    assert!(!world.ingress(7, client.identity, TCP | 80) && world.ingress(7, client.identity, TCP | 81));
    let row = agent.row(7);
    assert_eq!((row.state, row.missing_redirects), (RealizationState::Realized, 1));
    assert_eq!(row.error.as_deref(), Some("denied, since no proxy takes the traffic: ingress:TCP:80:"));

    agent.hive.until("the statuses", || agent.statuses().len() == 3).await;
    let problems = |name: &str| {
        let statuses = agent.statuses();
        let status = statuses.iter().find(|status| &*status.object.name == name).unwrap();
        assert_eq!(status.state, ObjectState::Applied);
        status.problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let none = |path: &str, kind: &str| {
        format!("{path}: denied as far as it needs a proxy: there is none for {kind}")
    };
    assert_eq!(problems("http"), [none("spec.ingress[0]", "http")]);
    assert_eq!(problems("names"), [none("spec.egress[0]", "dns")]);
    assert!(problems("plain").is_empty());
    let is_degraded = || {
        let rows = agent.hive.get::<hive::HealthTree>().snapshot();
        rows.iter().any(|row| row.message == "Traffic that rules send to a proxy is denied")
    };
    agent.hive.until("the report", is_degraded).await;
    world.write(&[("http", Value::Null)], false);
    agent.hive.until("the end of the report", || !is_degraded()).await;
    assert_eq!(agent.row(7).missing_redirects, 0);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contradicting_rules_leave_the_previous_ones_in_force() {
    let mut world = World::new();
    let mode = |mode: &str| web_from_client(80, &json!({"authentication": {"mode": mode}}));
    world.write(&[("one", mode("required"))], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.subject(8, "client"));
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    let auth_type = |world: &World| match world.rows(7).verdict(false, client.identity, TCP | 80) {
        Verdict::Allow { auth_type, .. } => auth_type,
        other => panic!("{other:?}"),
    };
    assert_eq!(auth_type(&world), 1);

    world.write(&[("two", mode("disabled")), ("three", allow("web", "client", 81))], false);
    agent.hive.until("the conflict", || agent.row(7).state == RealizationState::Conflict).await;
    let error = agent.row(7).error.unwrap();
    assert!(
        error.starts_with("cnp/shop/one spec.ingress[0] and cnp/shop/two spec.ingress[0]: different"),
        "{error}"
    );
    assert!(matches!(agent.policies.realized(7).await, Err(NotRealized::Conflict { .. })));
    assert_eq!(auth_type(&world), 1, "the previous rules");
    assert!(!world.ingress(7, client.identity, TCP | 81));
    // An endpoint that joins the identity has its frozen rows.
    agent.policies.enforce(world.pod(10, "web"));
    agent.hive.until("the other", || agent.row(10).state == RealizationState::Conflict).await;
    assert!(world.ingress(10, client.identity, TCP | 80) && !world.ingress(10, client.identity, TCP | 81));
    world.write(&[("one", Value::Null)], false);
    agent.hive.until("the rules", || world.ingress(7, client.identity, TCP | 81)).await;
    assert_eq!(auth_type(&world), 0);
    agent.hive.until("the state", || agent.row(7).state == RealizationState::Realized).await;
    agent.policies.realized(10).await.unwrap();
    agent.end().await;
}

/// Returns the policies behind a decision on a packet to endpoint 7, and whether it passes.
fn deciding(agent: &Agent, peer: u32, port: u16) -> Option<(bool, Vec<String>)> {
    let explained = agent.row(7).decisions.explain(Direction::Ingress, peer, 6, port)?;
    let rules = match explained.row {
        Some((_, _, Reason::Rules(matches))) => {
            matches.iter().map(|found| found.rule.resource.name.to_string()).collect()
        }
        _ => Vec::new(),
    };
    Some((explained.decision == Decision::Allow, rules))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_have_the_rules_behind_them_if_they_are_kept() {
    let mut world = World::new();
    world.write(&[("web", allow("web", "client", 80))], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.subject(8, "client").identity);
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    assert_eq!(deciding(&agent, client, 80), None, "nothing is kept without a user");

    agent.policies.keep_decisions();
    world.write(&[("two", allow("web", "client", 81))], false);
    let by = |name: &str| Some((true, vec![name.to_owned()]));
    agent.hive.until("the rules are kept", || deciding(&agent, client, 81) == by("two")).await;
    assert_eq!(deciding(&agent, client, 80), by("web"));
    assert_eq!(deciding(&agent, client, 82), Some((false, Vec::new())), "denied by default");
    // A peer that comes later has rows by the same rules.
    let other = world.subject(9, "client").identity;
    assert_eq!((other, deciding(&agent, 4711, 80)), (client, Some((false, Vec::new()))));

    // A deny wins at the same port; then the policy is replaced.
    let deny = json!({
        "endpointSelector": {"matchLabels": {"app": "web"}},
        "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "client"}}]}],
    });
    world.write(&[("no", deny)], false);
    agent
        .hive
        .until("the deny", || deciding(&agent, client, 80) == Some((false, vec!["no".to_owned()])))
        .await;
    world.write(&[("no", Value::Null), ("web", Value::Null)], false);
    agent.hive.until("the end of both", || deciding(&agent, client, 80) == Some((false, Vec::new()))).await;
    assert_eq!(deciding(&agent, client, 81), by("two"));
    agent.end().await;
}

/// The ingress has no policy map: its rules are for Envoy only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ingress_has_rules_and_neither_a_map_nor_redirects() {
    let mut world = World::new();
    let spec = json!({
        "endpointSelector": {"matchExpressions": [{"key": "reserved:ingress", "operator": "Exists"}]},
        "egress": [{
            "toEndpoints": [{"matchLabels": {"app": "web"}}],
            "toPorts": [{
                "ports": [{"port": "80", "protocol": "TCP"}],
                "rules": {"http": [{"path": "/a"}]},
            }],
        }],
    });
    let labels = labels::LabelArray::from(&labels::Labels::parse(["reserved:ingress"]));
    let subject = policy::Subject { endpoint: 9, identity: 8, labels, named_ports: Default::default() };
    world.write_all(&[("/ingress".to_owned(), spec)]);
    world.write(&[], true);
    let agent = world.start().await;
    agent.policies.enforce(subject);
    agent.policies.realized(9).await.unwrap();
    let row = agent.row(9);
    assert_eq!((row.enabled(), row.state, row.error), ("egress", RealizationState::Realized, None));
    assert_eq!((row.filters.egress.len(), row.missing_redirects), (1, 0));
    assert_eq!(policy_calls(&world), []);
    agent.end().await;
}
