//! The steps of a configuration with a world that tests change.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_api::Types;
use envoy_proxy::{Delivery, Kind};
use hive::prelude::*;
use k8s_types::cilium::CiliumEnvoyConfig;
use loadbalancer::ServiceName;
use policy_engine::Parser;
use proxy_ports::{Proxies, Proxy, Registration};
use serde_json::json;

use super::{Phase, Progress, Set, World};
use crate::parse::{Object, Parsed, Settings, parse};

const FRONT: &str = "web/gate/front";

struct Fake {
    proxies: Proxies,
    _hive: Hive,
    settings: Settings,
    types: Arc<Types>,
    answers: RefCell<BTreeMap<Kind, Delivery>>,
    is_ready: std::cell::Cell<bool>,
    is_reconciled: std::cell::Cell<bool>,
    is_about_other: std::cell::Cell<bool>,
    restored: std::cell::Cell<Option<u16>>,
}

impl Fake {
    async fn new() -> Fake {
        let cells = [statedb::cell(), proxy_ports::cell(), invoke(|_: Arc<Proxies>| {})];
        let mut hive = Hive::builder(cells).build().unwrap();
        hive.populate().await.unwrap();
        Fake {
            proxies: Proxies::clone(&hive.get::<Proxies>().unwrap()),
            _hive: hive,
            settings: Settings { addresses: vec!["127.0.0.1"], ..Settings::default() },
            types: Types::load().unwrap(),
            answers: RefCell::default(),
            is_ready: std::cell::Cell::new(false),
            is_reconciled: std::cell::Cell::new(false),
            is_about_other: std::cell::Cell::new(false),
            restored: std::cell::Cell::new(None),
        }
    }

    fn answer(&self, kind: Kind, delivery: Delivery) {
        self.answers.borrow_mut().insert(kind, delivery);
    }

    /// Returns an object with a listener, a cluster and a redirected service.
    fn parsed(&self, cluster: &str) -> Arc<Parsed> {
        let resource = |kind: &str, fields: serde_json::Value| {
            let mut resource = fields;
            resource["@type"] = format!("type.googleapis.com/envoy.config.{kind}").into();
            resource
        };
        let object: CiliumEnvoyConfig = serde_json::from_value(json!({
            "metadata": {"name": "gate", "namespace": "web"},
            "spec": {
                "services": [{"name": "store"}],
                "resources": [
                    resource("listener.v3.Listener", json!({"name": "front"})),
                    resource("cluster.v3.Cluster", json!({"name": cluster})),
                ],
            },
        }))
        .unwrap();
        let object = Object { meta: &object.metadata, spec: &object.spec };
        Arc::new(parse(object, &self.settings, &self.types).unwrap())
    }

    /// Publishes, and takes all steps that are possible.
    fn run(&self, one: &mut Progress) {
        loop {
            for kind in [Kind::Clusters, Kind::Listeners] {
                one.note(kind, 7);
            }
            one.written();
            if !one.advance(self) {
                break;
            }
        }
    }
}

impl World for Fake {
    fn register(&self, name: &Arc<str>) -> Registration {
        let (name, parser) = (name.clone(), Parser::Custom);
        self.proxies.register_late(Proxy { name, parser, ingress: false, fixed: None })
    }

    fn restored(&self, _: &str) -> Option<u16> {
        self.restored.get()
    }

    fn is_ready(&self, _: &str) -> bool {
        self.is_ready.get()
    }

    fn delivery(&self, kind: Kind, _: &str, version: u64) -> Delivery {
        assert_eq!(version, 7);
        self.answers.borrow().get(&kind).cloned().unwrap_or(Delivery::Pending)
    }

    fn is_about_other(&self, _: Kind, _: &str, _: &Set) -> bool {
        self.is_about_other.get()
    }

    fn is_reconciled(&self, services: &BTreeSet<ServiceName>) -> bool {
        assert_eq!(services.iter().map(ServiceName::as_str).collect::<Vec<_>>(), ["web/store"]);
        self.is_reconciled.get()
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn types(&self) -> &Types {
        &self.types
    }
}

fn names(one: &Progress) -> Vec<String> {
    one.published().keys().map(|(kind, name)| format!("{kind:?} {name}")).collect()
}

/// Takes a configuration to its end.
fn in_force(world: &Fake) -> Progress {
    let mut one = Progress::begin(world.parsed("a/b"), false, world);
    world.answer(Kind::Clusters, Delivery::Done);
    world.answer(Kind::Listeners, Delivery::Done);
    world.is_ready.set(true);
    world.is_reconciled.set(true);
    world.run(&mut one);
    assert_eq!(one.phase, Phase::Done);
    one
}

#[tokio::test]
async fn services_are_redirected_last_and_freed_first() {
    let world = Fake::new().await;
    let mut one = Progress::begin(world.parsed("a/b"), false, &world);
    world.run(&mut one);
    assert_eq!((one.phase.clone(), names(&one)), (Phase::Clusters, vec!["Clusters a/b".to_owned()]));
    world.answer(Kind::Clusters, Delivery::Done);
    world.run(&mut one);
    assert_eq!(names(&one), [format!("Listeners {FRONT}"), "Clusters a/b".to_owned()]);
    assert_eq!(one.phase, Phase::Listeners);
    world.answer(Kind::Listeners, Delivery::Done);
    world.run(&mut one);
    assert_eq!((one.phase.clone(), one.redirects.len()), (Phase::Rules, 0));
    world.is_ready.set(true);
    world.run(&mut one);
    assert_eq!((one.phase.clone(), one.redirects.len()), (Phase::Draining, 1));
    assert_eq!(Some(one.redirects[0].proxy_port), one.port(&FRONT.into()));
    world.is_reconciled.set(true);
    world.run(&mut one);
    assert_eq!(one.phase, Phase::Done);

    world.is_reconciled.set(false);
    one.leave();
    world.run(&mut one);
    assert!(one.redirects.is_empty() && !one.has_left());
    assert_eq!(names(&one).len(), 2, "the kernel still leads packets to the listener");
    world.is_reconciled.set(true);
    world.run(&mut one);
    assert!(one.has_left() && names(&one).is_empty());
}

#[tokio::test]
async fn a_refusal_keeps_what_was_accepted() {
    let world = Fake::new().await;
    let mut one = in_force(&world);
    world.answer(Kind::Clusters, Delivery::Refused("Error: c/d".to_owned()));
    one.update(world.parsed("c/d"), &world);
    world.run(&mut one);
    assert_eq!(one.phase, Phase::Failed("Error: c/d".to_owned()));
    assert_eq!(names(&one), [format!("Listeners {FRONT}"), "Clusters a/b".to_owned()]);
    assert_eq!(one.redirects.len(), 1);
    world.answer(Kind::Clusters, Delivery::Done);
    one.retry(&world);
    world.run(&mut one);
    assert_eq!((one.phase.clone(), names(&one).len()), (Phase::Done, 2));
    assert!(names(&one).contains(&"Clusters c/d".to_owned()));
}

#[tokio::test]
async fn a_refusal_about_another_resource_does_not_count() {
    let world = Fake::new().await;
    world.is_about_other.set(true);
    world.answer(Kind::Clusters, Delivery::Refused("Error: x/y".to_owned()));
    world.answer(Kind::Listeners, Delivery::Refused("Error: x/y/z".to_owned()));
    world.is_ready.set(true);
    let mut one = Progress::begin(world.parsed("a/b"), false, &world);
    world.run(&mut one);
    assert_eq!(one.phase, Phase::Draining);
}

#[tokio::test]
async fn a_port_that_envoy_cannot_bind_is_exchanged_a_few_times() {
    let world = Fake::new().await;
    world.answer(Kind::Clusters, Delivery::Done);
    let mut one = Progress::begin(world.parsed("a/b"), false, &world);
    world.run(&mut one);
    let first = one.port(&FRONT.into()).unwrap();
    world.answer(Kind::Listeners, Delivery::Refused(format!("{FRONT}: cannot bind '127.0.0.1:{first}'")));
    let before = one.published();
    for _ in 0..2 {
        one.note(Kind::Listeners, 7);
        assert!(one.advance(&world));
        assert_eq!(one.phase, Phase::Clusters);
        one.note(Kind::Clusters, 7);
        assert!(one.advance(&world));
        assert_eq!(one.phase, Phase::Listeners);
        assert_ne!(one.port(&FRONT.into()), Some(first));
        assert_ne!(one.published(), before);
    }
    world.run(&mut one);
    assert!(matches!(&one.phase, Phase::Failed(error) if error.contains("cannot bind")), "{:?}", one.phase);
    assert!(one.published().is_empty() && one.redirects.is_empty());
}

#[tokio::test]
async fn listeners_of_the_previous_run_are_redirected_to_until_envoy_refuses_them() {
    let world = Fake::new().await;
    world.restored.set(Some(1));
    let mut one = Progress::begin(world.parsed("a/b"), true, &world);
    assert_eq!((one.phase.clone(), one.redirects.len(), names(&one).len()), (Phase::Clusters, 1, 2));
    world.answer(Kind::Clusters, Delivery::Done);
    world.run(&mut one);
    assert_eq!(one.phase, Phase::Listeners, "Envoy has to accept them all the same");
    world.answer(Kind::Listeners, Delivery::Refused("Error".to_owned()));
    world.run(&mut one);
    assert_eq!(one.phase, Phase::Failed("Error".to_owned()));
    assert!(one.redirects.is_empty() && one.published().is_empty());
}

#[tokio::test]
async fn without_envoy_a_configuration_waits() {
    let world = Fake::new().await;
    world.answer(Kind::Clusters, Delivery::NoClient);
    world.answer(Kind::Listeners, Delivery::NoClient);
    world.is_ready.set(true);
    let mut one = Progress::begin(world.parsed("a/b"), false, &world);
    world.run(&mut one);
    assert_eq!((one.phase.clone(), one.redirects.len(), names(&one).len()), (Phase::Listeners, 0, 2));
}
