//! Policies with services as peers follow the tables of services and backends.

use identity::Identity;
use k8s_tables::SmolStr;
use loadbalancer::{Backend, LbAddress, Protocol, Service, ServiceName, Source};
use serde_json::json;

use crate::kit::{TCP, World};

fn service(name: &str, labels: &[(&str, &str)], selector: &[(&str, &str)]) -> Service {
    let owned = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| (SmolStr::from(*key), SmolStr::from(*value))).collect()
    };
    let service = Service::new(ServiceName::new("shop", name), Source::Kubernetes);
    Service { labels: owned(labels), selector: owned(selector), ..service }
}

fn backend(service: &str, ip: &str) -> Backend {
    let address = LbAddress::new(ip.parse().unwrap(), 80, Protocol::Tcp);
    Backend::new(ServiceName::new("shop", service), address, Source::Kubernetes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_as_peers_are_followed() {
    let mut world = World::new();
    let to_services = json!({
        "endpointSelector": {"matchLabels": {"app": "web"}},
        "egress": [{"toServices": [
            {"k8sService": {"serviceName": "db", "namespace": "shop"}},
            {"k8sServiceSelector": {"selector": {"matchLabels": {"tier": "cache"}}}},
        ]}],
    });
    world.services.transact(|w| w.insert(service("db", &[], &[("app", "db")])));
    world.write(&[("peers", to_services)], true);
    let agent = world.start().await;
    let (web, db, other) = (world.pod(7, "web"), world.subject(8, "db"), world.subject(9, "other"));
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    let passes = |peer: u32| world.rows(7).verdict(true, peer, TCP | 80).passes();
    agent.hive.until("the pods of the service", || passes(db.identity)).await;
    assert!(!passes(other.identity));

    // Another selector, and another service by its labels.
    world.services.transact(|w| {
        w.insert(service("db", &[], &[("app", "other")]));
        w.insert(service("unrelated", &[("tier", "back")], &[("app", "db")]));
    });
    agent.hive.until("the new selector", || passes(other.identity) && !passes(db.identity)).await;
    world.services.transact(|w| w.insert(service("redis", &[("tier", "cache")], &[("app", "db")])));
    agent.hive.until("the other service", || passes(db.identity)).await;

    // Without a selector its backends count: their prefixes get identities.
    let prefix = || {
        let snapshot = world.identity_table.snapshot();
        let is_it = |row: &&Identity| row.labels.iter().any(|label| label.key == "192.0.2.1/32");
        world.identity_table.all(&snapshot).map(|row| &**row).find(is_it).map(|row| row.id)
    };
    let revision = agent.policies.revision();
    world.backends.transact(|w| w.insert(backend("db", "10.0.0.1")));
    world.backends.transact(|w| w.insert(backend("redis", "192.0.2.1")));
    world.services.transact(|w| w.insert(service("redis", &[("tier", "cache")], &[])));
    agent.hive.until("the address", || prefix().is_some_and(passes)).await;
    assert!(!passes(db.identity) && passes(other.identity));
    assert_eq!(agent.policies.revision(), revision + 1, "backends of pods change no policy");
    world.services.transact(|w| w.delete(Service::by_name(&ServiceName::new("shop", "redis"))));
    agent.hive.until("the release", || prefix().is_none()).await;
    world.services.transact(|w| w.delete(Service::by_name(&ServiceName::new("shop", "db"))));
    agent.hive.until("no peer", || !passes(other.identity)).await;
    agent.end().await;
}
