//! Writes of the operator's fields into CiliumNodes.

use std::sync::Arc;

use k8s_types::{Key, Kind, SmolStr};
use k8s_writer::{Mutation, Step, Target, Writer};
use operator_election::Leadership;
use serde_json::{Value, json};

/// Writes fields of CiliumNodes while this process leads.
#[derive(Clone, Debug)]
pub(crate) struct NodeWriter {
    pub(crate) writer: Arc<Writer>,
    pub(crate) leadership: Leadership,
}

impl NodeWriter {
    /// Replaces `spec.ipam.podCIDRs` of the object with this uid, if they are still those that the decision was made on. Otherwise
    /// the watch reports the object anew.
    pub(crate) fn pod_cidrs(&self, node: &SmolStr, uid: &SmolStr, basis: &[SmolStr], desired: Vec<String>) {
        let (uid, basis, desired) = (uid.clone(), json!(basis), json!(desired));
        let leadership = self.leadership.clone();
        let decide = move |present: Option<&Value>| {
            let Some(object) = present.filter(|object| object["metadata"]["uid"] == uid.as_str()) else {
                return Step::Done;
            };
            let found = match &object["spec"]["ipam"]["podCIDRs"] {
                Value::Null => json!([]),
                found => found.clone(),
            };
            if found == desired || found != basis {
                return Step::Done;
            }
            if !leadership.holds() {
                return Step::GiveUp("this process does not lead any more".to_owned());
            }
            let mut object = object.clone();
            object["spec"]["ipam"]["podCIDRs"] = desired.clone();
            Step::Update(object)
        };
        // Dropped: the next change of the object shows how it went.
        drop(self.writer.enqueue(target(node).part("podCIDRs"), Mutation::new(decide)));
    }

    /// Sets `status.ipam.operator-status.error` of the object with this uid; an empty one removes it.
    pub(crate) fn error(&self, node: &SmolStr, uid: &SmolStr, error: String) {
        let uid = uid.clone();
        let leadership = self.leadership.clone();
        let decide = move |present: Option<&Value>| {
            let Some(object) = present.filter(|object| object["metadata"]["uid"] == uid.as_str()) else {
                return Step::Done;
            };
            let found = object["status"]["ipam"]["operator-status"]["error"].as_str().unwrap_or_default();
            if found == error {
                return Step::Done;
            }
            if !leadership.holds() {
                return Step::GiveUp("this process does not lead any more".to_owned());
            }
            let mut object = object.clone();
            let status = &mut object["status"]["ipam"]["operator-status"];
            match error.is_empty() {
                true => drop(status.as_object_mut().and_then(|status| status.remove("error"))),
                false => status["error"] = error.clone().into(),
            }
            Step::UpdateStatus(object)
        };
        drop(self.writer.enqueue(target(node).part("status"), Mutation::new(decide)));
    }
}

fn target(node: &SmolStr) -> Target {
    Target::new(Kind::CiliumNode, Key::new("", node.clone()))
}
