//! Which CIDRs nodes have, as a pure function of the objects and their order.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;
use k8s_types::SmolStr;

use crate::Error;
use crate::cidr_set::{CidrSets, canonical};
use crate::config::OperatorIpamConfig;

/// The CIDRs of the cluster and the nodes that have them.
#[derive(Debug)]
pub(crate) struct ClusterPool {
    /// Of IPv4 and IPv6, those that are enabled.
    families: [Option<CidrSets>; 2],
    /// CIDRs of nodes by the name of the node.
    held: BTreeMap<SmolStr, Vec<IpNetwork>>,
}

/// A CiliumNode, as far as the pool needs it.
#[derive(Clone, Debug)]
pub(crate) struct Node<'n> {
    pub(crate) name: &'n SmolStr,
    /// `spec.ipam.podCIDRs`.
    pub(crate) pod_cidrs: &'n [SmolStr],
}

/// The desired fields of a CiliumNode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Desired {
    /// `spec.ipam.podCIDRs`; none to leave them as they are.
    pub(crate) pod_cidrs: Option<Vec<String>>,
    /// `status.ipam.operator-status.error`.
    pub(crate) error: String,
}

/// The index of a CIDR's family.
fn family(cidr: IpNetwork) -> usize {
    usize::from(cidr.is_ipv6())
}

impl ClusterPool {
    /// The pool of the options.
    pub(crate) fn new(config: &OperatorIpamConfig) -> Result<ClusterPool, Error> {
        let ipv4 = sets(
            ["cluster-pool-ipv4-cidr", "cluster-pool-ipv4-mask-size", "enable-ipv4"],
            config.enable_ipv4,
            &config.cluster_pool_ipv4_cidr,
            config.cluster_pool_ipv4_mask_size,
            ("IPv4", "10.0.0.0/8", IpNetwork::is_ipv4),
        )?;
        let ipv6 = sets(
            ["cluster-pool-ipv6-cidr", "cluster-pool-ipv6-mask-size", "enable-ipv6"],
            config.enable_ipv6,
            &config.cluster_pool_ipv6_cidr,
            config.cluster_pool_ipv6_mask_size,
            ("IPv6", "fd00::/104", IpNetwork::is_ipv6),
        )?;
        Ok(ClusterPool { families: [ipv4, ipv6], held: BTreeMap::new() })
    }

    /// Returns the desired fields of a node, and takes for it what they name. Calling it again with the outcome changes nothing.
    pub(crate) fn sync(&mut self, node: &Node<'_>) -> Desired {
        let mut requested = Vec::new();
        for text in node.pod_cidrs {
            match text.parse() {
                Ok(cidr) => requested.push(canonical(cidr)),
                Err(_) => {
                    let error = format!("unable to parse CIDR {text} of spec.ipam.podCIDRs: remove it");
                    return Desired { pod_cidrs: None, error };
                }
            }
        }
        let held = self.held.remove(node.name).unwrap_or_default();
        let (mut now_held, mut desired, mut errors) = (held.clone(), Vec::new(), Vec::new());
        for at in 0..self.families.len() {
            let of_family = |cidrs: &[IpNetwork]| -> Vec<IpNetwork> {
                cidrs.iter().copied().filter(|cidr| family(*cidr) == at).collect()
            };
            let (held, requested) = (of_family(&held), of_family(&requested));
            let Some(sets) = &mut self.families[at] else {
                // Of a family that is off: nothing is known about it, nothing is taken away.
                errors.extend(requested.iter().map(|cidr| not_configured(*cidr)));
                desired.extend(requested);
                continue;
            };
            if requested.is_empty() {
                if !held.is_empty() {
                    desired.extend(held);
                } else if let Some(cidr) = sets.allocate() {
                    now_held.push(cidr);
                    desired.push(cidr);
                } else {
                    errors.push("allocator full".to_owned());
                }
                continue;
            }
            let mut is_taken = false;
            for &cidr in requested.iter().filter(|cidr| !held.contains(cidr)) {
                match sets.of(cidr) {
                    None => errors.push(not_configured(cidr)),
                    Some(set) if set.is_free(cidr) => {
                        set.occupy(cidr);
                        now_held.push(cidr);
                    }
                    Some(_) => {
                        is_taken = true;
                        errors.push(format!("requested CIDR ({cidr}) is already allocated"));
                    }
                }
            }
            let is_changed = !held.is_empty()
                && (held.len() != requested.len() || !held.iter().all(|cidr| requested.contains(cidr)));
            if is_taken {
                // What the node had before, if anything: it never gets what another node has.
                desired.extend(held);
            } else {
                if is_changed {
                    errors.push(format!(
                        "node has CIDRs allocated ({}) that conflict with requested CIDRs ({})",
                        texts(&held).join(", "),
                        texts(&requested).join(", ")
                    ));
                }
                desired.extend(requested);
            }
        }
        if !now_held.is_empty() {
            self.held.insert(node.name.clone(), now_held);
        }
        let is_same = desired.len() == requested.len() && requested.iter().all(|cidr| desired.contains(cidr));
        Desired { pod_cidrs: (!is_same).then(|| texts(&desired)), error: errors.join("; ") }
    }

    /// Frees the CIDRs of a node that is gone; returns whether there were any.
    pub(crate) fn remove(&mut self, node: &str) -> bool {
        let Some(held) = self.held.remove(node) else { return false };
        for cidr in held {
            if let Some(set) = self.families[family(cidr)].as_mut().and_then(|sets| sets.of(cidr)) {
                set.release(cidr);
            }
        }
        true
    }

    /// Describes the pool: how many nodes have CIDRs, and how many CIDRs of each family are free.
    pub(crate) fn summary(&self) -> String {
        let mut text = format!("{} nodes have CIDRs", self.held.len());
        for (name, sets) in ["IPv4", "IPv6"].iter().zip(&self.families) {
            if let Some(sets) = sets {
                let (all, used) = sets.counts();
                text += &format!(", {} of {all} {name} CIDRs are free", all - used);
            }
        }
        text
    }

    /// The ranges of the pool.
    pub(crate) fn ranges(&self) -> Vec<IpNetwork> {
        self.families.iter().flatten().flat_map(CidrSets::ranges).collect()
    }
}

fn not_configured(cidr: IpNetwork) -> String {
    format!("allocator not configured for the requested CIDR {cidr}")
}

fn texts(cidrs: &[IpNetwork]) -> Vec<String> {
    cidrs.iter().map(ToString::to_string).collect()
}

type FamilyFacts = (&'static str, &'static str, fn(&IpNetwork) -> bool);

/// Returns the sets of a family if it is enabled.
fn sets(
    [option, mask_option, switch]: [&'static str; 3],
    is_enabled: bool,
    ranges: &[String],
    mask: u8,
    (family, example, is_of_family): FamilyFacts,
) -> Result<Option<CidrSets>, Error> {
    let ranges: Vec<&str> =
        ranges.iter().map(|range| range.trim()).filter(|range| !range.is_empty()).collect();
    match (is_enabled, ranges.is_empty()) {
        (false, true) => return Ok(None),
        (false, false) => return Err(Error::Disabled { option, value: ranges.join(","), switch }),
        (true, true) => return Err(Error::Empty { option, switch }),
        (true, false) => {}
    }
    let parse = |range: &str| {
        let wrong = || Error::Cidr { option: option.to_owned(), value: range.to_owned(), family, example };
        range.parse::<IpNetwork>().ok().filter(is_of_family).map(canonical).ok_or_else(wrong)
    };
    let ranges: Vec<IpNetwork> = ranges.into_iter().map(parse).collect::<Result<_, _>>()?;
    CidrSets::new(&ranges, mask, option).map(Some).map_err(|error| match error {
        Error::MaskSize { mask, cidr, least, most, .. } => {
            Error::MaskSize { option: mask_option.to_owned(), mask, cidr, least, most }
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn config(ipv4: &[&str], mask: u8, ipv6: &[&str]) -> OperatorIpamConfig {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        OperatorIpamConfig {
            ipam: crate::IpamMode::ClusterPool,
            enable_ipv4: !ipv4.is_empty(),
            enable_ipv6: !ipv6.is_empty(),
            cluster_pool_ipv4_cidr: owned(ipv4),
            cluster_pool_ipv4_mask_size: mask,
            cluster_pool_ipv6_cidr: owned(ipv6),
            cluster_pool_ipv6_mask_size: 120,
            auto_create_cilium_pod_ip_pools: BTreeMap::new(),
        }
    }

    fn sync(pool: &mut ClusterPool, name: &str, cidrs: &[&str]) -> (Option<Vec<String>>, String) {
        let cidrs: Vec<SmolStr> = cidrs.iter().map(SmolStr::new).collect();
        let desired = pool.sync(&Node { name: &name.into(), pod_cidrs: &cidrs });
        (desired.pod_cidrs, desired.error)
    }

    fn gets(cidrs: &[&str]) -> (Option<Vec<String>>, String) {
        (Some(cidrs.iter().map(|cidr| (*cidr).to_owned()).collect()), String::new())
    }

    const NOTHING: (Option<Vec<String>>, String) = (None, String::new());

    #[test]
    fn nodes_get_a_cidr_of_each_family() {
        let mut pool =
            ClusterPool::new(&config(&["10.0.0.0/23", "10.9.0.0/24"], 24, &["fd00::/104"])).unwrap();
        assert_eq!(sync(&mut pool, "a", &[]), gets(&["10.0.0.0/24", "fd00::/120"]));
        assert_eq!(
            sync(&mut pool, "a", &[]),
            gets(&["10.0.0.0/24", "fd00::/120"]),
            "the same until they are written"
        );
        assert_eq!(sync(&mut pool, "a", &["10.0.0.0/24", "fd00::/120"]), NOTHING);
        assert_eq!(sync(&mut pool, "b", &["fd00::100/120"]), gets(&["10.0.1.0/24", "fd00::100/120"]));
        assert_eq!(sync(&mut pool, "c", &[]), gets(&["10.9.0.0/24", "fd00::200/120"]), "the next range");
        let full = (Some(vec!["fd00::300/120".to_owned()]), "allocator full".to_owned());
        assert_eq!(sync(&mut pool, "d", &[]), full, "the other family is there");
        assert!(pool.remove("b") && !pool.remove("b"));
        assert_eq!(sync(&mut pool, "d", &["fd00::300/120"]), gets(&["10.0.1.0/24", "fd00::300/120"]));
        assert!(
            pool.summary().starts_with("3 nodes have CIDRs, 0 of 3 IPv4 CIDRs are free, "),
            "{}",
            pool.summary()
        );
    }

    #[test]
    fn what_a_node_names_is_its_own_unless_it_is_anothers() {
        let mut pool = ClusterPool::new(&config(&["10.0.0.0/16"], 24, &[])).unwrap();
        // Several, of other sizes.
        assert_eq!(sync(&mut pool, "a", &["10.0.8.0/22", "10.0.0.0/25"]), NOTHING);
        assert_eq!(sync(&mut pool, "b", &[]), gets(&["10.0.1.0/24"]));
        let taken = |cidr: &str| format!("requested CIDR ({cidr}) is already allocated");
        assert_eq!(sync(&mut pool, "c", &["10.0.9.0/24"]), (Some(vec![]), taken("10.0.9.0/24")));
        assert_eq!(
            sync(&mut pool, "c", &[]),
            gets(&["10.0.2.0/24"]),
            "once it is stripped it gets another one"
        );
        let outside = "allocator not configured for the requested CIDR 10.1.0.0/24".to_owned();
        assert_eq!(sync(&mut pool, "d", &["10.1.0.0/24"]), (None, outside), "pods may use it");
        let ipv6 = "allocator not configured for the requested CIDR fd00::/120".to_owned();
        assert_eq!(sync(&mut pool, "b", &["10.0.1.0/24", "fd00::/120"]), (None, ipv6));
        assert_eq!(sync(&mut pool, "e", &["10.0.0"]).0, None);
        assert!(sync(&mut pool, "e", &["10.0.0"]).1.contains("unable to parse CIDR 10.0.0"));

        // A node that names others than it has.
        let changed =
            "node has CIDRs allocated (10.0.1.0/24) that conflict with requested CIDRs (10.0.50.0/24)";
        assert_eq!(sync(&mut pool, "b", &["10.0.50.0/24"]), (None, changed.to_owned()));
        assert_eq!(sync(&mut pool, "f", &["10.0.50.0/24"]).1, taken("10.0.50.0/24"), "it is nobody else's");
        assert_eq!(sync(&mut pool, "b", &["10.0.2.0/24"]).0.unwrap(), ["10.0.1.0/24", "10.0.50.0/24"]);
    }

    #[test]
    fn options_that_cannot_be_met_are_refused() {
        let error = |config: &OperatorIpamConfig| ClusterPool::new(config).unwrap_err().to_string();
        let good = config(&["10.0.0.0/16"], 24, &[]);
        assert!(
            error(&OperatorIpamConfig { enable_ipv6: true, ..good.clone() })
                .contains("cluster-pool-ipv6-cidr is empty")
        );
        assert!(
            error(&OperatorIpamConfig { enable_ipv4: false, ..good.clone() }).contains("enable-ipv4=false")
        );
        assert!(
            error(&config(&["10.0.0.0/16"], 8, &[])).starts_with("cluster-pool-ipv4-mask-size: mask size 8")
        );
        assert!(error(&config(&["10.0.0.0/16", "10.0.0.0/24"], 24, &[])).contains("overlap"));
        assert!(error(&config(&["fd00::/104"], 24, &[])).contains("give a CIDR of IPv4"));
        assert!(
            error(&config(&["10.0.0.0/16"], 24, &["fd00::/64"])).starts_with("cluster-pool-ipv6-mask-size")
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// The object of a node appears or changes, with its fields as last written.
        Sync(u8),
        /// Something else writes a CIDR into the object.
        Claim(u8, u8),
        Delete(u8),
        /// Another operator begins.
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..12u8).prop_map(Step::Sync),
            2 => (0..12u8, 0..8u8).prop_map(|(node, cidr)| Step::Claim(node, cidr)),
            2 => (0..12u8).prop_map(Step::Delete),
            1 => Just(Step::Restart),
        ]
    }

    proptest! {
        /// In any order of events, no address is written for two nodes, and in the end each node has a CIDR or an error.
        #[test]
        fn no_address_is_given_twice(steps in prop::collection::vec(step(), 1..80)) {
            let options = config(&["10.0.0.0/22", "10.5.0.0/22"], 24, &[]);
            let mut pool = ClusterPool::new(&options).unwrap();
            let mut objects: BTreeMap<u8, Vec<SmolStr>> = BTreeMap::new();
            let write = |pool: &mut ClusterPool, objects: &mut BTreeMap<u8, Vec<SmolStr>>, node: u8| {
                let name = SmolStr::from(format!("n{node}"));
                loop {
                    let object = objects.entry(node).or_default();
                    let desired = pool.sync(&Node { name: &name, pod_cidrs: object });
                    match desired.pod_cidrs {
                        Some(cidrs) if cidrs != *object => *object = cidrs.into_iter().map(SmolStr::from).collect(),
                        _ => return desired.error,
                    }
                }
            };
            for step in steps {
                match step {
                    Step::Sync(node) => {
                        let error = write(&mut pool, &mut objects, node);
                        prop_assert!(!objects[&node].is_empty() || error == "allocator full", "{node}: {error}");
                    }
                    Step::Claim(node, cidr) => {
                        objects.insert(node, vec![format!("10.{}.{}.0/24", if cidr < 4 { 0 } else { 5 }, cidr % 4).into()]);
                        write(&mut pool, &mut objects, node);
                    }
                    Step::Delete(node) => {
                        objects.remove(&node);
                        pool.remove(&format!("n{node}"));
                    }
                    Step::Restart => {
                        pool = ClusterPool::new(&options).unwrap();
                        // As the job does it: those with CIDRs first.
                        let mut nodes: Vec<u8> = objects.keys().copied().collect();
                        nodes.sort_by_key(|node| objects[node].is_empty());
                        for node in nodes {
                            let before = objects[&node].clone();
                            write(&mut pool, &mut objects, node);
                            prop_assert!(before.is_empty() || objects[&node] == before, "a restart keeps CIDRs");
                        }
                    }
                }
                let all: Vec<&SmolStr> = objects.values().flatten().collect();
                let distinct: BTreeSet<&SmolStr> = all.iter().copied().collect();
                prop_assert_eq!(all.len(), distinct.len(), "{:?}", objects);
            }
        }
    }
}
