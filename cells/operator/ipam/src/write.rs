//! Writes of the operator's fields into CiliumNodes.

use std::sync::Arc;

use k8s_types::{Key, Kind, SmolStr};
use k8s_writer::{Mutation, Step, Target, Writer};
use operator_election::Leadership;
use serde_json::{Value, json};

use crate::multi_pool::normalized;

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

    /// Replaces `spec.ipam.pools.allocated` of the object with this uid, if it is still the one that the decision was made on.
    pub(crate) fn allocated(&self, node: &SmolStr, uid: &SmolStr, basis: &Value, desired: Value) {
        let (uid, basis) = (uid.clone(), normalized(basis));
        let leadership = self.leadership.clone();
        let decide = move |present: Option<&Value>| {
            let Some(object) = present.filter(|object| object["metadata"]["uid"] == uid.as_str()) else {
                return Step::Done;
            };
            let found = normalized(&object["spec"]["ipam"]["pools"]["allocated"]);
            if found == normalized(&desired) || found != basis {
                return Step::Done;
            }
            if !leadership.holds() {
                return Step::GiveUp("this process does not lead any more".to_owned());
            }
            let mut object = object.clone();
            object["spec"]["ipam"]["pools"]["allocated"] = desired.clone();
            Step::Update(object)
        };
        drop(self.writer.enqueue(target(node).part("pools"), Mutation::new(decide)));
    }

    /// Creates a pool, unless there is one of its name.
    pub(crate) fn pool(&self, name: &str, object: Value) {
        let leadership = self.leadership.clone();
        let decide = move |present: Option<&Value>| match present {
            Some(_) => Step::Done,
            None if !leadership.holds() => Step::GiveUp("this process does not lead any more".to_owned()),
            None => Step::Create(object.clone()),
        };
        let target = Target::new(Kind::CiliumPodIPPool, Key::new("", name));
        drop(self.writer.enqueue(target, Mutation::new(decide)));
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
