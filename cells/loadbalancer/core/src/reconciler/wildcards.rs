//! Entries for all ports of an address: how many frontends of the address desire it, and the copy of the entry.

use std::net::IpAddr;

use datapath_abi::LbService;

use crate::lbmap::rows::{Key, Value};
use crate::model::address::{LbAddress, Protocol, Scope};
use crate::model::fast_map::FastMap;
use crate::reconciler::desired::{Flags, Wildcard, wildcard_row};

/// The known content of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Copied {
    #[default]
    Missing,
    /// It may exist.
    Unsure,
    Row(Flags),
}

impl Copied {
    fn known(self) -> Option<Option<Value>> {
        match self {
            Copied::Missing => None,
            Copied::Unsure => Some(None),
            Copied::Row(Flags(flags, flags2)) => {
                Some(Some(Value::Service(LbService { flags, flags2, ..LbService::default() })))
            }
        }
    }
}

/// An address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct AllPorts {
    /// The numbers of frontends that desire the entry, by type.
    cluster_ips: u16,
    load_balancers: u16,
    copied: Copied,
}

impl AllPorts {
    fn count(&mut self, kind: Wildcard) -> &mut u16 {
        match kind {
            Wildcard::ClusterIp => &mut self.cluster_ips,
            Wildcard::LoadBalancer => &mut self.load_balancers,
        }
    }

    fn is_desired(&self) -> bool {
        self.cluster_ips > 0 || self.load_balancers > 0
    }
}

/// The addresses for which such an entry is desired or may exist. An IPv4 address in the form of IPv6 is one of IPv4.
#[derive(Debug, Default)]
pub(crate) struct Wildcards(FastMap<IpAddr, AllPorts>);

impl Wildcards {
    /// Whether the key is of such an entry.
    pub(crate) fn is_key(address: &LbAddress, slot: u16) -> bool {
        let LbAddress { ip, port, protocol, scope } = *address;
        slot == 0
            && port == 0
            && protocol == Protocol::Any
            && scope == Scope::External
            && ip == ip.to_canonical()
    }

    /// Changes the desire of one frontend.
    pub(crate) fn change(&mut self, ip: IpAddr, before: Option<Wildcard>, now: Option<Wildcard>) {
        if before == now {
            return;
        }
        let ip = ip.to_canonical();
        let entry = self.0.entry(ip).or_default();
        if let Some(kind) = now {
            *entry.count(kind) += 1;
        }
        if let Some(kind) = before {
            *entry.count(kind) -= 1;
            self.trim(ip);
        }
    }

    /// Returns the entry, if a frontend desires it: with the types of all that do.
    pub(crate) fn row(&self, ip: IpAddr) -> Option<(Key, Value)> {
        let entry = self.0.get(&ip.to_canonical()).filter(|entry| entry.is_desired())?;
        let flags = |kind: Wildcard, count| if count > 0 { kind.flags() } else { Flags::default() };
        let all = [(Wildcard::ClusterIp, entry.cluster_ips), (Wildcard::LoadBalancer, entry.load_balancers)];
        let all = all.into_iter().map(|(kind, count)| flags(kind, count));
        Some(wildcard_row(ip, all.fold(Flags::default(), |all, one| Flags(all.0 | one.0, all.1 | one.1))))
    }

    /// Returns the copy of an entry, or `Some(None)` if it may exist.
    pub(crate) fn copied(&self, ip: IpAddr) -> Option<Option<Value>> {
        self.0.get(&ip)?.copied.known()
    }

    /// Sets the copy of an entry; returns whether it can be stored here, and the copy before.
    pub(crate) fn set_copied(&mut self, ip: IpAddr, value: Option<Value>) -> (bool, Option<Option<Value>>) {
        let copied = match value {
            None => Copied::Unsure,
            Some(Value::Service(row)) => {
                let plain = LbService { flags: row.flags, flags2: row.flags2, ..LbService::default() };
                match row == plain {
                    true => Copied::Row(Flags(row.flags, row.flags2)),
                    false => return (false, self.remove_copied(ip)),
                }
            }
            Some(_) => return (false, self.remove_copied(ip)),
        };
        let before = std::mem::replace(&mut self.0.entry(ip).or_default().copied, copied);
        (true, before.known())
    }

    /// Removes the copy of an entry; returns it.
    pub(crate) fn remove_copied(&mut self, ip: IpAddr) -> Option<Option<Value>> {
        let before = std::mem::take(&mut self.0.get_mut(&ip)?.copied);
        self.trim(ip);
        before.known()
    }

    fn trim(&mut self, ip: IpAddr) {
        if self.0.get(&ip).is_some_and(|entry| !entry.is_desired() && entry.copied == Copied::Missing) {
            self.0.remove(&ip);
        }
    }

    pub(crate) fn reserve(&mut self, count: usize) {
        self.0.reserve(count);
    }

    /// Iterates over the copies of all entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, Option<Value>)> {
        self.0.iter().filter_map(|(ip, entry)| Some((Key::wildcard(*ip), entry.copied.known()?)))
    }

    /// Returns the number of addresses for which the entry is desired.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn len(&self) -> usize {
        self.0.values().filter(|entry| entry.is_desired()).count()
    }
}

const _: () = assert!(size_of::<(IpAddr, AllPorts)>() == 26);
