//! Claims of nodes on prefixes: of two nodes that claim the same address or overlapping ranges, one has it.

use std::collections::{BTreeMap, BTreeSet};

use ipnetwork::IpNetwork;

/// The index of a node in the model.
pub(crate) type NodeIndex = u32;

/// The priority of a claim: the local node's come first, then the oldest.
pub(crate) type Rank = (bool, u64);

#[derive(Debug, Clone, Copy)]
struct Claim {
    rank: Rank,
    node: NodeIndex,
    granted: bool,
}

/// Claims on prefixes. A claim is granted unless it overlaps a granted one of another node. A granted claim is withdrawn for
/// one of the local node only: packets follow it already. Of those that wait, the one with the smallest rank is next.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    by_prefix: BTreeMap<IpNetwork, Vec<Claim>>,
    /// The number of prefixes by family and length: only these are searched for prefixes that contain another one.
    lengths: BTreeMap<(bool, u8), usize>,
}

impl Claims {
    /// Adds a claim. Returns the nodes with a claim that is newly granted or withdrawn.
    pub(crate) fn add(&mut self, prefix: IpNetwork, node: NodeIndex, rank: Rank) -> BTreeSet<NodeIndex> {
        let claims = self.by_prefix.entry(prefix).or_insert_with(|| {
            *self.lengths.entry((prefix.is_ipv4(), prefix.prefix())).or_default() += 1;
            Vec::with_capacity(1)
        });
        claims.push(Claim { rank, node, granted: false });
        self.grant(prefix)
    }

    /// Removes a claim. Returns the other nodes with claims that are newly granted.
    pub(crate) fn remove(&mut self, prefix: IpNetwork, node: NodeIndex) -> BTreeSet<NodeIndex> {
        let Some(claims) = self.by_prefix.get_mut(&prefix) else { return BTreeSet::new() };
        claims.retain(|claim| claim.node != node);
        if claims.is_empty() {
            self.by_prefix.remove(&prefix);
            let length = (prefix.is_ipv4(), prefix.prefix());
            if let Some(count) = self.lengths.get_mut(&length) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&length);
                }
            }
        }
        self.grant(prefix)
    }

    /// Whether a node claims this prefix.
    pub(crate) fn has(&self, prefix: IpNetwork) -> bool {
        self.by_prefix.contains_key(&prefix)
    }

    /// Whether the node has this prefix.
    pub(crate) fn is_granted(&self, prefix: IpNetwork, node: NodeIndex) -> bool {
        let claims = self.by_prefix.get(&prefix).into_iter();
        claims.flatten().any(|claim| claim.node == node && claim.granted)
    }

    /// Returns the node because of which this claim is withheld.
    pub(crate) fn holder(&self, prefix: IpNetwork, node: NodeIndex) -> Option<NodeIndex> {
        let overlapping = self.around(prefix).chain(self.inside(prefix));
        let claims = overlapping.filter_map(|prefix| self.by_prefix.get(&prefix)).flatten();
        claims
            .filter(|claim| claim.granted && claim.node != node)
            .min_by_key(|claim| claim.rank)
            .map(|claim| claim.node)
    }

    /// Grants the claims of all prefixes that overlap each other and this one. Returns the nodes for which that has changed.
    fn grant(&mut self, prefix: IpNetwork) -> BTreeSet<NodeIndex> {
        // Prefixes overlap only if one contains the other, so all that can depend on each other are in the widest one.
        let widest = self.around(prefix).next().unwrap_or(prefix);
        let group = self.inside(widest);
        if let [only] = group[..]
            && let Some([claim]) = self.by_prefix.get_mut(&only).map(Vec::as_mut_slice)
        {
            let changed = !std::mem::replace(&mut claim.granted, true);
            return changed.then_some(claim.node).into_iter().collect();
        }
        let mut ordered: Vec<_> = Vec::new();
        for prefix in group {
            let order = |claim: &Claim| (claim.rank.0, !claim.granted, claim.rank.1, prefix, claim.node);
            ordered.extend(self.by_prefix[&prefix].iter().map(order));
        }
        ordered.sort_unstable();
        let mut granted = Granted::default();
        let mut changed = BTreeSet::new();
        for (.., prefix, node) in ordered {
            let is_granted = granted.add(prefix, node);
            let claims = self.by_prefix.get_mut(&prefix).into_iter().flatten();
            for claim in claims.filter(|claim| claim.node == node) {
                if std::mem::replace(&mut claim.granted, is_granted) != is_granted {
                    changed.insert(node);
                }
            }
        }
        changed
    }

    /// Returns the claimed prefixes that contain this one, without itself, the widest first.
    fn around(&self, prefix: IpNetwork) -> impl Iterator<Item = IpNetwork> {
        let shorter = self.lengths.range((prefix.is_ipv4(), 0)..(prefix.is_ipv4(), prefix.prefix()));
        let around = shorter.filter_map(move |((_, length), _)| shortened(prefix, *length));
        around.filter(|around| self.by_prefix.contains_key(around))
    }

    /// Returns the claimed prefixes in this one, itself included.
    fn inside(&self, prefix: IpNetwork) -> Vec<IpNetwork> {
        // The order is by address, then length: a range begins with itself and is followed by its parts.
        let from = self.by_prefix.range(prefix..);
        from.map(|(inner, _)| *inner).take_while(|inner| contains(prefix, *inner)).collect()
    }
}

/// The granted claims of a group, while it is computed.
#[derive(Default)]
struct Granted {
    by_prefix: BTreeMap<IpNetwork, BTreeSet<NodeIndex>>,
    lengths: BTreeSet<u8>,
}

impl Granted {
    /// Adds a claim unless it overlaps one of another node.
    fn add(&mut self, prefix: IpNetwork, node: NodeIndex) -> bool {
        let is_other = |nodes: &BTreeSet<NodeIndex>| nodes.iter().any(|other| *other != node);
        let around = self
            .lengths
            .range(..=prefix.prefix())
            .filter_map(|length| self.by_prefix.get(&shortened(prefix, *length)?));
        let mut inside = self.by_prefix.range(prefix..).take_while(|(inner, _)| contains(prefix, **inner));
        if around.into_iter().any(is_other) || inside.any(|(_, nodes)| is_other(nodes)) {
            return false;
        }
        self.by_prefix.entry(prefix).or_default().insert(node);
        self.lengths.insert(prefix.prefix());
        true
    }
}

/// Returns the prefix of this length that contains the given one.
fn shortened(prefix: IpNetwork, length: u8) -> Option<IpNetwork> {
    let around = IpNetwork::new(prefix.ip(), length).ok()?;
    IpNetwork::new(around.network(), length).ok()
}

fn contains(outer: IpNetwork, inner: IpNetwork) -> bool {
    outer.is_ipv4() == inner.is_ipv4() && outer.prefix() <= inner.prefix() && outer.contains(inner.network())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_keeps_a_range_and_the_next_gets_it() {
        let mut claims = Claims::default();
        let only = |node| BTreeSet::from([node]);
        assert_eq!(claims.add(net("10.0.1.0/24"), 1, (true, 1)), only(1));
        assert!(claims.add(net("10.0.0.0/16"), 2, (true, 2)).is_empty());
        assert_eq!(claims.add(net("10.0.2.0/24"), 3, (true, 3)), only(3), "a withheld claim withholds none");
        assert_eq!(claims.holder(net("10.0.0.0/16"), 2), Some(1));
        assert!(claims.remove(net("10.0.1.0/24"), 1).is_empty(), "node 3 keeps what it has");
        assert_eq!(claims.holder(net("10.0.0.0/16"), 2), Some(3));
        assert_eq!(claims.remove(net("10.0.2.0/24"), 3), only(2));
        assert!(claims.is_granted(net("10.0.0.0/16"), 2));
        // The local node's claims come first.
        assert_eq!(claims.add(net("10.0.3.0/24"), 9, (false, 4)), BTreeSet::from([2, 9]));
        assert!(!claims.is_granted(net("10.0.0.0/16"), 2));
        assert_eq!(claims.add(net("fd00::/64"), 2, (true, 5)), only(2));
        assert_eq!(
            claims.add(net("10.0.3.0/25"), 9, (false, 6)),
            only(9),
            "overlaps of one node are no conflict"
        );
    }

    fn prefix() -> impl Strategy<Value = IpNetwork> {
        (0..8u8, 28..=32u8).prop_map(|(last, length)| {
            let prefix = IpNetwork::new([10, 0, 0, last * 2].into(), length).unwrap();
            IpNetwork::new(prefix.network(), length).unwrap()
        })
    }

    proptest! {
        /// Any order of additions and removals grants the claims of the naive rule, and reports each change.
        #[test]
        fn claims_are_granted_as_by_the_rule(steps in prop::collection::vec((any::<bool>(), prefix(), 0..4u32), 0..40)) {
            let (mut claims, mut model) = (Claims::default(), BTreeMap::new());
            type Granted = BTreeSet<(IpNetwork, u32)>;
            let naive = |model: &BTreeMap<(IpNetwork, u32), Rank>, before: &Granted| {
                let order = |(key, rank): (&(IpNetwork, u32), &Rank)| ((rank.0, !before.contains(key), rank.1), *key);
                let mut ordered: Vec<_> = model.iter().map(order).collect();
                ordered.sort();
                let mut granted = Granted::new();
                for (_, (prefix, node)) in ordered {
                    let overlaps = |(other, owner): &(IpNetwork, u32)| {
                        *owner != node && (contains(prefix, *other) || contains(*other, prefix))
                    };
                    if !granted.iter().any(overlaps) {
                        granted.insert((prefix, node));
                    }
                }
                granted
            };
            let mut after = Granted::new();
            for (seq, (add, prefix, node)) in steps.into_iter().enumerate() {
                let changed = match (add, model.contains_key(&(prefix, node))) {
                    (true, false) => {
                        model.insert((prefix, node), (node != 0, seq as u64));
                        claims.add(prefix, node, (node != 0, seq as u64))
                    }
                    (false, true) => {
                        model.remove(&(prefix, node));
                        claims.remove(prefix, node)
                    }
                    _ => continue,
                };
                let before = std::mem::take(&mut after);
                after = naive(&model, &before);
                for (prefix, node) in model.keys() {
                    prop_assert_eq!(claims.is_granted(*prefix, *node), after.contains(&(*prefix, *node)));
                    prop_assert_eq!(claims.holder(*prefix, *node).is_some(), !after.contains(&(*prefix, *node)));
                }
                for (_, other) in before.symmetric_difference(&after).filter(|(_, other)| *other != node) {
                    prop_assert!(changed.contains(other));
                }
            }
            prop_assert_eq!(claims.lengths.values().sum::<usize>(), claims.by_prefix.len());
        }
    }
}
