//! From what the previous run has left to endpoints that are ready: read, reserve, wait for the datapath, make again,
//! serve queued deletions, let requests in.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use datapath_abi::identity::HOST;
use datapath_api::EndpointDatapath;
use hive::{Backoff, Health};
use identity::Identities;
use ipam::Ipam;
use reconciler::StatusKind;
use statedb::{RwTable, Table};

use crate::identity_labels::filter::Filter;
use crate::identity_labels::pod;
use crate::model::endpoint::Endpoint;
use crate::model::error::StateError;
use crate::model::id::{EndpointId, Name};
use crate::model::mac::Mac;
use crate::model::op_labels::OpLabels;
use crate::model::options::Options;
use crate::model::record::{OptionMap, Record, SecurityLabel};
use crate::model::state::State;
use crate::requests::service::Endpoints;
use crate::restore::damaged::Damaged;
use crate::restore::files::StateFolder;
use crate::restore::plan::{Discarded, Ignored, Restored, plan};
use crate::restore::queue::{Deletion, DeletionQueue, LOCK_PATIENCE};
use labels::{Label, Labels};

/// The interface of the host's own endpoint.
pub(crate) const HOST_DEVICE: &str = "cilium_host";

/// The links of the node by name.
pub type Links = HashMap<String, Link>;

/// A link of the node, as far as endpoints care.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// MAC address.
    pub mac: Option<Mac>,
    /// Index of the peer of a veth, in whichever namespace; zero without one.
    pub peer: u32,
}

/// Reads from the kernel, on a thread for blocking work; what fails is tried again with the delays of `backoff`, and is
/// the result only when that gives up. Health and log have each error once.
pub(crate) async fn read<T, E>(
    what: &str,
    health: Option<&Health>,
    mut backoff: Backoff,
    read: impl Fn() -> Result<T, E> + Clone + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: fmt::Display + Send + 'static,
{
    loop {
        let error = match hive::blocking(read.clone()).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let Some(wait) = backoff.next_wait() else { return Err(error) };
        if health
            .is_none_or(|health| health.degraded_anew(format_args!("Unable to {what}, trying again"), &error))
        {
            tracing::warn!(%error, "Unable to {what}, trying again");
        }
        tokio::time::sleep(wait).await;
    }
}

/// The outcome of reading the previous run's state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Endpoints that go on.
    pub restored: usize,
    /// Endpoints that do not.
    pub failed: usize,
    /// Directories that were left alone or were no endpoint of their own.
    pub skipped: usize,
    /// Records that cannot be read.
    pub(crate) damaged: Vec<Damaged>,
}

/// Veths that a plugin of Cilium has left half-made: both ends here, the pod's end still under its temporary
/// name, and no endpoint on the other. Returns that end's name and index. Searched before plugins can be at work again.
///
/// Two ends belong together when each names the other. By numbers alone that could be chance, as peers in other
/// namespaces have numbers of their own; the temporary name tells.
pub(crate) fn unfinished(links: &Links, endpoints: &Table<Endpoint>) -> Vec<(String, u32)> {
    let snapshot = endpoints.snapshot();
    let used: HashSet<&str> = endpoints.all(&snapshot).map(|row| row.record.if_name.as_str()).collect();
    let named = |start: &'static str| links.iter().filter(move |(name, _)| name.starts_with(start));
    let of_pods: HashMap<u32, u32> = named("lxc")
        .filter(|(name, _)| !used.contains(name.as_str()))
        .map(|(_, link)| (link.index, link.peer))
        .collect();
    let mut unfinished: Vec<_> = named("tmp")
        .filter(|(_, link)| link.peer != 0 && of_pods.get(&link.peer) == Some(&link.index))
        .map(|(name, link)| (name.clone(), link.index))
        .collect();
    unfinished.sort_unstable();
    unfinished
}

/// Removes unfinished veths, which takes the kernel some 20 ms each; one that has changed since is left alone.
pub(crate) async fn remove_unfinished(unfinished: Vec<(String, u32)>) {
    if unfinished.is_empty() {
        return;
    }
    let removed = devices::rtnetlink::call(move |netlink| {
        let mut removed = Vec::new();
        for (name, index) in unfinished {
            if netlink.find_link(&name)?.is_some_and(|link| link.index == index) {
                netlink.delete_link(index)?;
                removed.push(name);
            }
        }
        Ok(removed)
    });
    match removed.await {
        Ok(interfaces) => tracing::info!(?interfaces, "Removed pod interfaces that were never finished"),
        Err(error) => tracing::warn!(%error, "Unable to remove unfinished pod interfaces"),
    }
}

/// Puts the endpoints of the previous run into the table, in state `restoring`, with their addresses reserved. What
/// cannot go on is removed from the folder, what cannot be read put aside, its kernel state goes later, by the first
/// prune. `known`: what the kernel has of endpoints.
pub(crate) fn restore(
    table: &RwTable<Endpoint>,
    files: &StateFolder,
    ipam: &Ipam,
    (identities, filter): (&Identities, &Filter),
    links: &Links,
    options: Option<&Options>,
    known: impl FnOnce() -> Vec<EndpointDatapath>,
) -> Result<Outcome, StateError> {
    let mut found = files.scan()?;
    for record in found.iter_mut().filter_map(|found| found.record.as_mut()?.as_mut().ok()) {
        follow_name(record, links);
    }
    let plan = plan(found, |name| links.get(name).map(|link| link.index));
    let mut outcome = Outcome::default();
    for Ignored { directory, problem } in &plan.ignore {
        tracing::warn!(path = %files.root().join(directory).display(), %problem, "Ignoring a state directory");
        outcome.skipped += 1;
    }
    if !plan.damaged.is_empty() {
        let known = known();
        outcome.failed += plan.damaged.len();
        outcome.damaged =
            plan.damaged.iter().map(|damaged| Damaged::put_aside(files, damaged, &known)).collect();
    }
    for remembered in Damaged::remembered(files, links) {
        if !outcome.damaged.contains(&remembered) {
            outcome.damaged.push(remembered);
        }
    }
    for Discarded { directory, id, reason } in &plan.discard {
        match id {
            Some(EndpointId(id)) => {
                tracing::info!(endpointID = id, %reason, "Unable to restore endpoint, cleaning it up");
                release(ipam, *id);
                outcome.failed += 1;
            }
            None => outcome.skipped += 1,
        }
        files.discard(directory)?;
    }
    let mut records = Vec::new();
    for Restored { directory, mut record } in plan.restore {
        if let Some(options) = options {
            record.options = OptionMap { map: options.clone() };
        }
        let id = EndpointId(record.id);
        if let Err((ip, error)) = reserve(ipam, &record) {
            tracing::warn!(endpointID = id.0, %ip, %error, "Unable to restore endpoint, cleaning it up");
            release(ipam, id.0);
            files.discard(&directory)?;
            outcome.failed += 1;
            continue;
        }
        if directory != id.to_string() {
            files.rename(&directory, id)?;
        }
        identify(identities, filter, &mut record);
        records.push(record);
        outcome.restored += 1;
    }
    // An endpoint that has a record comes before one that has none.
    outcome.damaged.iter().for_each(|damaged| damaged.reserve(ipam));
    // When all have said which numbers packets carry.
    records.iter_mut().for_each(|record| agree(identities, record));
    let rows = records.into_iter().map(|record| Endpoint::restored(record, SystemTime::now()));
    let mut txn = table.write();
    for row in rows {
        txn.insert(row);
    }
    txn.commit();
    Ok(outcome)
}

/// A renamed interface is still the endpoint's.
fn follow_name(record: &mut Record, links: &Links) {
    let same =
        |link: &Link| link.index == record.if_index && link.mac.is_some() && link.mac == record.node_mac;
    if record.has_interface()
        && !links.contains_key(&record.if_name)
        && let Some((name, _)) = links.iter().find(|(_, link)| same(link))
    {
        let (id, before, now) = (record.id, &record.if_name, name);
        tracing::info!(endpointID = id, %before, %now, "The interface of an endpoint was renamed");
        record.if_name = name.clone();
    }
}

fn reserve(ipam: &Ipam, record: &Record) -> Result<(), (std::net::IpAddr, ipam::Error)> {
    if record.datapath_configuration.external_ipam {
        return Ok(());
    }
    let owner = format!("{} [restored]", record.pod_name());
    let mut addresses = record.addresses();
    addresses.try_for_each(|ip| ipam.hand_over(ip, None, &owner, record.id).map_err(|error| (ip, error)))
}

/// Has the number of the record stay, as packets carry it; another one if the prefixes of `--labels` have changed or
/// the number cannot stay. Without any number left the record keeps what it has.
fn identify(identities: &Identities, filter: &Filter, record: &mut Record) {
    if !record.op_labels.is_reserved() {
        record.op_labels = pod::filtered(&record.op_labels, filter);
    }
    let (labels, user) = (record.op_labels.identity(), Endpoint::user(record.id));
    let id = match &record.sec_label {
        Some(label) if label.labels == labels => identities.reserve(label.id, &labels, &user),
        // The old id stays with its labels until the kernel has the new one.
        Some(label) => identities
            .reserve(label.id, &label.labels, &user)
            .and_then(|_| identities.allocate(&labels, &user)),
        None => identities.allocate(&labels, &user),
    };
    match id {
        Ok(id) => record.sec_label = Some(SecurityLabel { id, labels }),
        Err(error) => tracing::warn!(endpointID = record.id, %error, "Unable to keep an endpoint's identity"),
    }
}

/// Has records of one label set agree on one number, where damage has given them several: the smallest in use. The
/// record's old number stays with its labels until the kernel has the other one.
fn agree(identities: &Identities, record: &mut Record) {
    let Some(label) = record.sec_label.as_mut().filter(|_| !record.op_labels.is_reserved()) else { return };
    match identities.allocate(&label.labels, &Endpoint::user(record.id)) {
        Ok(id) if id != label.id => {
            let (endpoint, old) = (record.id, label.id);
            tracing::warn!(
                endpointID = endpoint,
                old,
                identity = id,
                "Labels had two identities; one of them goes"
            );
            label.id = id;
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(endpointID = record.id, %error, "Unable to keep an endpoint's identity"),
    }
}

/// Releases the reservations of an endpoint that is not restored.
fn release(ipam: &Ipam, id: u16) {
    for address in ipam.endpoint_addresses(id) {
        ipam.release_endpoint(address, id);
    }
}

/// Brings the host's endpoint up to date, or makes it: its interface and MAC address are those of `cilium_host`. Called a
/// first time before there are programs, which are to know its number, and again when the interface is there.
pub(crate) fn host(endpoints: &Endpoints, links: &Links, options: &Options) {
    let Link { index: if_index, mac, .. } = links.get(HOST_DEVICE).copied().unwrap_or_default();
    let table = endpoints.table();
    let snapshot = table.snapshot();
    let known = table.all(&snapshot).find(|endpoint| endpoint.record.is_host());
    let label: Labels = [Label::reserved("host")].into_iter().collect();
    let before = known
        .map(|endpoint| (*endpoint.record).clone())
        .unwrap_or_else(|| Record { options: OptionMap { map: options.clone() }, ..Record::default() });
    let record = Record {
        if_name: HOST_DEVICE.to_owned(),
        if_index,
        mac,
        node_mac: mac,
        op_labels: OpLabels {
            orchestration_identity: label.clone(),
            orchestration_info: label,
            ..OpLabels::default()
        },
        sec_label: Some(SecurityLabel::reserved(HOST, "host")),
        ..before
    };
    match known {
        Some(endpoint) => endpoints.change(endpoint.id(), |endpoint| endpoint.with_record(record)),
        None => endpoints.insert_own(record),
    }
}

/// The id of the host's endpoint, after [`host`].
pub(crate) fn host_id(endpoints: &Table<Endpoint>) -> Option<u16> {
    let snapshot = endpoints.snapshot();
    endpoints.all(&snapshot).map(|endpoint| &endpoint.record).find(|record| record.is_host()).map(|r| r.id)
}

/// Has all restored endpoints made again and waits until each was tried once. Returns how many there
/// were and how many failed. `applied` is which identity the kernel has for each.
pub(crate) async fn regenerate(endpoints: &Endpoints, applied: &BTreeMap<u16, u32>) -> (usize, usize) {
    let table = endpoints.table();
    let snapshot = table.snapshot();
    let now = SystemTime::now();
    let waiting: Vec<EndpointId> =
        table.all(&snapshot).filter(|e| e.state == State::Restoring).map(|e| e.id()).collect();
    endpoints.change_all(&waiting, |endpoint| {
        let applied_identity = applied.get(&endpoint.record.id).copied().unwrap_or(0);
        let endpoint = Endpoint { applied_identity, ..endpoint.clone() };
        endpoint.triggered("syncing state to host", "syncing state to host", now)
    });
    let (total, mut failed) = (waiting.len(), 0);
    for id in waiting {
        let tried = table.wait_for(Endpoint::by_id(id), |endpoint| !endpoint.status.is_pending()).await;
        failed += usize::from(tried.status.kind() == StatusKind::Error);
    }
    (total, failed)
}

/// Serves the deletions that plugins have queued. The lock is waited for, but not for ever: a plugin that holds it
/// too long must not keep all others from the agent.
pub(crate) async fn drain(endpoints: &Endpoints, queue: &DeletionQueue) -> Result<usize, StateError> {
    let deadline = tokio::time::Instant::now() + LOCK_PATIENCE;
    let lock = loop {
        match queue.try_lock() {
            Ok(Some(lock)) => break Some(lock),
            Ok(None) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(None) => {
                tracing::warn!(
                    "A CNI plugin holds the lock of the deletion queue; reading the queue without it"
                );
                break None;
            }
            Err(error) => {
                tracing::warn!(%error, "Unable to lock the CNI deletion queue; reading it without the lock");
                break None;
            }
        }
    };
    let mut served = 0;
    for queued in queue.read()? {
        match &queued.deletion {
            Some(Deletion::Container(container)) => drop(endpoints.drain(container).await),
            Some(Deletion::Endpoint(name)) => {
                let row = name.parse::<Name>().ok().and_then(|name| endpoints.find(&name));
                if let Some(row) = row.filter(|row| !row.record.op_labels.is_reserved()) {
                    endpoints.remove(row.id()).await;
                }
            }
            None => {
                tracing::warn!(path = %queued.path.display(), "Unreadable file in the CNI deletion queue")
            }
        }
        queued.served()?;
        served += 1;
    }
    drop(lock);
    Ok(served)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pairs_with_a_temporary_end_and_no_endpoint_are_unfinished() {
        let link = |index, peer| Link { index, mac: None, peer };
        let links: Links = [
            ("lxc1", link(9, 10)),
            ("tmp1", link(10, 9)),
            // Two pods whose peers, in other namespaces, happen to have each other's index.
            ("lxc2", link(11, 12)),
            ("lxc3", link(12, 11)),
            ("tmp4", link(13, 11)),
            // A pod in the node's own namespace.
            ("lxc6", link(15, 16)),
            ("tmp6", link(16, 15)),
            ("tmp5", link(14, 0)),
            ("eth0", link(2, 0)),
        ]
        .map(|(name, link)| (name.to_owned(), link))
        .into();
        let table = statedb::Db::new().table::<Endpoint>().unwrap();
        let record = Record { id: 7, if_name: "lxc6".into(), ..Record::default() };
        table.transact(|txn| txn.insert(Endpoint::restored(record, SystemTime::UNIX_EPOCH)));
        assert_eq!(unfinished(&links, &table.reader()), [("tmp1".to_owned(), 10)]);
    }
}
