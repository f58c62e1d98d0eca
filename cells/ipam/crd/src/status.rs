//! The agent's part of the status of a CiliumNode: addresses in use, and the handshake of their release.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_types::SmolStr;
use k8s_types::cilium::{AllocationIp, CiliumNode};
use serde_json::{Map, Value, json};

use crate::node_pool::{Field, MARKED, NodePool, address};

/// The agent's consent: nothing uses the address any more.
const READY: &str = "ready-for-release";
/// The agent's refusal.
const REFUSED: &str = "do-not-release";
/// The operator has taken the address from the node.
const RELEASED: &str = "released";

/// The addresses of this node as far as the status depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Those in use with their owners.
    pub(crate) owners: BTreeMap<IpAddr, Arc<str>>,
    /// Those that are being released, are not in use, and can not be from now on.
    pub(crate) vacant: BTreeSet<IpAddr>,
}

/// The fields that this agent writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Status {
    used: BTreeMap<(Field, SmolStr), AllocationIp>,
    releases: BTreeMap<(Field, SmolStr), SmolStr>,
}

impl Status {
    /// Returns the fields of an object.
    pub(crate) fn of(object: &CiliumNode) -> Status {
        let status = &object.status.ipam;
        let used = [(Field::Ipv4, &status.used), (Field::Ipv6, &status.ipv6_used)];
        let releases = [(Field::Ipv4, &status.release_ips), (Field::Ipv6, &status.release_ipv6s)];
        Status {
            used: used
                .into_iter()
                .flat_map(|(field, map)| {
                    map.iter().map(move |(key, object)| ((field, key.clone()), object.clone()))
                })
                .collect(),
            releases: releases
                .into_iter()
                .flat_map(|(field, map)| {
                    map.iter().map(move |(key, state)| ((field, key.clone()), state.clone()))
                })
                .collect(),
        }
    }

    /// Returns the fields as they should be.
    pub(crate) fn desired(object: &CiliumNode, usage: &Usage) -> Status {
        let (pool, present) = (NodePool::read(object), Status::of(object));
        let mut desired = Status::default();
        for (address, owner) in &usage.owners {
            let (field, key, resource) = match pool.get(*address) {
                Some(entry) => (entry.field, entry.key.clone(), entry.object.resource.clone()),
                None => present.lost(*address),
            };
            let object = AllocationIp { owner: SmolStr::from(&**owner), resource };
            desired.used.insert((field, key), object);
        }
        for (key, state) in present.releases {
            if let Some(state) = answer(&key.1, state, &pool, usage) {
                desired.releases.insert(key, state);
            }
        }
        desired
    }

    /// Returns the field, key and resource of an address that is not listed any more: those of before.
    fn lost(&self, lost: IpAddr) -> (Field, SmolStr, SmolStr) {
        let before = self.used.iter().find(|((_, key), _)| address(key) == Some(lost));
        match before {
            Some(((field, key), object)) => (*field, key.clone(), object.resource.clone()),
            None => (Field::of(lost), lost.to_string().into(), SmolStr::default()),
        }
    }

    /// Writes the fields into an object.
    pub(crate) fn write(&self, object: &mut Value) {
        if !object["status"].is_object() {
            object["status"] = json!({});
        }
        if !object["status"]["ipam"].is_object() {
            object["status"]["ipam"] = json!({});
        }
        let Some(ipam) = object.pointer_mut("/status/ipam").and_then(Value::as_object_mut) else { return };
        for field in Field::ALL {
            let (used, releases) = match field {
                Field::Ipv4 => ("used", "release-ips"),
                Field::Ipv6 => ("ipv6-used", "release-ipv6s"),
            };
            replace(ipam, used, field, &self.used);
            replace(ipam, releases, field, &self.releases);
        }
    }
}

/// Replaces a map of the object; an empty one is left out.
fn replace<T: serde::Serialize>(
    ipam: &mut Map<String, Value>,
    name: &str,
    field: Field,
    map: &BTreeMap<(Field, SmolStr), T>,
) {
    let of_field = map.iter().filter(|((of, _), _)| *of == field);
    let members: Map<String, Value> =
        of_field.map(|((_, key), value)| (key.to_string(), json!(value))).collect();
    match members.is_empty() {
        true => drop(ipam.remove(name)),
        false => drop(ipam.insert(name.into(), Value::Object(members))),
    }
}

/// Returns the next state of an address in the handshake; none if it has ended.
///
/// The operator marks an address, the agent consents or refuses, the operator removes it from the pool and writes `released`, the
/// agent removes the entry. A refusal is removed by the operator.
fn answer(key: &str, state: SmolStr, pool: &NodePool, usage: &Usage) -> Option<SmolStr> {
    let address = address(key);
    let is_listed = address.is_some_and(|address| pool.get(address).is_some());
    let is_used = address.is_some_and(|address| usage.owners.contains_key(&address));
    let is_vacant = address.is_some_and(|address| usage.vacant.contains(&address));
    match state.as_str() {
        MARKED if !is_listed || is_used => Some(REFUSED.into()),
        MARKED if is_vacant => Some(READY.into()),
        READY if is_listed && is_used => Some(REFUSED.into()),
        RELEASED if !is_listed => None,
        _ => Some(state),
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
