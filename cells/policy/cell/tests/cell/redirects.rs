use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use datapath_api::Datapath;
use policy::{Rows, Verdict};
use policy_engine::{L7Rules, Parser};
use proxy_ports::{DNS_PROXY, EndpointRedirect, PolicyReceiver, Proxies, Proxy, ProxyPort, Registration};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::kit::{Agent, TCP, World};

const UDP: u32 = 17 << 16;
const PORT: u16 = 41_015;

fn redirects(agent: &Agent) -> Vec<EndpointRedirect> {
    let table = agent.hive.get::<Proxies>().redirects();
    table.all(&table.snapshot()).map(|row| EndpointRedirect::clone(row)).collect()
}

/// Returns a policy that lets clients ask the pods of an app for a name.
fn dns(server: &str, name: &str) -> Value {
    json!({
        "endpointSelector": {"matchLabels": {"app": "client"}},
        "egress": [{
            "toEndpoints": [{"matchLabels": {"app": server}}],
            "toPorts": [{
                "ports": [{"port": "53", "protocol": "ANY"}],
                "rules": {"dns": [{"matchName": name}]},
            }],
        }],
    })
}

/// Returns the same for any name.
fn any_name(server: &str) -> Value {
    let mut policy = dns(server, "");
    policy["egress"][0]["toPorts"][0]["rules"] = json!({"dns": [{"matchPattern": "*"}]});
    policy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_follow_policies_and_the_proxies_that_listen() {
    let mut world = World::new();
    world.write(&[("dns", dns("server", "a.io"))], true);
    let agent = world.start().await;
    let (client, server) = (world.pod(7, "client"), world.subject(8, "server"));
    agent.policies.enforce(client);
    agent.policies.realized(7).await.unwrap();
    let datapath = world.datapath.clone();
    let rows = move || -> Rows { datapath.policy_rows(7).unwrap().into_iter().collect() };
    let port_to = |identity| match rows().verdict(true, identity, UDP | 53) {
        Verdict::Allow { proxy_port, .. } => Some(u16::from_be(proxy_port)),
        Verdict::Deny | Verdict::NoMatch => None,
    };
    let port = || port_to(server.identity);
    let problems = |agent: &Agent| agent.statuses()[0].problems.len();
    assert_eq!((port(), redirects(&agent).len()), (None, 0), "no proxy takes it");
    agent.hive.until("the status", || !agent.statuses().is_empty()).await;
    assert!(problems(&agent) > 0);

    let proxies = agent.hive.get::<Proxies>();
    let dns_proxy = Proxy { name: DNS_PROXY.into(), parser: Parser::Dns, ingress: false, fixed: None };
    let registration = proxies.register(dns_proxy);
    registration.listening(PORT).unwrap();
    proxies.set_reachable(&BTreeMap::from([(Arc::from(DNS_PROXY), PORT)]));
    agent.hive.until("traffic has the port", || port() == Some(PORT)).await;
    agent.hive.until("the problem is gone", || problems(&agent) == 0).await;
    let found = redirects(&agent);
    let ids: Vec<&str> = found.iter().map(|row| &*row.id).collect();
    assert_eq!(ids, ["7:egress:TCP:53:", "7:egress:UDP:53:"], "of ANY what proxies take");
    assert_eq!((found[1].port, &*found[1].proxy, found[1].rules.len()), (PORT, DNS_PROXY, 1));
    let names = |rows: &[EndpointRedirect]| -> Vec<String> {
        let L7Rules::Dns(rules) = &rows[1].rules[0].rules.l7 else { panic!("{rows:?}") };
        rules.iter().map(|rule| format!("{rule:?}")).collect()
    };
    assert!(names(&found)[0].contains("a.io"), "{found:?}");

    // Other names change no map, only the rules of the proxy.
    world.write(&[("dns", dns("server", "b.io"))], false);
    agent.hive.until("the proxy has the other name", || names(&redirects(&agent))[0].contains("b.io")).await;
    assert_eq!(port(), Some(PORT));
    let references = |proxies: &Proxies| {
        let table = proxies.ports();
        table.get(&table.snapshot(), ProxyPort::by_name(DNS_PROXY)).unwrap().references
    };
    assert_eq!(references(&proxies), 2);
    world.write(&[("dns", dns("other", "b.io"))], false);
    agent.hive.until("the server is no peer", || port().is_none()).await;
    world.write(&[("dns", dns("server", "b.io"))], false);
    agent.hive.until("it is again", || port() == Some(PORT)).await;

    // At a stop with `dns-policy-unload-on-shutdown`: only rules that allow every name need no proxy.
    world.write(&[("dns", dns("server", "b.io")), ("all", any_name("other"))], false);
    let other = world.subject(9, "other").identity;
    agent.hive.until("both have the port", || [port(), port_to(other)] == [Some(PORT); 2]).await;
    proxies.bypass_dns().await;
    assert_eq!([port(), port_to(other)], [Some(PORT), Some(0)]);
    assert_eq!(redirects(&agent)[1].rules.len(), 1, "those of the name");

    drop(registration);
    agent.hive.until("traffic of a proxy that is gone is denied", || port().is_none()).await;
    agent.hive.until("its redirects are gone", || redirects(&agent).is_empty()).await;
    assert_eq!(references(&proxies), 0);
    agent.hive.until("the problem is back", || problems(&agent) > 0).await;
    agent.end().await;
}

/// Returns a policy that lets clients send requests to the pods of an app.
fn http(server: &str) -> Value {
    json!({
        "endpointSelector": {"matchLabels": {"app": "client"}},
        "egress": [{
            "toEndpoints": [{"matchLabels": {"app": server}}],
            "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{"path": "/a"}]}}],
        }],
    })
}

/// Returns the port of the proxy for HTTP from endpoint 7 to an identity.
fn http_port(datapath: &dyn Datapath, identity: u32) -> Option<u16> {
    let rows: Rows = datapath.policy_rows(7).unwrap().into_iter().collect();
    match rows.verdict(true, identity, TCP | 80) {
        Verdict::Allow { proxy_port, .. } => Some(u16::from_be(proxy_port)),
        Verdict::Deny | Verdict::NoMatch => None,
    }
}

fn envoy(agent: &Agent) -> Registration {
    let proxies = agent.hive.get::<Proxies>();
    let name: Arc<str> = "cilium-http-egress".into();
    let envoy = Proxy { name: name.clone(), parser: Parser::Http, ingress: false, fixed: None };
    let registration = proxies.register_late(envoy);
    registration.listening(10_001).unwrap();
    proxies.set_reachable(&BTreeMap::from([(name, 10_001)]));
    registration
}

/// An Envoy that answers when the test permits it.
#[derive(Debug, Clone)]
struct FakeReceiver(Arc<Semaphore>);

impl PolicyReceiver for FakeReceiver {
    fn is_in_use(&self) -> bool {
        true
    }

    fn received(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let permits = self.0.clone();
        Box::pin(async move { permits.acquire().await.unwrap().forget() })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_has_changed_policies_before_maps_do_and_delays_them_by_a_second_at_most() {
    let mut world = World::new();
    world.write(&[("http", http("server"))], true);
    let agent = world.start().await;
    let (client, other) = (world.pod(7, "client"), world.subject(8, "other").identity);
    agent.policies.enforce(client);
    agent.policies.realized(7).await.unwrap();
    let _registration = envoy(&agent);
    let server = world.subject(9, "server").identity;
    let datapath = world.datapath.clone();
    let port = move |identity| http_port(&*datapath, identity);
    agent.hive.until("traffic has the port", || port(server) == Some(10_001)).await;
    let fake = FakeReceiver(Arc::new(Semaphore::new(0)));
    agent.hive.get::<Proxies>().set_policy_receiver(Arc::new(fake.clone()));

    world.write(&[("http", http("other"))], false);
    let names_other =
        || agent.row(7).filters.egress.iter().any(|filter| filter.peers[0].selector.text().contains("other"));
    agent.hive.until("the tables have the new policy", names_other).await;
    assert_eq!((port(server), port(other)), (Some(10_001), None), "the map waits");
    assert!(!agent.row(7).realized_filters.egress[0].peers[0].selector.text().contains("other"));
    fake.0.add_permits(1);
    agent.hive.until("the map follows", || port(other) == Some(10_001)).await;
    assert_eq!(port(server), None);

    // One that hangs.
    world.write(&[("http", http("server"))], false);
    agent.hive.until("the map follows all the same", || port(server) == Some(10_001)).await;
    fake.0.add_permits(100);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_of_http_rules_is_for_envoy_or_denied() {
    let mut world = World::new();
    world.write(&[("http", http("server"))], true);
    let agent = world.start().await;
    let (client, server_identity) = (world.pod(7, "client"), world.subject(8, "server").identity);
    agent.policies.enforce(client);
    agent.policies.realized(7).await.unwrap();
    let port = |identity| http_port(&*world.datapath, identity);
    assert_eq!((port(server_identity), redirects(&agent).len()), (None, 0), "no Envoy takes it");
    assert!(agent.row(7).error.unwrap().contains("egress:TCP:80"));
    let registration = envoy(&agent);
    agent.hive.until("traffic has the port", || port(server_identity) == Some(10_001)).await;
    assert_eq!(redirects(&agent)[0].id.as_ref(), "7:egress:TCP:80:");
    drop(registration);
    agent.hive.until("it is denied again", || port(server_identity).is_none()).await;
    agent.end().await;
}

/// A secret that Envoy cannot use is named in the row of each policy that needs it, and no longer once it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_that_are_missing_are_problems_of_their_policies_until_they_come() {
    let mut world = World::new();
    let with_secret = |name: &str| {
        let mut policy = http("web");
        let secret = json!({"namespace": "shop", "name": name});
        policy["egress"][0]["toPorts"][0]["rules"]["http"][0]["headerMatches"] =
            json!([{"name": "a", "secret": secret}]);
        policy
    };
    world
        .write(&[("one", with_secret("token")), ("two", with_secret("other")), ("plain", http("web"))], true);
    let agent = world.start().await;
    let _envoy = envoy(&agent);
    let client = world.pod(7, "client");
    agent.policies.enforce(client);
    agent.policies.realized(7).await.unwrap();
    let problems = || -> Vec<(String, Vec<String>)> {
        let rows = agent.statuses();
        let texts = |row: &policy::PolicyStatus| row.problems.iter().map(ToString::to_string).collect();
        rows.iter().map(|row| (row.object.name.to_string(), texts(row))).collect()
    };
    let expected = |one: &[&str], two: &[&str]| -> Vec<(String, Vec<String>)> {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        vec![("one".into(), texts(one)), ("plain".into(), Vec::new()), ("two".into(), texts(two))]
    };
    agent.hive.until("a listener for all", || problems() == expected(&[], &[])).await;

    let proxies = agent.hive.get::<Proxies>();
    let fault = |name: &str, reason: &str| {
        let secret = policy_engine::SecretRef { namespace: "shop".into(), name: name.into() };
        (secret, reason.to_owned())
    };
    let missing = "does not exist: create it";
    let problem = |name: &str, reason: &str| {
        format!("spec.egress[0]: denied as far as it needs secret shop/{name}: {reason}")
    };
    proxies.set_secret_faults(&[fault("token", missing), fault("other", "has no item a")].into());
    let both = expected(&[&problem("token", missing)], &[&problem("other", "has no item a")]);
    agent.hive.until("both are missing", || problems() == both).await;
    let before = world.fake.calls().len();
    proxies.set_secret_faults(&[fault("other", "has no item a")].into());
    let other = expected(&[], &[&problem("other", "has no item a")]);
    agent.hive.until("one has come", || problems() == other).await;
    proxies.set_secret_faults(&[].into());
    agent.hive.until("both have come", || problems() == expected(&[], &[])).await;
    assert_eq!(world.fake.calls().len(), before, "no map is written for it");
    agent.end().await;
}
