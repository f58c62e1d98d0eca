//! The rows of policies in the tables of services.

use super::*;

fn dns() -> Vec<Value> {
    vec![port(5300, "UDP", "dns")]
}

#[test]
fn an_address_has_frontends_as_long_as_there_are_pods() {
    let mut world = World::new();
    world.policy("p", Some(at_address("169.254.1.1", vec![port(53, "UDP", "other")], dns())));
    world.settle();
    assert_eq!(world.services(), ["ns/p:local-redirect"]);
    assert!(world.frontends().is_empty());
    world.pod("a", Some(pod("a", "a", "10.0.0.1", true)));
    world.pod("b", Some(pod("b", "other", "10.0.0.2", true)));
    world.pod("c", Some(pod("c", "a", "10.0.0.3", false)));
    world.settle();
    let text = "ns/p:local-redirect LocalRedirect '' ->  = 10.0.0.1:5300/UDP";
    assert_eq!(world.frontends(), BTreeMap::from([("169.254.1.1:53/UDP".to_owned(), text.to_owned())]));
    assert_eq!(world.backends(), ["ns/p:local-redirect 10.0.0.1:5300/UDP dns 0"]);
    world.pod("a", Some(pod("a", "a", "10.0.0.1", false)));
    world.settle();
    assert!(world.frontends().is_empty() && world.backends().is_empty());
    world.policy("p", None);
    world.settle();
    assert!(world.services().is_empty());
}

#[test]
fn a_service_is_redirected_where_ports_match() {
    let mut world = World::new();
    world.service("s", "10.96.0.1", Some([true, true]));
    world.pod("a", Some(pod("a", "a", "10.0.0.1", true)));
    world.policy("p", Some(of_service("s", vec![port(53, "UDP", "")], dns())));
    world.settle();
    let frontends = world.frontends();
    let to = "ns/s ClusterIP 'dns' -> ns/p:local-redirect = 10.0.0.1:5300/UDP";
    assert_eq!(frontends["10.96.0.1:53/UDP"], to);
    assert_eq!(frontends["10.96.0.1:80/TCP"], "ns/s ClusterIP 'web' ->  = 10.9.9.9:80/TCP");
    // All ports, but only one matches by its name.
    let several = vec![port(5300, "UDP", "dns"), port(8080, "TCP", "other")];
    world.policy("p", Some(of_service("s", vec![], several)));
    world.settle();
    assert_eq!(world.frontends(), frontends);
    // The service is created again.
    world.service("s", "10.96.0.1", None);
    world.settle();
    world.service("s", "10.96.0.1", Some([true, true]));
    world.settle();
    assert_eq!(world.frontends(), frontends);
    world.policy("p", None);
    world.settle();
    assert_eq!(world.frontends()["10.96.0.1:53/UDP"], "ns/s ClusterIP 'dns' ->  = 10.9.9.9:53/UDP");
    assert_eq!(world.services(), ["ns/s"]);
}

#[test]
fn a_redirected_frontend_keeps_the_name_of_its_port() {
    let mut world = World::new();
    world.service("s", "10.96.0.1", Some([false, true]));
    world.pod("a", Some(pod("a", "a", "10.0.0.1", true)));
    // The pod's port `web` is the target; a port of another name is not, nor is another pod.
    let web = of_service("s", vec![port(80, "TCP", "")], vec![port(8080, "TCP", "")]);
    world.policy("p", Some(web.clone()));
    world.settle();
    let to = "ns/s ClusterIP 'web' -> ns/p:local-redirect = 10.0.0.1:8080/TCP";
    assert_eq!(world.frontends()["10.96.0.1:80/TCP"], to);
    let mut renamed = pod("a", "a", "10.0.0.1", true);
    renamed["spec"]["containers"][0]["ports"][1]["name"] = json!("http");
    world.pod("a", Some(renamed));
    world.settle();
    assert_eq!(world.frontends()["10.96.0.1:80/TCP"], "ns/s ClusterIP 'web' -> ns/p:local-redirect = ");
}

#[test]
fn an_address_of_a_service_is_left_to_it() {
    let mut world = World::new();
    world.service("s", "10.96.0.1", Some([true, false]));
    world.pod("a", Some(pod("a", "a", "10.0.0.1", true)));
    let ports = vec![port(53, "UDP", "dns"), port(80, "TCP", "web")];
    let backend = vec![port(5300, "UDP", "dns"), port(8080, "TCP", "web")];
    world.policy("p", Some(at_address("10.96.0.1", ports, backend)));
    world.settle();
    let frontends = world.frontends();
    assert_eq!(frontends["10.96.0.1:53/UDP"], "ns/s ClusterIP 'dns' ->  = 10.9.9.9:53/UDP");
    let other = "ns/p:local-redirect LocalRedirect 'web' ->  = 10.0.0.1:8080/TCP";
    assert_eq!(frontends["10.96.0.1:80/TCP"], other, "the others are taken");
    // It is taken over once it is free.
    world.service("s", "10.96.0.1", None);
    world.settle();
    let own = "ns/p:local-redirect LocalRedirect 'dns' ->  = 10.0.0.1:5300/UDP";
    assert_eq!(world.frontends()["10.96.0.1:53/UDP"], own);
}

#[test]
fn of_two_conflicting_policies_the_older_one_takes_effect() {
    let mut world = World::new();
    world.pod("a", Some(pod("a", "a", "10.0.0.1", true)));
    let spec = || at_address("169.254.1.1", vec![port(53, "UDP", "")], dns());
    world.policy("b", Some(spec()));
    world.settle();
    assert!(world.frontends()["169.254.1.1:53/UDP"].starts_with("ns/b:local-redirect"));
    let mut older = object("c", spec());
    older.metadata.creation_timestamp = Some("2026-01-01T00:00:00Z".parse().unwrap());
    let mut younger = object("b", spec());
    younger.metadata.creation_timestamp = Some("2026-01-02T00:00:00Z".parse().unwrap());
    world.objects.transact(|txn| {
        txn.insert(Row::of(older));
        txn.insert(Row::of(younger));
    });
    world.settle();
    assert!(world.frontends()["169.254.1.1:53/UDP"].starts_with("ns/c:local-redirect"));
    world.policy("c", None);
    world.settle();
    assert!(world.frontends()["169.254.1.1:53/UDP"].starts_with("ns/b:local-redirect"));
}

#[test]
fn a_policy_that_becomes_malformed_is_withdrawn() {
    let mut world = World::new();
    world.pod("a", Some(pod("a", "a", "10.0.0.1", true)));
    world.policy("p", Some(at_address("169.254.1.1", vec![port(53, "UDP", "")], dns())));
    world.settle();
    assert_eq!(world.frontends().len(), 1);
    world.policy("p", Some(at_address("nowhere", vec![port(53, "UDP", "")], dns())));
    world.settle();
    assert!(world.frontends().is_empty() && world.services().is_empty());
    let snapshot = world.policies.snapshot();
    assert!(world.policies.is_empty(&snapshot));
}

#[test]
fn services_wait_for_policies_and_policies_for_the_other_sources() {
    let mut world = World::new();
    let other = world.writer.register("other");
    let frontends = world.writer.frontends();
    world.settle();
    assert!(!frontends.initialized(&frontends.snapshot()));
    world.writer.complete(other);
    let pending: Vec<String> =
        frontends.pending_initializers(&frontends.snapshot()).iter().map(ToString::to_string).collect();
    assert_eq!(pending, ["lrp-controller"]);
    assert!(!world.skips.initialized(&frontends.snapshot()));
    world.settle();
    assert!(frontends.initialized(&frontends.snapshot()) && world.skips.initialized(&frontends.snapshot()));
}
