//! After any sequence of mutations, changes by other clients, outages and lost responses, the objects are those of the
//! newest mutations, with the fields that other clients have set.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_types::{ApiError, Key, Kind};
use k8s_writer::{Mutation, Step, Target};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::faults::{Fault, busy, is_unreachable};
use crate::world::{World, spec};

#[derive(Debug, Clone)]
enum Event {
    /// Enqueues a mutation that sets a value.
    Set(u8, u16),
    /// The same, without reading the object first.
    SetBlind(u8, u16),
    /// Enqueues a deletion.
    Gone(u8),
    /// Another client sets a field of an object that exists.
    Others(u8, u16),
    /// Another client deletes an object.
    Lost(u8),
    Away(bool),
    Faults(Vec<u8>),
    Pause(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let object = 0..4_u8;
    prop_oneof![
        4 => (object.clone(), any::<u16>()).prop_map(|(o, v)| Event::Set(o, v)),
        2 => (object.clone(), any::<u16>()).prop_map(|(o, v)| Event::SetBlind(o, v)),
        2 => object.clone().prop_map(Event::Gone),
        3 => (object.clone(), any::<u16>()).prop_map(|(o, v)| Event::Others(o, v)),
        1 => object.prop_map(Event::Lost),
        1 => any::<bool>().prop_map(Event::Away),
        2 => prop::collection::vec(0..6_u8, 1..6).prop_map(Event::Faults),
        6 => (0..2000_u16).prop_map(Event::Pause),
    ]
}

fn fault(n: u8) -> Fault {
    match n {
        0 => Fault::None,
        1 => Fault::LostAnswer,
        2 => Fault::Unsent(is_unreachable()),
        3 => Fault::Unsent(busy(1)),
        4 => Fault::Unsent(ApiError::Conflict("not this version".into())),
        _ => Fault::Unsent(ApiError::Forbidden("not yet".into())),
    }
}

const KIND: Kind = Kind::CiliumEndpoint;

fn key(object: u8) -> Key {
    Key::new("shop", format!("pod-{object}"))
}

fn value(object: &Value) -> Option<u64> {
    object["spec"]["value"].as_u64()
}

/// Returns an edit with an optimistic first request, which assumes that the object does not exist.
fn blind(wanted: u16) -> Mutation {
    let object = json!({"spec": {"value": wanted}});
    let decide = move |present: Option<&Value>| match present {
        None => Step::Create(json!({"spec": {"value": wanted}})),
        Some(present) if value(present) == Some(wanted.into()) => Step::Done,
        Some(_) => Step::json_patch(&json!([{"op": "replace", "path": "/spec/value", "value": wanted}])),
    };
    Mutation::new(decide).at_first(Step::Create(object))
}

async fn run(events: Vec<Event>) {
    let world = World::new().await;
    world.server.latency(Duration::from_millis(3));
    // The last mutations by object, and the last changes by other clients by uid.
    let mut wanted: BTreeMap<u8, Option<u16>> = BTreeMap::new();
    let mut theirs: BTreeMap<String, u16> = BTreeMap::new();
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap().to_owned();
    for event in events {
        match event {
            Event::Set(object, value) => {
                wanted.insert(object, Some(value));
                world.writer.enqueue(Target::new(KIND, key(object)), Mutation::edit(spec(value)));
            }
            Event::SetBlind(object, value) => {
                wanted.insert(object, Some(value));
                world.writer.enqueue(Target::new(KIND, key(object)), blind(value));
            }
            Event::Gone(object) => {
                wanted.insert(object, None);
                world.writer.enqueue(Target::new(KIND, key(object)), Mutation::delete(None));
            }
            Event::Others(object, value) => world.cluster.change(KIND, &key(object), |object| {
                theirs.insert(uid(object), value);
                object["spec"]["theirs"] = json!(value);
            }),
            Event::Lost(object) => world.cluster.remove(KIND, &key(object)),
            Event::Away(is) => world.server.is_unreachable(is),
            Event::Faults(faults) => world.server.next(faults.into_iter().map(fault)),
            Event::Pause(ms) => sleep(Duration::from_millis(ms.into())).await,
        }
    }
    // The faults end, the server responds, and every mutation is enqueued once more, since callers are responsible
    // for objects that other clients delete after the write.
    world.server.is_unreachable(false);
    world.idle().await;
    world.server.next([]);
    for (object, value) in &wanted {
        let mutation = value.map_or(Mutation::delete(None), |value| Mutation::edit(spec(value)));
        if world.cluster.object(KIND, &key(*object)).is_none() == value.is_some() {
            world.writer.enqueue(Target::new(KIND, key(*object)), mutation);
        }
    }
    world.idle().await;
    for (object, wanted) in &wanted {
        let present = world.cluster.object(KIND, &key(*object));
        assert_eq!(present.as_ref().map(value), wanted.map(|wanted| Some(wanted.into())), "object {object}");
        if let Some(present) = present {
            let theirs = theirs.get(&uid(&present)).map_or(Value::Null, |theirs| json!(theirs));
            assert_eq!(present["spec"]["theirs"], theirs, "object {object}");
        }
    }
    world.finish().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_server_ends_with_the_newest_mutations(events in prop::collection::vec(event(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run(events));
    }
}
