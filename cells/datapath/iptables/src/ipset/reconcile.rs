//! Drives the kernel's sets from table `ipsets`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use reconciler::{BatchEntry, BatchOps, OpCx, OpResult, Ops};
use statedb::{Obj, Rows};

use crate::ipset::kernel::{Sets, is_unsupported};
use crate::ipset::{NODE_SETS, SetEntry};
use crate::rules::Family;

/// Writes members of the node sets.
pub(crate) struct Members;

impl Members {
    fn add(set: &str, members: &[IpAddr]) -> Result<(), netlink::Error> {
        let mut sets = Sets::open()?;
        let is_v4 = members.first().is_some_and(IpAddr::is_ipv4);
        // Created here, too: another process may have destroyed a set that no rule uses yet.
        sets.create(set, if is_v4 { Family::V4 } else { Family::V6 })?;
        sets.add(set, members)
    }

    fn remove(set: &str, members: &[IpAddr]) -> Result<(), netlink::Error> {
        match Sets::open()?.remove(set, members) {
            Err(error) if error.is_not_found() => Ok(()),
            removed => removed,
        }
    }
}

fn result(outcome: Result<(), netlink::Error>) -> OpResult {
    outcome.map_err(|error| match is_unsupported(&error) {
        true => format!("the kernel has no sets of addresses (ip_set, ip_set_hash_ip): {error}").into(),
        false => error.to_string().into(),
    })
}

/// Applies a change of many members, one set after the other; entries of a set share its result.
fn each_set<T>(
    batch: &mut [BatchEntry<T>],
    member: impl Fn(&T) -> (&'static str, IpAddr),
    change: impl Fn(&str, &[IpAddr]) -> Result<(), netlink::Error>,
) {
    let mut sets: BTreeMap<&'static str, Vec<IpAddr>> = BTreeMap::new();
    for entry in &*batch {
        let (set, addr) = member(&entry.object);
        sets.entry(set).or_default().push(addr);
    }
    for (set, members) in sets {
        if let Err(error) = change(set, &members) {
            let error = result(Err(error)).err().map(|error| error.to_string()).unwrap_or_default();
            for entry in batch.iter_mut().filter(|entry| member(&entry.object).0 == set) {
                entry.result = Err(error.clone().into());
            }
        }
    }
}

impl Ops<SetEntry> for Members {
    fn update(&mut self, _: &OpCx<'_>, entry: &mut SetEntry) -> OpResult {
        result(Members::add(entry.name, &[entry.addr]))
    }

    fn delete(&mut self, _: &OpCx<'_>, entry: &SetEntry) -> OpResult {
        result(Members::remove(entry.name, &[entry.addr]))
    }

    fn prune(&mut self, _: &OpCx<'_>, entries: Rows<'_, SetEntry>) -> OpResult {
        let wanted: BTreeSet<(&str, IpAddr)> = entries.map(|entry| (entry.name, entry.addr)).collect();
        let prune = || -> Result<(), netlink::Error> {
            let mut sets = Sets::open()?;
            for set in NODE_SETS {
                let found = sets.members(set)?.into_iter();
                let surplus: Vec<IpAddr> = found.filter(|addr| !wanted.contains(&(set, *addr))).collect();
                sets.remove(set, &surplus)?;
            }
            Ok(())
        };
        match prune() {
            Err(error) if wanted.is_empty() && is_unsupported(&error) => Ok(()),
            pruned => result(pruned),
        }
    }
}

impl BatchOps<SetEntry> for Members {
    fn update_batch(&mut self, _: &OpCx<'_>, batch: &mut [BatchEntry<SetEntry>]) {
        each_set(batch, |entry| (entry.name, entry.addr), Members::add);
    }

    fn delete_batch(&mut self, _: &OpCx<'_>, batch: &mut [BatchEntry<Obj<SetEntry>>]) {
        each_set(batch, |entry| (entry.name, entry.addr), Members::remove);
    }
}
