//! Names of addresses, identities, services and interfaces, from the tables of their cells.

use std::net::IpAddr;
use std::sync::Arc;

use devices::Device;
use endpoints::{Endpoint, EndpointId};
use fqdn_names::DnsNames;
use hubble_api::flow::{Service, Workload};
use identity::{Identity, Scope};
use ipcache::Entry;
use ipnetwork::IpNetwork;
use k8s_tables::Row;
use k8s_tables::core::Pod;
use loadbalancer::{Frontend, LbAddress, Protocol};
use policy::{EndpointPolicy, PolicyLog};
use statedb::{Snapshot, Table};

use crate::cgroups::{Addresses, Cgroups};
use crate::policies::{self, Deciding, Packet};
use crate::workload::workload;

/// The label of an identity with the name of its cluster.
const CLUSTER_LABEL: &str = "k8s:io.cilium.k8s.policy.cluster=";

/// An endpoint of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) id: u16,
    pub(crate) identity: u32,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) labels: Vec<String>,
    pub(crate) workloads: Vec<Workload>,
}

/// The ipcache's knowledge of an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) identity: u32,
    /// Namespace and name of the pod.
    pub(crate) pod: Option<(String, String)>,
}

/// Answers the questions of the parser.
pub(crate) trait Names {
    /// Returns the local endpoint with an address.
    fn endpoint(&self, address: IpAddr) -> Option<Local>;
    /// Returns the local endpoint with an id.
    fn local(&self, id: u16) -> Option<Local>;
    /// Returns the mapping of the longest prefix that contains an address.
    fn address(&self, address: IpAddr) -> Option<Remote>;
    /// Returns the mapping of an address itself.
    fn host(&self, address: IpAddr) -> Option<Remote>;
    /// Returns the labels of an identity, sorted.
    fn labels(&self, identity: u32) -> Vec<String>;
    /// Returns the service of a frontend.
    fn service(&self, address: IpAddr, port: u16) -> Option<Service>;
    /// Returns the DNS names by which a local endpoint has looked up an address.
    fn dns_names(&self, endpoint: u16, address: IpAddr) -> Vec<String>;
    /// Returns the addresses of the pod with a cgroup; `None` if events of unknown cgroups are skipped, and this is one.
    fn cgroup(&self, id: u64) -> Option<Addresses>;
    /// Returns the name of a network interface.
    fn link(&self, index: u32) -> Option<String>;
    /// Returns the rules that decide on a packet by the policy of an endpoint.
    fn deciding(&self, packet: &Packet) -> Option<Deciding>;
    /// Returns the texts of policies that a verdict event names; none if they are unknown.
    fn policy_texts(&self, cookie: u32) -> Vec<String>;
}

/// The tables.
pub(crate) struct Tables {
    pub(crate) endpoints: Table<Endpoint>,
    pub(crate) ipcache: Table<Entry>,
    pub(crate) identities: Table<Identity>,
    pub(crate) frontends: Table<Frontend>,
    pub(crate) devices: Table<Device>,
    pub(crate) pods: Option<Table<Row<Pod>>>,
    pub(crate) dns: Option<Arc<DnsNames>>,
    /// `None` if flows do not name the rules of policies.
    pub(crate) policies: Option<Table<EndpointPolicy>>,
    /// The texts of verdict events, under the same condition.
    pub(crate) policy_logs: Option<Table<PolicyLog>>,
}

/// The tables at one moment.
pub(crate) struct At<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) snapshot: Snapshot,
    pub(crate) cgroups: &'a Cgroups,
}

impl Names for At<'_> {
    fn endpoint(&self, address: IpAddr) -> Option<Local> {
        Some(self.describe(self.tables.endpoints.get(&self.snapshot, Endpoint::by_address(address))?))
    }

    fn local(&self, id: u16) -> Option<Local> {
        Some(self.describe(self.tables.endpoints.get(&self.snapshot, Endpoint::by_id(EndpointId(id)))?))
    }

    fn address(&self, address: IpAddr) -> Option<Remote> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        (0..=longest).rev().find_map(|length| self.mapping(address, length))
    }

    fn host(&self, address: IpAddr) -> Option<Remote> {
        self.mapping(address, if address.is_ipv4() { 32 } else { 128 })
    }

    fn labels(&self, identity: u32) -> Vec<String> {
        match self.tables.identities.get(&self.snapshot, Identity::by_id(identity)) {
            Some(row) => identity_labels(identity, row.labels.texts()),
            None => datapath_abi::identity::label(identity)
                .map(|name| labels::Label::reserved(name).to_string())
                .into_iter()
                .collect(),
        }
    }

    fn service(&self, address: IpAddr, port: u16) -> Option<Service> {
        let find = |protocol| {
            let address = LbAddress::new(address, port, protocol);
            self.tables.frontends.get(&self.snapshot, Frontend::by_address(&address))
        };
        let frontend = find(Protocol::Tcp).or_else(|| find(Protocol::Udp))?;
        let name = &frontend.service.name;
        Some(Service { name: name.name().to_owned(), namespace: name.namespace().to_owned() })
    }

    fn dns_names(&self, endpoint: u16, address: IpAddr) -> Vec<String> {
        self.tables.dns.as_ref().map(|names| names.of(endpoint, address)).unwrap_or_default()
    }

    fn cgroup(&self, id: u64) -> Option<Addresses> {
        self.cgroups.addresses(id)
    }

    fn link(&self, index: u32) -> Option<String> {
        Some(self.tables.devices.get(&self.snapshot, Device::by_index(index))?.name.clone())
    }

    fn deciding(&self, packet: &Packet) -> Option<Deciding> {
        policies::deciding(self.tables.policies.as_ref()?, &self.snapshot, packet)
    }

    fn policy_texts(&self, cookie: u32) -> Vec<String> {
        let logs = self.tables.policy_logs.as_ref().filter(|_| cookie != 0);
        let row = logs.and_then(|logs| logs.get(&self.snapshot, PolicyLog::by_cookie(cookie)));
        row.map_or_else(Vec::new, |row| row.texts.iter().map(ToString::to_string).collect())
    }
}

impl At<'_> {
    /// Returns the mapping of the prefix of this length around an address.
    fn mapping(&self, address: IpAddr, length: u8) -> Option<Remote> {
        let prefix = IpNetwork::new(address, length).ok()?;
        let mapping = self.tables.ipcache.get(&self.snapshot, Entry::by_prefix(prefix))?.mapping();
        let pod = mapping.pod().map(|pod| (pod.namespace.to_string(), pod.name.to_string()));
        Some(Remote { identity: mapping.identity, pod })
    }

    fn describe(&self, row: &Endpoint) -> Local {
        let record = &row.record;
        let labels = record.sec_label.as_ref().map(|label| sorted(label.labels.texts())).unwrap_or_default();
        let (namespace, pod) = (&record.k8s_namespace, &record.k8s_pod_name);
        let object = self.tables.pods.as_ref().filter(|_| !pod.is_empty());
        let object = object.and_then(|pods| pods.get(&self.snapshot, Row::by_name(namespace, pod)));
        Local {
            id: record.id,
            identity: record.identity(),
            namespace: namespace.clone(),
            pod: pod.clone(),
            labels,
            workloads: object.and_then(|pod| workload(&pod.object)).into_iter().collect(),
        }
    }
}

fn sorted(mut labels: Vec<String>) -> Vec<String> {
    labels.sort_unstable();
    labels
}

/// Returns the labels of an identity, sorted; of several prefixes only the longest one.
fn identity_labels(identity: u32, labels: Vec<String>) -> Vec<String> {
    let mut labels = sorted(labels);
    if Scope::of(identity) == Scope::Local {
        let length = |label: &str| {
            let length = label.strip_prefix("cidr:")?.rsplit_once('/')?.1;
            length.parse::<u8>().ok()
        };
        let longest = labels.iter().filter_map(|label| length(label)).max();
        labels.retain(|label| !label.starts_with("cidr:") || length(label) == longest);
    }
    labels
}

/// Returns the name of the cluster by the labels of an identity; empty if they have none.
pub(crate) fn cluster(labels: &[String]) -> String {
    labels.iter().find_map(|label| label.strip_prefix(CLUSTER_LABEL)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_longest_prefix_of_an_identity_is_named() {
        let labels = ["reserved:world", "cidr:10.0.0.0/8", "cidr:10.1.0.0/16", "cidr:0.0.0.0/0"];
        let labels = || labels.map(str::to_owned).to_vec();
        assert_eq!(identity_labels(1 << 24 | 5, labels()), ["cidr:10.1.0.0/16", "reserved:world"]);
        assert_eq!(identity_labels(300, labels()).len(), 4);
    }
}
