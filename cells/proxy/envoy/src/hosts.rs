//! The addresses of identities (`cilium.NetworkPolicyHosts`), for an Envoy that does not read the kernel's map.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_api::cilium::NetworkPolicyHosts;
use hive::JobCx;
use ipcache::Entry;
use ipnetwork::IpNetwork;
use statedb::Table;
use xds::Value;

use crate::kind::Kind;
use crate::resources::{Resources, encoded};

/// The maximum number of changes between two updates of resources.
const BATCH: usize = 4096;

/// The prefixes of identities.
#[derive(Default)]
struct Hosts {
    prefixes: BTreeMap<u32, BTreeSet<IpNetwork>>,
    identities: BTreeMap<IpNetwork, u32>,
}

impl Hosts {
    /// Sets the identity of a prefix, and adds the identities that have changed to a set.
    fn set(&mut self, prefix: IpNetwork, identity: Option<u32>, changed: &mut BTreeSet<u32>) {
        let old = match identity {
            Some(identity) => self.identities.insert(prefix, identity),
            None => self.identities.remove(&prefix),
        };
        if old == identity {
            return;
        }
        if let Some(old) = old {
            changed.insert(old);
            let prefixes = self.prefixes.entry(old).or_default();
            prefixes.remove(&prefix);
            if prefixes.is_empty() {
                self.prefixes.remove(&old);
            }
        }
        if let Some(identity) = identity {
            changed.insert(identity);
            self.prefixes.entry(identity).or_default().insert(prefix);
        }
    }

    /// Returns the resource of an identity; none without prefixes.
    fn resource(&self, identity: u32) -> (Arc<str>, Option<Value>) {
        let prefixes = self.prefixes.get(&identity);
        let resource = prefixes.map(|prefixes| {
            let host_addresses = prefixes.iter().map(ToString::to_string).collect();
            encoded(&NetworkPolicyHosts { policy: identity.into(), host_addresses })
        });
        (identity.to_string().into(), resource)
    }
}

/// Follows the ipcache from the first request of a client on: stock builds of Envoy read the kernel's map.
pub(crate) async fn follow(table: Arc<Table<Entry>>, resources: Resources, cx: JobCx) -> anyhow::Result<()> {
    let mut changed = resources.subscribe();
    while !resources.has_clients(Kind::Hosts) {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            _ = changed.changed() => {}
        }
    }
    let mut hosts = Hosts::default();
    let mut changes = table.changes().named("envoy-hosts");
    loop {
        let (batch, watch) = changes.read(&table.snapshot(), BATCH);
        let mut identities = BTreeSet::new();
        for change in batch.iter() {
            let identity = (!change.deleted).then(|| change.object.identity());
            hosts.set(change.object.prefix, identity, &mut identities);
        }
        resources.update(Kind::Hosts, identities.into_iter().map(|id| hosts.resource(id)).collect());
        cx.health.ok(format_args!("{} identities", hosts.prefixes.len()));
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = watch.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use envoy_api::Message as _;

    use super::*;

    #[test]
    fn prefixes_move_between_identities() {
        let (mut hosts, mut changed) = (Hosts::default(), BTreeSet::new());
        let [a, b]: [IpNetwork; 2] = ["10.0.0.1/32", "fd00::/64"].map(|text| text.parse().unwrap());
        hosts.set(a, Some(7), &mut changed);
        hosts.set(b, Some(7), &mut changed);
        let (name, value) = hosts.resource(7);
        let message = NetworkPolicyHosts::decode(&*value.unwrap()).unwrap();
        assert_eq!((&*name, message.policy), ("7", 7));
        assert_eq!(message.host_addresses, ["10.0.0.1/32", "fd00::/64"]);
        changed.clear();
        hosts.set(a, Some(7), &mut changed);
        assert!(changed.is_empty());
        hosts.set(a, Some(8), &mut changed);
        assert_eq!(changed, BTreeSet::from([7, 8]));
        hosts.set(b, None, &mut changed);
        assert_eq!(hosts.resource(7), ("7".into(), None));
        assert!(hosts.resource(8).1.is_some());
    }
}
