//! Pools.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_types::SmolStr;
use k8s_types::cilium::LoadBalancerIpPoolSpec;
use k8s_types::selector::LabelRequirements;

use crate::range::{AddressRange, Family, number};
use crate::request::Request;

/// A pool of addresses.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    /// The time of creation, in seconds (of two pools that overlap the younger one is in conflict), and the specification.
    pub(crate) definition: (i64, LoadBalancerIpPoolSpec),
    /// The ranges of its blocks.
    blocks: Vec<AddressRange>,
    /// The addresses that may be given, as disjoint ranges in order.
    usable: Vec<UsableRange>,
    /// The selected services; none if the selector is wrong.
    selector: Option<LabelRequirements>,
    /// The reason why it is in conflict; empty if it is not.
    pub(crate) conflict: String,
    /// The errors of its object.
    pub(crate) problems: Vec<String>,
}

/// A range of a pool.
#[derive(Clone, Copy, Debug)]
struct UsableRange {
    range: AddressRange,
    /// All addresses below are held; none if all of the range are.
    next: Option<u128>,
}

impl Pool {
    pub(crate) fn new(created: i64, spec: &LoadBalancerIpPoolSpec) -> Pool {
        let excludes_ends = spec.allow_first_last_ips == "No";
        let (mut blocks, mut usable, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        for (i, block) in spec.blocks.iter().enumerate() {
            match AddressRange::parse(block, excludes_ends) {
                Ok((range, part)) => {
                    blocks.push(range);
                    usable.push(part);
                }
                Err(problem) => problems.push(format!("spec.blocks[{i}]: {problem}")),
            }
        }
        let selector = match &spec.service_selector {
            None => Some(LabelRequirements::default()),
            Some(selector) => LabelRequirements::try_from(selector)
                .map_err(|error| problems.push(format!("spec.serviceSelector: {error}")))
                .ok(),
        };
        let usable = AddressRange::merge(usable);
        let usable = usable.into_iter().map(|range| UsableRange { range, next: Some(range.first) }).collect();
        Pool {
            definition: (created, spec.clone()),
            blocks,
            usable,
            selector,
            conflict: String::new(),
            problems,
        }
    }

    /// Whether the address is one of those that may be given.
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.usable.iter().any(|usable| usable.range.contains(ip))
    }

    pub(crate) fn has_family(&self, family: Family) -> bool {
        self.usable.iter().any(|usable| usable.range.family == family)
    }

    pub(crate) fn selects(&self, request: &Request) -> bool {
        self.selector.as_ref().is_some_and(|selector| selector.matches(|key| request.label(key)))
    }

    /// Whether addresses that are not in use yet may be given.
    pub(crate) fn gives_new(&self) -> bool {
        !self.definition.1.disabled && self.conflict.is_empty()
    }

    /// Returns the first address of a family that is not held. Constant time if the addresses below are still held, but for
    /// held addresses that follow.
    pub(crate) fn next_free<T>(&mut self, family: Family, holders: &BTreeMap<IpAddr, T>) -> Option<IpAddr> {
        for UsableRange { range, next } in
            self.usable.iter_mut().filter(|usable| usable.range.family == family)
        {
            let Some(mut candidate) = *next else { continue };
            *next = None;
            let mut held = holders.range(range.address(candidate)..=range.address(range.last));
            loop {
                if held.next().is_none_or(|(ip, _)| number(*ip) != candidate) {
                    *next = Some(candidate);
                    return Some(range.address(candidate));
                }
                if candidate == range.last {
                    break;
                }
                candidate += 1;
            }
        }
        None
    }

    /// Takes note that an address is not held any more.
    pub(crate) fn released(&mut self, ip: IpAddr) {
        for UsableRange { next, .. } in self.usable.iter_mut().filter(|usable| usable.range.contains(ip)) {
            *next = Some(next.map_or(number(ip), |next| next.min(number(ip))));
        }
    }

    /// Returns how many addresses it has.
    pub(crate) fn total(&self) -> u128 {
        self.usable.iter().fold(0, |sum, usable| sum.saturating_add(usable.range.len()))
    }

    /// Returns how many of its addresses are held.
    pub(crate) fn used<T>(&self, holders: &BTreeMap<IpAddr, T>) -> u128 {
        let held = |range: &AddressRange| {
            holders.range(range.address(range.first)..=range.address(range.last)).count() as u128
        };
        self.usable.iter().map(|usable| held(&usable.range)).sum()
    }
}

/// Finds the pools that are in conflict: those with ranges that overlap each other, or that of an older pool.
pub(crate) fn find_conflicts(pools: &mut BTreeMap<SmolStr, Pool>) {
    let mut by_age: Vec<(i64, SmolStr)> =
        pools.iter().map(|(name, pool)| (pool.definition.0, name.clone())).collect();
    by_age.sort();
    for (i, (_, name)) in by_age.iter().enumerate() {
        let blocks = &pools[name].blocks;
        let own = blocks.iter().enumerate().find_map(|(at, block)| {
            let other = blocks[..at].iter().find(|other| other.overlaps(block))?;
            Some((block, other, name))
        });
        let older = || {
            by_age[..i].iter().find_map(|(_, older)| {
                let of_older = &pools[older].blocks;
                blocks.iter().find_map(|block| {
                    Some((block, of_older.iter().find(|other| other.overlaps(block))?, older))
                })
            })
        };
        let text = |(block, other, owner): (&AddressRange, &AddressRange, &SmolStr)| {
            format!("Pool conflicts since range '{block}' overlaps range '{other}' from IP Pool '{owner}'")
        };
        let conflict = own.or_else(older).map(text).unwrap_or_default();
        if let Some(pool) = pools.get_mut(name) {
            pool.conflict = conflict;
        }
    }
}
