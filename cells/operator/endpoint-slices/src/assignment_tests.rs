//! Endpoints that come and go in any order.

use std::collections::BTreeMap;

use k8s_types::{Key, SmolStr};
use proptest::prelude::*;

use crate::assignment::Assignment;

const MAX: usize = 3;

#[derive(Clone, Debug)]
enum Event {
    Assign(u8, u8),
    Remove(u8, u8),
    /// A slice of another program, with these endpoints.
    Adopt(u8, u8, Vec<u8>),
    /// Slices that are empty are forgotten.
    Forget,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0..2_u8, 0..12_u8).prop_map(|(namespace, name)| Event::Assign(namespace, name)),
        4 => (0..2_u8, 0..12_u8).prop_map(|(namespace, name)| Event::Remove(namespace, name)),
        1 => (0..6_u8, 0..2_u8, prop::collection::vec(0..12_u8, 0..6))
            .prop_map(|(slice, namespace, names)| Event::Adopt(slice, namespace, names)),
        1 => Just(Event::Forget),
    ];
    prop::collection::vec(event, 1..120)
}

fn namespace(number: u8) -> SmolStr {
    format!("ns-{number}").into()
}

fn name(number: u8) -> SmolStr {
    format!("pod-{number}").into()
}

/// The endpoints by slice, with its namespace.
type Model = BTreeMap<SmolStr, (SmolStr, Vec<SmolStr>)>;

fn slice_of(model: &Model, key: &Key) -> Option<SmolStr> {
    let has = |(of, names): &(SmolStr, Vec<SmolStr>)| *of == key.namespace && names.contains(&key.name);
    model.iter().find(|(_, slice)| has(slice)).map(|(name, _)| name.clone())
}

fn apply(event: Event, assignment: &mut Assignment, model: &mut Model) {
    match event {
        Event::Assign(ns, pod) => {
            let key = Key::new(namespace(ns), name(pod));
            let found = assignment.assign(&key);
            if let Some(before) = slice_of(model, &key) {
                assert_eq!(found, before, "an endpoint has moved");
                return;
            }
            let with_room = |(of, names): &(SmolStr, Vec<SmolStr>)| *of == key.namespace && names.len() < MAX;
            let fullest = model.values().filter(|slice| with_room(slice)).map(|(_, names)| names.len()).max();
            let into = model.get(&found).map(|(_, names)| names.len());
            assert_eq!(into, fullest, "the fullest one with room, else a new one");
            model.entry(found).or_insert((key.namespace, Vec::new())).1.push(key.name);
        }
        Event::Remove(ns, pod) => {
            let key = Key::new(namespace(ns), name(pod));
            let before = slice_of(model, &key);
            assert_eq!(assignment.remove(&key), before);
            if let Some(slice) = before {
                model.get_mut(&slice).unwrap().1.retain(|name| *name != key.name);
            }
        }
        Event::Adopt(slice, ns, pods) => {
            let (slice, ns): (SmolStr, SmolStr) = (format!("ces-{slice}").into(), namespace(ns));
            assignment.adopt(&slice, &ns, pods.iter().map(|pod| name(*pod)));
            if model.contains_key(&slice) {
                return;
            }
            model.insert(slice.clone(), (ns.clone(), Vec::new()));
            for pod in pods {
                let key = Key::new(ns.clone(), name(pod));
                if model[&slice].1.len() < MAX && slice_of(model, &key).is_none() {
                    model.get_mut(&slice).unwrap().1.push(key.name);
                }
            }
        }
        Event::Forget => {
            for (slice, (_, names)) in model.clone() {
                assert_eq!(assignment.forget_empty(&slice), names.is_empty());
            }
            model.retain(|_, (_, names)| !names.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_endpoint_is_in_one_slice_and_stays_there(events in events()) {
        let (mut assignment, mut model) = (Assignment::new(MAX), Model::new());
        for event in events {
            apply(event, &mut assignment, &mut model);
            let endpoints: usize = model.values().map(|(_, names)| names.len()).sum();
            assert_eq!(assignment.counts(), (endpoints, model.len()));
            for (slice, (namespace, names)) in &model {
                let (found, contents) = assignment.contents(slice).unwrap();
                assert_eq!(found, namespace);
                assert!(contents.len() == names.len() && names.iter().all(|name| contents.contains(name)));
            }
        }
    }
}
