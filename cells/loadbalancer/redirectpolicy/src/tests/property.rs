//! Any order of changes has the same result as the same objects at once.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Policy(u8, Option<Value>),
    Pod(u8, Option<Value>),
    Service(u8, Option<[bool; 2]>),
    Round,
}

fn ports() -> impl Strategy<Value = Vec<Value>> {
    prop_oneof![
        Just(vec![port(53, "UDP", "dns")]),
        Just(vec![port(80, "TCP", "web")]),
        Just(vec![port(53, "UDP", "dns"), port(80, "TCP", "web")]),
    ]
}

fn backend_ports() -> impl Strategy<Value = Vec<Value>> {
    prop_oneof![
        Just(vec![port(5300, "UDP", "dns")]),
        Just(vec![port(5300, "UDP", "dns"), port(8080, "TCP", "web")]),
        Just(vec![port(8080, "TCP", "web"), port(5300, "UDP", "other")]),
    ]
}

/// Generates specs of any kind, invalid ones among them. Addresses are never those of services, because there the
/// result depends on the order.
fn spec() -> impl Strategy<Value = Value> {
    let matcher = prop_oneof![
        (0u8..2, ports(), backend_ports())
            .prop_map(|(ip, ports, to)| { at_address(&format!("169.254.0.{ip}"), ports, to) }),
        (0u8..2, ports(), backend_ports()).prop_map(|(service, ports, to)| of_service(
            &format!("s{service}"),
            ports,
            to
        )),
        (0u8..2, backend_ports()).prop_map(|(service, to)| of_service(&format!("s{service}"), vec![], to)),
    ];
    (matcher, any::<bool>(), prop_oneof![Just("a"), Just("b")]).prop_map(|(mut spec, skip, app)| {
        spec["skipRedirectFromBackend"] = json!(skip);
        spec["redirectBackend"]["localEndpointSelector"]["matchLabels"]["app"] = json!(app);
        spec
    })
}

fn step() -> impl Strategy<Value = Step> {
    let pod_of = |(index, app, ready): (u8, &'static str, bool)| {
        (index, pod(&format!("pod{index}"), app, &format!("10.0.0.{index}"), ready))
    };
    let any_pod = (0u8..3, prop_oneof![Just("a"), Just("b")], any::<bool>()).prop_map(pod_of);
    prop_oneof![
        4 => (0u8..4, spec()).prop_map(|(index, spec)| Step::Policy(index, Some(spec))),
        1 => (0u8..4).prop_map(|index| Step::Policy(index, None)),
        4 => any_pod.prop_map(|(index, pod)| Step::Pod(index, Some(pod))),
        1 => (0u8..3).prop_map(|index| Step::Pod(index, None)),
        3 => (0u8..2, any::<[bool; 2]>()).prop_map(|(index, ports)| Step::Service(index, Some(ports))),
        1 => (0u8..2).prop_map(|index| Step::Service(index, None)),
        5 => Just(Step::Round),
    ]
}

fn take(world: &mut World, step: &Step) {
    match step {
        Step::Policy(index, spec) => world.policy(&format!("p{index}"), spec.clone()),
        Step::Pod(index, pod) => world.pod(&format!("pod{index}"), pod.clone()),
        Step::Service(index, ports) => {
            world.service(&format!("s{index}"), &format!("10.96.0.{index}"), *ports);
        }
        Step::Round => world.round(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_changes_equals_the_same_objects_at_once(
        steps in proptest::collection::vec(step(), 0..40),
    ) {
        let mut world = World::new();
        // The last version of each object, in the order of names.
        let mut last: BTreeMap<(u8, u8), Step> = BTreeMap::new();
        for step in &steps {
            take(&mut world, step);
            match step {
                Step::Policy(index, _) => _ = last.insert((2, *index), step.clone()),
                Step::Pod(index, _) => _ = last.insert((1, *index), step.clone()),
                Step::Service(index, _) => _ = last.insert((0, *index), step.clone()),
                Step::Round => {}
            }
        }
        world.settle();
        let mut fresh = World::new();
        last.values().for_each(|step| take(&mut fresh, step));
        fresh.settle();
        prop_assert_eq!(world.frontends(), fresh.frontends());
        prop_assert_eq!(world.services(), fresh.services());
        prop_assert_eq!(world.backends(), fresh.backends());
        prop_assert_eq!(world.skips(), fresh.skips());
        // Once the state has converged, nothing is written any more.
        let table = world.writer.frontends();
        let before = table.revision(&table.snapshot());
        world.settle();
        prop_assert_eq!(table.revision(&table.snapshot()), before);
    }
}
