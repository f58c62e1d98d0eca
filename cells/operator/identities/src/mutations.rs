//! Mutations of CiliumIdentities.

use identity_core::HEARTBEAT;
use k8s_writer::{Mutation, Step};
use operator_election::Leadership;
use serde_json::Value;

/// Creates the object of an identity. One of the same labels that is there already is as good.
pub(crate) fn create(object: Value, leadership: Leadership) -> Mutation {
    Mutation::new(move |present| match present {
        None => while_leading(&leadership, Step::Create(object.clone())),
        Some(present) if present["security-labels"] == object["security-labels"] => Step::Done,
        Some(_) => Step::GiveUp("the id belongs to other labels".to_owned()),
    })
}

/// Removes the mark of the garbage collection.
pub(crate) fn unmark(leadership: Leadership) -> Mutation {
    Mutation::new(move |present| {
        let mut object = present.cloned().unwrap_or_default();
        let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        match annotations.and_then(|annotations| annotations.remove(HEARTBEAT)) {
            Some(_) => while_leading(&leadership, Step::Update(object)),
            None => Step::Done,
        }
    })
}

fn while_leading(leadership: &Leadership, step: Step) -> Step {
    match leadership.holds() {
        true => step,
        false => Step::GiveUp("this process does not lead any more".to_owned()),
    }
}
