//! The life of proxies and redirects by the handles, without a kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use policy_engine::{Direction, Parser, ProxyPorts as _, Redirect};
use proxy_ports::{
    DNS_PROXY, EndpointRedirect, Error, PortState, Proxies, Proxy, ProxyConfig, ProxyPort, Registration, cell,
};
use tokio::time::timeout;

fn dns(port: u16) -> Redirect {
    Redirect { direction: Direction::Egress, protocol: 17, port, parser: Parser::Dns, listener: "".into() }
}

fn proxy(name: &str, parser: Parser) -> Proxy {
    Proxy { name: name.into(), parser, ingress: false, fixed: None }
}

fn row(proxies: &Proxies, name: &str) -> Option<ProxyPort> {
    let ports = proxies.ports();
    ports.get(&ports.snapshot(), ProxyPort::by_name(name)).map(|row| ProxyPort::clone(row))
}

/// Returns the handle in a hive whose range has only these ports.
async fn handle(first: u16, last: u16) -> (Hive, Arc<Proxies>) {
    let mut hive = Hive::builder([statedb::cell(), cell(), invoke(|_: Arc<Proxies>| {})])
        .set("proxy-portrange-min", first.to_string())
        .set("proxy-portrange-max", last.to_string())
        .build()
        .unwrap();
    hive.populate().await.unwrap();
    let proxies = hive.get::<Proxies>().unwrap();
    (hive, proxies)
}

fn reachable(name: &str, port: u16) -> BTreeMap<Arc<str>, u16> {
    BTreeMap::from([(name.into(), port)])
}

#[tokio::test]
async fn redirects_have_a_port_only_while_the_proxy_listens_and_rules_lead_to_it() {
    let (_hive, proxies) = handle(10_000, 10_001).await;
    let port = |proxies: &Proxies| proxies.ready().0.port(&dns(53));
    let registration = proxies.register(proxy(DNS_PROXY, Parser::Dns));
    assert!(!proxies.ports().initialized(&proxies.ports().snapshot()), "policy waits for the proxy");
    assert_eq!(registration.preferred(), None);
    registration.listening(41_015).unwrap();
    assert_eq!(port(&proxies), None, "no rule leads to it");
    let (_, watch) = proxies.ready();
    proxies.set_reachable(&reachable(DNS_PROXY, 41_014));
    assert_eq!(port(&proxies), None, "the rule leads elsewhere");
    proxies.set_reachable(&reachable(DNS_PROXY, 41_015));
    timeout(Duration::from_secs(5), watch.changed()).await.unwrap();
    timeout(Duration::from_secs(5), registration.ready()).await.unwrap();
    assert!(proxies.ports().initialized(&proxies.ports().snapshot()));
    assert_eq!(port(&proxies), Some(41_015));
    assert_eq!(proxies.ready().0.port(&Redirect { direction: Direction::Ingress, ..dns(53) }), None);
    let http = Redirect { parser: Parser::Http, protocol: 6, ..dns(80) };
    assert_eq!(proxies.ready().0.port(&http), None, "no such proxy");
    proxies.set_reachable(&BTreeMap::new());
    assert_eq!(port(&proxies), None, "the rules are gone");
    proxies.set_reachable(&reachable(DNS_PROXY, 41_015));
    drop(registration);
    assert_eq!(port(&proxies), None);
    let row = row(&proxies, DNS_PROXY).unwrap();
    assert!(matches!(row.state, PortState::Withdrawn { .. }) && row.port == 41_015, "{row:?}");
    let again = proxies.register(proxy(DNS_PROXY, Parser::Dns));
    assert_eq!(again.preferred(), Some(41_015), "kept for its return");
}

#[tokio::test]
async fn programs_that_assign_sockets_need_no_rules() {
    for (option, is_ready) in [("true", true), ("false", false)] {
        let mut hive = Hive::builder([statedb::cell(), cell(), invoke(|_: Arc<Proxies>| {})])
            .set("enable-bpf-tproxy", option)
            .build()
            .unwrap();
        hive.populate().await.unwrap();
        let proxies = hive.get::<Proxies>().unwrap();
        let port = |proxies: &Proxies| proxies.ready().0.port(&dns(53));
        let registration = proxies.register(proxy(DNS_PROXY, Parser::Dns));
        assert_eq!(port(&proxies), None, "it does not listen yet");
        registration.listening(41_015).unwrap();
        assert_eq!(port(&proxies), is_ready.then_some(41_015), "{option}");
        proxies.set_reachable(&BTreeMap::new());
        assert_eq!(port(&proxies), is_ready.then_some(41_015), "{option}: rules have no effect");
        drop(registration);
        assert_eq!(port(&proxies), None, "{option}");
    }
}

#[tokio::test]
async fn ports_of_the_range_are_given_to_one_proxy_each() {
    let (_hive, proxies) = handle(61_001, 61_003).await;
    let [a, b]: [Registration; 2] = ["a", "b"].map(|name| proxies.register(proxy(name, Parser::Custom)));
    let none = BTreeSet::new();
    let (first, second) = (a.reserve(&none).unwrap(), b.reserve(&none).unwrap());
    assert!((61_001..=61_003).contains(&first) && (61_001..=61_003).contains(&second) && first != second);
    assert_eq!(a.reserve(&none).unwrap(), first, "the same as before");
    let third = a.reserve(&BTreeSet::from([first])).unwrap();
    assert!(![first, second].contains(&third), "a refused port is not given out again");
    let c = proxies.register(proxy("c", Parser::Custom));
    assert_eq!(c.reserve(&none).unwrap(), first, "a former port, as there is no other");
    assert!(matches!(
        proxies.register(proxy("d", Parser::Custom)).reserve(&none),
        Err(Error::Exhausted { .. })
    ));
    c.listening(first).unwrap();
    let taken = b.listening(first).unwrap_err();
    assert_eq!(taken.to_string(), format!("port {first} of proxy b is that of proxy c"));
}

#[tokio::test]
async fn references_follow_the_redirects() {
    let (_hive, proxies) = handle(10_000, 20_000).await;
    let registration = proxies.register(proxy(DNS_PROXY, Parser::Dns));
    registration.listening(41_015).unwrap();
    let redirect =
        |endpoint, port| EndpointRedirect::new(endpoint, dns(port), DNS_PROXY.into(), 41_015, Arc::from([]));
    let references = || row(&proxies, DNS_PROXY).unwrap().references;
    proxies.upsert_redirects(vec![redirect(7, 53), redirect(7, 5353), redirect(8, 53)]);
    assert_eq!(references(), 3);
    let table = proxies.redirects();
    let snapshot = table.snapshot();
    let of_7: Vec<&str> =
        table.prefix(&snapshot, EndpointRedirect::of_endpoint(7)).map(|row| &*row.id).collect();
    assert_eq!(of_7, ["7:egress:UDP:5353:", "7:egress:UDP:53:"]);
    let revision = table.revision(&table.snapshot());
    proxies.upsert_redirects(vec![redirect(8, 53)]);
    proxies.retain_redirects(|_| true);
    assert_eq!(table.revision(&table.snapshot()), revision, "equal ones are not written");
    proxies.retain_redirects(|row| row.endpoint == 8);
    assert_eq!(references(), 1);
}

#[tokio::test]
async fn a_fixed_port_is_preferred() {
    let (_hive, proxies) = handle(10_000, 20_000).await;
    assert_eq!(*proxies.config(), ProxyConfig::default());
    let fixed = proxies.register(Proxy { fixed: Some(9053), ..proxy(DNS_PROXY, Parser::Dns) });
    fixed.listening(41_015).unwrap();
    assert_eq!(fixed.preferred(), Some(9053));
}
