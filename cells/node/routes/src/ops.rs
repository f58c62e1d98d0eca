//! The operations of the reconciler: rows to the kernel, with the log in front.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use devices::{Device, DeviceAddress, Route, TABLE_MAIN};
use netlink::{Connection, Protocol, Request};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteMessage;
use reconciler::{BatchEntry, BatchOps, OpCx, OpResult, Ops, StatusKind};
use statedb::{Obj, Rows, Snapshot, Table};

use crate::fib::{FibEntry, FibKey, PROTOCOL};
use crate::wal::Wal;
use crate::{DesiredRoute, Error};

/// `RTM_NEWROUTE` and `RTM_DELROUTE` of `linux/rtnetlink.h`.
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
/// `IP6_RT_PRIO_ADDRCONF`: the metric of the routes that the kernel makes for IPv6 addresses.
const METRIC_CONNECTED_V6: u32 = 256;

/// The kernel's routes as the target of the reconciler. Opens its socket and its log at the first use, on the thread of
/// the reconciler.
pub(crate) struct KernelRoutes {
    desired: Table<DesiredRoute>,
    devices: Arc<Table<Device>>,
    live: Arc<Table<Route>>,
    log: PathBuf,
    /// The device by which there are no routes of protocol `kernel` but this agent's.
    own_device: Arc<OnceLock<Box<str>>>,
    open: Option<Open>,
}

/// The open target.
struct Open {
    connection: Connection,
    wal: Wal,
    /// Routes of the previous run that no row was compared with yet.
    found: HashMap<FibKey, FibEntry>,
    sent: Sent,
}

/// Requests to the kernel so far.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    datagrams: usize,
    messages: usize,
    dumps: usize,
}

impl KernelRoutes {
    pub(crate) fn new(
        desired: Table<DesiredRoute>,
        devices: Arc<Table<Device>>,
        live: Arc<Table<Route>>,
        log: PathBuf,
        own_device: Arc<OnceLock<Box<str>>>,
    ) -> Self {
        Self { desired, devices, live, log, own_device, open: None }
    }

    /// Opens socket and log unless they are open.
    fn open(&mut self) -> Result<&mut Open, Error> {
        if self.open.is_none() {
            let connection = Connection::open(Protocol::Route).map_err(Error::Socket)?;
            let wal = Wal::open(&self.log)?;
            let mut open = Open { connection, wal, found: HashMap::new(), sent: Sent::default() };
            if !open.wal.keys().is_empty() {
                let logged: HashMap<FibKey, FibKey> =
                    open.wal.keys().iter().map(|key| (key.normal(), *key)).collect();
                let entries = open.list()?.into_iter().filter(|entry| entry.protocol == PROTOCOL);
                open.found = entries
                    .filter_map(|entry| logged.get(&entry.key).map(|key| (*key, entry)))
                    .filter(|(_, entry)| !is_connected(&self.devices, &self.devices.snapshot(), entry))
                    .collect();
            }
            self.open = Some(open);
        }
        self.open.as_mut().ok_or(Error::Stopped)
    }

    /// Writes the selected ones of some rows; returns the results in their order.
    fn write(&mut self, snapshot: &Snapshot, rows: &mut [&mut DesiredRoute]) -> Vec<Result<(), Error>> {
        let mut results: Vec<Result<(), Error>> = Vec::with_capacity(rows.len());
        let mut entries: Vec<(usize, FibKey, FibEntry)> = Vec::new();
        let devices = Arc::clone(&self.devices);
        // Newer than the round's: a device may have come since.
        let latest = devices.snapshot();
        for (index, row) in rows.iter_mut().enumerate() {
            // A row that is not selected shows its devices as well, but does not depend on them.
            let resolved = resolve(&devices, &latest, row);
            results.push(if row.selected { resolved } else { Ok(()) });
            if row.selected && results[index].is_ok() && !self.is_unchanged(snapshot, row) {
                entries.push((index, row.key, row.entry()));
            }
        }
        if entries.is_empty() {
            return results;
        }
        match self.write_entries(&entries) {
            Ok(written) => {
                for ((index, ..), result) in entries.iter().zip(written) {
                    results[*index] = result;
                }
            }
            Err(error) => {
                // Answers may have been lost: the next attempt starts with a new socket.
                self.open = None;
                let text = error.to_string();
                let mut first = Some(error);
                for (index, key, _) in &entries {
                    let again = || Error::NotInstalled { key: *key, reason: text.clone() };
                    results[*index] = Err(first.take().unwrap_or_else(again));
                }
            }
        }
        results
    }

    /// Whether the kernel has the route of a row that is refreshed. The live rows of the kernel's routes may be older
    /// than the kernel; when they learn of a difference, the row is refreshed again.
    fn is_unchanged(&self, snapshot: &Snapshot, row: &DesiredRoute) -> bool {
        row.status.kind() == StatusKind::Refreshing
            && row.entry().is_live(|key| self.live.get(snapshot, Route::by_key(key)).map(|row| &**row))
    }

    fn write_entries(
        &mut self,
        entries: &[(usize, FibKey, FibEntry)],
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let devices = Arc::clone(&self.devices);
        let open = self.open()?;
        let mut results: Vec<Result<(), Error>> = Vec::with_capacity(entries.len());
        let mut requests = Vec::new();
        for (index, (_, key, entry)) in entries.iter().enumerate() {
            results.push(Ok(()));
            if open.found.remove(key).is_some_and(|found| found.is_equal(entry)) {
                continue;
            }
            // The kernel refuses a first write over a route that this agent has not made.
            let mode = if open.wal.keys().contains(key) { NLM_F_REPLACE } else { NLM_F_EXCL };
            requests.push((
                index,
                Request { kind: RTM_NEWROUTE, body: entry.message() },
                NLM_F_CREATE | mode,
            ));
        }
        let fresh = requests.iter().filter(|(.., flags)| flags & NLM_F_EXCL != 0);
        let fresh: Vec<FibKey> = fresh.map(|(index, ..)| entries[*index].1).collect();
        open.wal.insert(fresh.iter().copied())?;
        let answers = open.send(requests.iter().map(|(_, request, flags)| (request, *flags)));
        let answers = answers.map_err(Error::List)?;
        let mut taken: Vec<usize> = Vec::new();
        for ((index, _, flags), answer) in requests.iter().zip(answers) {
            match answer {
                Err(error) if error.is_exists() && flags & NLM_F_EXCL != 0 => taken.push(*index),
                answer => {
                    let key = entries[*index].1;
                    results[*index] = answer.map_err(|source| Error::Kernel { key, source });
                }
            }
        }
        if !taken.is_empty() {
            open.take_over(&devices, entries, &taken, &mut results)?;
        }
        // A key without a route of this agent is not its to replace or to delete.
        let missing = entries
            .iter()
            .zip(&results)
            .filter(|((_, key, _), result)| result.is_err() && fresh.contains(key));
        open.wal.remove(missing.map(|((_, key, _), _)| *key).collect::<Vec<_>>())?;
        Ok(results)
    }

    /// Deletes the routes of rows for which there is no other row.
    fn remove(
        &mut self,
        snapshot: &Snapshot,
        rows: &[&DesiredRoute],
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let desired = self.desired.clone();
        let devices = Arc::clone(&self.devices);
        let open = self.open()?;
        let mut results: Vec<Result<(), Error>> = Vec::with_capacity(rows.len());
        let mut requests = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            results.push(Ok(()));
            // Another owner's row replaces the route in place, so that no packet meets a gap.
            let is_desired = desired.get(snapshot, DesiredRoute::by_key(row.key)).is_some();
            if is_desired || !open.wal.keys().contains(&row.key) {
                continue;
            }
            open.found.remove(&row.key);
            let mut last = DesiredRoute::clone(row);
            // A device that is gone has taken the route with it; one of the same name may have another index.
            let _ = resolve(&devices, &devices.snapshot(), &mut last);
            let body = FibEntry { key: row.key, ..last.entry() }.delete_message();
            requests.push((index, Request { kind: RTM_DELROUTE, body }));
        }
        let answers = open.send(requests.iter().map(|(_, request)| (request, 0)));
        let answers = answers.map_err(Error::List)?;
        let mut gone = Vec::new();
        for ((index, _), answer) in requests.iter().zip(answers) {
            let key = rows[*index].key;
            match answer {
                Err(error) if !error.is_not_found() => {
                    results[*index] = Err(Error::Kernel { key, source: error })
                }
                _ => gone.push(key),
            }
        }
        open.wal.remove(gone)?;
        Ok(results)
    }

    /// Deletes routes that no row desires: those that the log names, and those by the agent's own device, where Cilium and
    /// earlier versions have left some that are in no log.
    fn prune_routes(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let desired = self.desired.clone();
        let (devices, own_device) = (Arc::clone(&self.devices), Arc::clone(&self.own_device));
        let open = self.open()?;
        open.found = HashMap::new();
        let is_desired = |key: FibKey| {
            let get = |key| desired.get(snapshot, DesiredRoute::by_key(key)).is_some();
            get(key) || (FibKey { priority: 0, ..key }.normal() == key && get(FibKey { priority: 0, ..key }))
        };
        let stale: HashMap<FibKey, FibKey> =
            open.wal.keys().iter().filter(|key| !is_desired(**key)).map(|key| (key.normal(), *key)).collect();
        let latest = devices.snapshot();
        let own_device = own_device.get().and_then(|name| devices.get(&latest, Device::by_name(name)));
        let own_device = own_device.map(|device| device.index);
        let is_left = |entry: &FibEntry| {
            let automatic = match entry.key.prefix.ip() {
                IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
                IpAddr::V4(_) => false,
            };
            let is_by_own = matches!(&*entry.hops, [(link, _)] if Some(*link) == own_device);
            is_by_own && !automatic && entry.key.table == TABLE_MAIN && !is_desired(entry.key)
        };
        let found = open.list()?.into_iter().filter(|entry| {
            entry.protocol == PROTOCOL
                && (stale.contains_key(&entry.key) || is_left(entry))
                && !is_connected(&devices, &latest, entry)
        });
        let found: Vec<FibEntry> = found.collect();
        let requests: Vec<Request<RouteMessage>> =
            found.iter().map(|entry| Request { kind: RTM_DELROUTE, body: entry.delete_message() }).collect();
        let answers = open.send(requests.iter().map(|request| (request, 0))).map_err(Error::List)?;
        let mut failed = None;
        let mut gone: HashMap<FibKey, FibKey> = stale;
        for (entry, answer) in found.iter().zip(answers) {
            match answer {
                Err(source) if !source.is_not_found() => {
                    gone.remove(&entry.key);
                    failed = Some(Error::Kernel { key: entry.key, source });
                }
                _ => tracing::info!(route = %entry.key, "Deleted a route that is not desired any more"),
            }
        }
        open.wal.remove(gone.into_values())?;
        // The longer log says the same; the next round tries again.
        if let Err(error) = open.wal.compact() {
            tracing::debug!(%error, "Log of routes not rewritten");
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Open {
    /// Sends requests in as few datagrams as possible.
    fn send<'m>(
        &mut self,
        requests: impl ExactSizeIterator<Item = (&'m Request<RouteMessage>, u16)>,
    ) -> Result<Vec<Result<(), netlink::Error>>, netlink::Error> {
        if requests.len() == 0 {
            return Ok(Vec::new());
        }
        self.sent.messages += requests.len();
        self.sent.datagrams += requests.len().div_ceil(netlink::MAX_BATCH);
        tracing::debug!(sent = ?self.sent, "Routes are written");
        self.connection.request_all(requests)
    }

    /// Lists the kernel's routes of all tables.
    fn list(&mut self) -> Result<Vec<FibEntry>, Error> {
        self.sent.dumps += 1;
        let all = RouteNetlinkMessage::GetRoute(RouteMessage::default());
        self.connection.dump(&all, |answer| FibEntry::parse(&answer)).map_err(Error::List)
    }

    /// Replaces routes that exist without being in the log, if Cilium or an earlier version has made them: of protocol
    /// `kernel`, and not the kernel's own route to the network of an address.
    fn take_over(
        &mut self,
        devices: &Table<Device>,
        entries: &[(usize, FibKey, FibEntry)],
        taken: &[usize],
        results: &mut [Result<(), Error>],
    ) -> Result<(), Error> {
        let wanted: HashMap<FibKey, usize> =
            taken.iter().map(|index| (entries[*index].2.key, *index)).collect();
        let mut replaced: HashMap<usize, bool> = taken.iter().map(|index| (*index, true)).collect();
        let snapshot = devices.snapshot();
        for found in self.list()? {
            let Some(index) = wanted.get(&found.key) else { continue };
            let (_, key, entry) = &entries[*index];
            if found.protocol != PROTOCOL || is_connected(devices, &snapshot, &found) {
                results[*index] = Err(Error::Foreign { key: *key, protocol: found.protocol });
                replaced.remove(index);
            } else if found.is_equal(entry) {
                replaced.remove(index);
            }
        }
        let requests: Vec<(usize, Request<RouteMessage>)> = replaced
            .into_keys()
            .filter(|index| results[*index].is_ok())
            .map(|index| (index, Request { kind: RTM_NEWROUTE, body: entries[index].2.message() }))
            .collect();
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let answers = self.send(requests.iter().map(|(_, request)| (request, flags))).map_err(Error::List)?;
        for ((index, _), answer) in requests.iter().zip(answers) {
            let key = entries[*index].1;
            results[*index] = answer.map_err(|source| Error::Kernel { key, source });
        }
        Ok(())
    }
}

/// Sets the indexes of a row's devices.
fn resolve(devices: &Table<Device>, snapshot: &Snapshot, row: &mut DesiredRoute) -> Result<(), Error> {
    for hop in &mut row.hops {
        let Some(name) = &hop.device else { continue };
        let device = devices.get(snapshot, Device::by_name(name));
        hop.index = device.map_or(0, |device| device.index);
        if hop.index == 0 {
            return Err(Error::NoDevice { key: row.key, device: Arc::clone(name) });
        }
    }
    Ok(())
}

/// Whether it is the kernel's own route to the network of a device's address.
fn is_connected(devices: &Table<Device>, snapshot: &Snapshot, entry: &FibEntry) -> bool {
    let [(link, None)] = &*entry.hops else { return false };
    let Some(device) = devices.get(snapshot, Device::by_index(*link)) else { return false };
    let prefix = entry.key.prefix;
    // Single hosts have no such route in IPv4; in IPv6 these routes have a metric of their own.
    let is_candidate =
        if prefix.is_ipv4() { prefix.prefix() < 32 } else { entry.key.priority == METRIC_CONNECTED_V6 };
    let is_own = |own: &DeviceAddress| own.prefix_len == prefix.prefix() && prefix.contains(own.addr);
    is_candidate && device.addrs.iter().any(is_own)
}

impl Ops<DesiredRoute> for KernelRoutes {
    fn update(&mut self, cx: &OpCx<'_>, row: &mut DesiredRoute) -> OpResult {
        let mut results = self.write(cx.snapshot, &mut [row]);
        Ok(results.pop().unwrap_or(Ok(()))?)
    }

    fn delete(&mut self, cx: &OpCx<'_>, row: &DesiredRoute) -> OpResult {
        let results = self.remove(cx.snapshot, &[row]);
        if results.is_err() {
            self.open = None;
        }
        Ok(results?.pop().unwrap_or(Ok(()))?)
    }

    fn prune(&mut self, cx: &OpCx<'_>, _: Rows<'_, DesiredRoute>) -> OpResult {
        let result = self.prune_routes(cx.snapshot);
        if result.is_err() {
            self.open = None;
        }
        Ok(result?)
    }
}

impl BatchOps<DesiredRoute> for KernelRoutes {
    fn update_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<DesiredRoute>]) {
        let mut rows: Vec<&mut DesiredRoute> = batch.iter_mut().map(|entry| &mut entry.object).collect();
        let results = self.write(cx.snapshot, &mut rows);
        for (entry, result) in batch.iter_mut().zip(results) {
            entry.result = result.map_err(Into::into);
        }
    }

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<DesiredRoute>>]) {
        let rows: Vec<&DesiredRoute> = batch.iter().map(|entry| &*entry.object).collect();
        match self.remove(cx.snapshot, &rows) {
            Ok(results) => {
                for (entry, result) in batch.iter_mut().zip(results) {
                    entry.result = result.map_err(Into::into);
                }
            }
            Err(error) => {
                self.open = None;
                batch.iter_mut().for_each(|entry| entry.result = Err(error.to_string().into()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
