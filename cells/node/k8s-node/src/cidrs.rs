//! Pod ranges of the cluster's objects, as pure functions.

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use k8s_types::StringMap;
use k8s_types::cilium::CiliumNode;
use k8s_types::core::Node;

use crate::annotate::{self, PodCidrAnnotations};
use crate::config::Settings;

/// Kubernetes assigns one range a family.
const MAX_NODE_CIDRS: usize = 2;

/// The ranges of an object, and fields of it that are invalid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cidrs {
    pub(crate) ipv4: Vec<Ipv4Network>,
    pub(crate) ipv6: Vec<Ipv6Network>,
    pub(crate) problems: Vec<String>,
}

impl Cidrs {
    /// Reads the ranges from the object that the IPAM mode names.
    pub(crate) fn read(settings: &Settings, node: Option<&Node>, cilium_node: Option<&CiliumNode>) -> Cidrs {
        let mut cidrs = Cidrs::default();
        if settings.reads_cilium_node() {
            if let Some(object) = cilium_node {
                cidrs.add_all("CiliumNode", "spec.ipam.podCIDRs", &object.spec.ipam.pod_cidrs);
            }
        } else if let Some(object) = node {
            cidrs.add_node(object, settings.annotations);
        }
        cidrs
    }

    fn add_node(&mut self, node: &Node, annotations: bool) {
        let spec = &node.spec;
        if spec.pod_cidrs.len() > MAX_NODE_CIDRS {
            let count = spec.pod_cidrs.len();
            self.problems
                .push(format!("Node: spec.podCIDRs has {count} ranges, of which each family has one"));
        }
        if !spec.pod_cidrs.is_empty() {
            self.add_all("Node", "spec.podCIDRs", &spec.pod_cidrs);
        } else if !spec.pod_cidr.is_empty() {
            self.add_all("Node", "spec.podCIDR", std::slice::from_ref(&spec.pod_cidr));
        } else if annotations {
            self.add_annotations(&node.metadata.annotations);
        }
    }

    fn add_annotations(&mut self, annotations: &StringMap) {
        for key in [PodCidrAnnotations::IPV4, PodCidrAnnotations::IPV6] {
            if let Some(text) = annotate::value(annotations, key) {
                self.add_all("Node", key, std::slice::from_ref(text));
            }
        }
    }

    /// Adds ranges of a field. One that is no CIDR or overlaps an earlier one is a problem and is left out.
    fn add_all(&mut self, kind: &str, field: &str, texts: &[impl AsRef<str>]) {
        for text in texts.iter().map(AsRef::as_ref) {
            let Some(cidr) = parse(text) else {
                self.problems
                    .push(format!("{kind}: {field}: '{text}' is no CIDR, as 10.0.1.0/24; it is ignored"));
                continue;
            };
            let earlier: Vec<IpNetwork> = self.all().collect();
            if earlier.contains(&cidr) {
                continue;
            }
            if let Some(other) = earlier.into_iter().find(|other| overlap(*other, cidr)) {
                self.problems.push(format!("{kind}: {field}: {cidr} overlaps {other}; it is ignored"));
                continue;
            }
            match cidr {
                IpNetwork::V4(cidr) => self.ipv4.push(cidr),
                IpNetwork::V6(cidr) => self.ipv6.push(cidr),
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = IpNetwork> {
        self.ipv4.iter().copied().map(IpNetwork::V4).chain(self.ipv6.iter().copied().map(IpNetwork::V6))
    }
}

/// Parses a CIDR with its length; host bits are cleared.
fn parse(text: &str) -> Option<IpNetwork> {
    text.contains('/').then_some(())?;
    let cidr: IpNetwork = text.trim().parse().ok()?;
    IpNetwork::new(cidr.network(), cidr.prefix()).ok()
}

fn overlap(a: IpNetwork, b: IpNetwork) -> bool {
    a.contains(b.network()) || b.contains(a.network())
}
