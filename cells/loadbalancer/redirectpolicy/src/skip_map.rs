//! The maps `cilium_skip_lb4` and `cilium_skip_lb6`, and their reconciler.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bpf::{Map, RawMap};
use datapath_abi::{SkipLb4Key, SkipLb6Key, ipv4_from_word, ipv4_word, ipv6_from_words, ipv6_words};
use maps::{FamilyConfig, Maps, Specs};
use parking_lot::Mutex;
use reconciler::{OpCx, OpResult, Ops};
use statedb::Rows;

use crate::skip::DesiredSkip;

/// The error of an operation on a map.
pub type MapError = Box<dyn std::error::Error + Send + Sync>;

/// An entry of the skip maps: traffic of a network namespace to an address is not redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SkipKey {
    /// The cookie of the network namespace.
    pub cookie: u64,
    /// The frontend's address.
    pub ip: IpAddr,
    /// The frontend's port.
    pub port: u16,
}

impl fmt::Display for SkipKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "COOKIE={} IP={} PORT={}", self.cookie, self.ip, self.port)
    }
}

/// The skip maps of both families.
pub trait SkipMaps: Send + Sync {
    /// Writes an entry.
    fn put(&self, key: &SkipKey) -> Result<(), MapError>;
    /// Deletes an entry, if it exists.
    fn delete(&self, key: &SkipKey) -> Result<(), MapError>;
    /// Returns all entries.
    fn rows(&self) -> Result<Vec<SkipKey>, MapError>;
}

/// The kernel's maps, of the enabled families.
pub struct KernelSkipMaps {
    v4: Option<Map<SkipLb4Key, u8>>,
    v6: Option<Map<SkipLb6Key, u8>>,
}

const V4: &str = "cilium_skip_lb4";
const V6: &str = "cilium_skip_lb6";

impl KernelSkipMaps {
    /// Opens the pinned maps of the node.
    pub fn open(maps: &Maps, families: &FamilyConfig) -> Result<KernelSkipMaps, MapError> {
        let open = |name| Ok(maps.shared(name)?.ok_or_else(|| format!("there is no map {name}"))?);
        KernelSkipMaps::of(families, &open)
    }

    /// Creates maps of this form without pins: the kernel frees them when this value is dropped.
    pub fn unpinned(specs: &Specs, families: &FamilyConfig) -> Result<KernelSkipMaps, MapError> {
        let create = |name| {
            let spec = specs.find(name).ok_or_else(|| format!("there is no map {name}"))?;
            Ok(RawMap::create(&spec)?)
        };
        KernelSkipMaps::of(families, &create)
    }

    fn of(
        families: &FamilyConfig,
        open: &dyn Fn(&'static str) -> Result<RawMap, MapError>,
    ) -> Result<KernelSkipMaps, MapError> {
        let v4 = families.enable_ipv4.then(|| open(V4)).transpose()?;
        let v6 = families.enable_ipv6.then(|| open(V6)).transpose()?;
        Ok(KernelSkipMaps { v4: v4.map(Map::new).transpose()?, v6: v6.map(Map::new).transpose()? })
    }
}

fn key4(key: &SkipKey, ip: std::net::Ipv4Addr) -> SkipLb4Key {
    SkipLb4Key { netns_cookie: key.cookie, address: ipv4_word(ip), port: key.port.to_be(), pad: 0 }
}

fn key6(key: &SkipKey, ip: std::net::Ipv6Addr) -> SkipLb6Key {
    SkipLb6Key { netns_cookie: key.cookie, address: ipv6_words(ip), pad: 0, port: key.port.to_be(), pad2: 0 }
}

impl SkipMaps for KernelSkipMaps {
    fn put(&self, key: &SkipKey) -> Result<(), MapError> {
        match (key.ip, &self.v4, &self.v6) {
            (IpAddr::V4(ip), Some(map), _) => {
                map.update(&key4(key, ip), &0).map_err(|e| format!("{V4}: {e}"))?
            }
            (IpAddr::V6(ip), _, Some(map)) => {
                map.update(&key6(key, ip), &0).map_err(|e| format!("{V6}: {e}"))?
            }
            _ => {}
        }
        Ok(())
    }

    fn delete(&self, key: &SkipKey) -> Result<(), MapError> {
        match (key.ip, &self.v4, &self.v6) {
            (IpAddr::V4(ip), Some(map), _) => drop(map.delete(&key4(key, ip))?),
            (IpAddr::V6(ip), _, Some(map)) => drop(map.delete(&key6(key, ip))?),
            _ => {}
        }
        Ok(())
    }

    fn rows(&self) -> Result<Vec<SkipKey>, MapError> {
        let mut rows = Vec::new();
        if let Some(map) = &self.v4 {
            rows.extend(map.entries()?.into_iter().map(|(key, _)| SkipKey {
                cookie: key.netns_cookie,
                ip: ipv4_from_word(key.address).into(),
                port: u16::from_be(key.port),
            }));
        }
        if let Some(map) = &self.v6 {
            rows.extend(map.entries()?.into_iter().map(|(key, _)| SkipKey {
                cookie: key.netns_cookie,
                ip: ipv6_from_words(key.address).into(),
                port: u16::from_be(key.port),
            }));
        }
        Ok(rows)
    }
}

type Open = dyn Fn() -> Result<Arc<dyn SkipMaps>, MapError> + Send + Sync;

/// Opens the skip maps: the agent's are pinned, those of tests are not.
pub struct SkipMapsProvider {
    open: Box<Open>,
    opened: Mutex<Option<Arc<dyn SkipMaps>>>,
}

impl SkipMapsProvider {
    /// Returns a provider with a function that opens the maps on first use; it is called again after a failure.
    pub fn new(
        open: impl Fn() -> Result<Arc<dyn SkipMaps>, MapError> + Send + Sync + 'static,
    ) -> SkipMapsProvider {
        SkipMapsProvider { open: Box::new(open), opened: Mutex::new(None) }
    }

    /// Returns the maps.
    pub(crate) fn maps(&self) -> Result<Arc<dyn SkipMaps>, MapError> {
        let mut opened = self.opened.lock();
        if let Some(maps) = &*opened {
            return Ok(maps.clone());
        }
        let maps = (self.open)()?;
        *opened = Some(maps.clone());
        Ok(maps)
    }
}

impl fmt::Debug for SkipMapsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SkipMapsProvider")
    }
}

/// Reconciles the maps with the table.
pub(crate) struct SkipOps {
    provider: Arc<SkipMapsProvider>,
    /// The entries written for each pod, including those of an operation that failed half-way.
    written: BTreeMap<String, BTreeSet<SkipKey>>,
}

impl SkipOps {
    pub(crate) fn new(provider: Arc<SkipMapsProvider>) -> SkipOps {
        SkipOps { provider, written: BTreeMap::new() }
    }

    /// Replaces the entries of a pod.
    fn reconcile(&mut self, pod: &str, wanted: &BTreeSet<SkipKey>) -> OpResult {
        let before = self.written.get(pod).cloned().unwrap_or_default();
        if before.is_empty() && wanted.is_empty() {
            return Ok(());
        }
        let maps = self.provider.maps()?;
        for key in wanted {
            // Recorded only after a successful write: a failed one leaves no entry.
            maps.put(key)?;
            self.written.entry(pod.to_owned()).or_default().insert(*key);
        }
        for key in before.difference(wanted) {
            // Pods of one network namespace share entries.
            let others = self.written.iter().filter(|(other, _)| *other != pod);
            if !others.into_iter().any(|(_, keys)| keys.contains(key)) {
                maps.delete(key)?;
            }
            if let Some(keys) = self.written.get_mut(pod) {
                keys.remove(key);
            }
        }
        if wanted.is_empty() {
            self.written.remove(pod);
        }
        Ok(())
    }
}

impl Ops<DesiredSkip> for SkipOps {
    fn update(&mut self, _: &OpCx<'_>, row: &mut DesiredSkip) -> OpResult {
        let wanted = row.keys();
        self.reconcile(&row.pod, &wanted)?;
        row.reconciled = if row.netns_cookie.is_some() { row.addresses() } else { BTreeSet::new() };
        Ok(())
    }

    fn delete(&mut self, _: &OpCx<'_>, row: &DesiredSkip) -> OpResult {
        self.reconcile(&row.pod, &BTreeSet::new())
    }

    /// Deletes entries without a pod: those of previous runs, of network namespaces that no longer exist.
    fn prune(&mut self, _: &OpCx<'_>, rows: Rows<'_, DesiredSkip>) -> OpResult {
        let maps = self.provider.maps()?;
        let wanted: BTreeSet<SkipKey> = rows.flat_map(|row| row.keys()).collect();
        let written: BTreeSet<&SkipKey> = self.written.values().flatten().collect();
        let rows = maps.rows()?;
        // Entries written for a pod are deleted with it.
        for key in rows.iter().filter(|key| !wanted.contains(key) && !written.contains(key)) {
            maps.delete(key)?;
        }
        Ok(())
    }
}
