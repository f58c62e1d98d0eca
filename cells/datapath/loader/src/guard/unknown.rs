//! Guards interfaces of pods that are not announced: their packets are dropped from the creation of the interface on.
//!
//! Another CNI plugin sets a pod's link up before the agent is notified of the endpoint. Two mechanisms drop its
//! packets: the program that [`guard`] attaches as soon as it sees the interface (reason 203), and until then a rule of
//! nftables for every packet from such an interface without the mark of the programs. The rule exists before the
//! interface, so no packet precedes it.
//!
//! Both select by the names that CNI plugins use, as nothing else distinguishes a pod's interface from another veth
//! before it is announced. Another program's veth with such a name is guarded like a pod's.
//!
//! The same events report endpoints' interfaces that go away or come back (`endpoints::detached_interfaces`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use devices::{Device, HardwareAddr, Link, Netlink};
use hive::JobCx;
use statedb::Table;

use crate::endpoints::detached_interfaces::{interface_back, interface_gone};
use crate::endpoints::kernel::KernelDatapath;
use crate::endpoints::pod_interface::is_pod_interface;
use datapath_api::DatapathError;

/// The delay before failed events are handled again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A change of an interface.
#[derive(Clone, Debug)]
enum Event {
    /// The interface was deleted.
    Gone,
    /// The interface was created or changed.
    Here(Link),
    /// Another interface has its index.
    Replaced(Link),
}

/// Attaches the program to pods' interfaces as they appear, and follows endpoints' interfaces that go and come back.
pub(crate) async fn guard(
    datapath: Arc<KernelDatapath>,
    devices: Arc<Table<Device>>,
    cx: JobCx,
) -> anyhow::Result<()> {
    let mut changes = devices.changes();
    let mut known: BTreeMap<u32, (String, HardwareAddr)> = BTreeMap::new();
    let mut failed: BTreeMap<u32, Event> = BTreeMap::new();
    loop {
        let mut events = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = tokio::time::sleep(RETRY_INTERVAL), if !failed.is_empty() => BTreeMap::new(),
            batch = changes.next() => batch
                .iter()
                .map(|change| (change.object.index, event(&mut known, &change.object.link, change.deleted)))
                .filter_map(|(index, event)| Some((index, event?)))
                .collect(),
        };
        for (index, event) in std::mem::take(&mut failed) {
            events.entry(index).or_insert(event);
        }
        if events.is_empty() {
            continue;
        }
        let _working = cx.working();
        let guarding = datapath.clone();
        let results: Vec<(u32, Event, Result<(), DatapathError>)> =
            hive::blocking(move || handle_all(&guarding, events)).await;
        let mut last = None;
        for (index, event, result) in results {
            if let Err(error) = result {
                failed.insert(index, event);
                last = Some(error);
            }
        }
        match last {
            None => cx.health.ok(format!("{} interfaces that may be of pods", known.len())),
            Some(error) => {
                let message = format!("{} interfaces of pods could not be guarded", failed.len());
                if cx.health.degraded_anew(message, &error) {
                    tracing::warn!(%error, count = failed.len(), "Could not guard interfaces of pods, trying again");
                }
            }
        }
    }
}

/// Returns the event of a change in the table of devices; `None` for links that are no veth. Veths of any name count,
/// as announced endpoints may have them. A link with both another name and another address than before is another
/// interface: the kernel reused the index before the deletion was seen.
fn event(known: &mut BTreeMap<u32, (String, HardwareAddr)>, link: &Link, deleted: bool) -> Option<Event> {
    let index = link.index;
    if deleted {
        return known.remove(&index).map(|_| Event::Gone);
    }
    let before = known.remove(&index);
    let other = before.is_some_and(|(name, mac)| name != link.name && mac != link.hardware_addr);
    let veth = link.kind == "veth";
    if veth {
        known.insert(index, (link.name.clone(), link.hardware_addr.clone()));
    }
    match (other, veth) {
        (true, _) => Some(Event::Replaced(link.clone())),
        (false, true) => Some(Event::Here(link.clone())),
        (false, false) => None,
    }
}

fn handle_all(
    datapath: &KernelDatapath,
    events: BTreeMap<u32, Event>,
) -> Vec<(u32, Event, Result<(), DatapathError>)> {
    let mut results = Vec::new();
    for (index, event) in events {
        let result = handle(datapath, index, &event);
        results.push((index, event, result));
    }
    results
}

fn handle(datapath: &KernelDatapath, index: u32, event: &Event) -> Result<(), DatapathError> {
    if let Event::Gone | Event::Replaced(_) = event
        && let Some(id) = interface_gone(datapath.table(), &mut Netlink::open()?, index)?
    {
        tracing::debug!(endpointID = id, index, "The interface of an endpoint has gone");
    }
    if let Event::Here(link) | Event::Replaced(link) = event {
        if is_pod_interface(link) {
            datapath.guard(index, &link.name)?;
        }
        if let Some(id) = interface_back(datapath.table(), link)? {
            tracing::info!(endpointID = id, interface = %link.name, "The interface of an endpoint is back");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_cni_plugins_are_names_of_pods() {
        let is_pod = |name: &str| is_pod_interface(&link(1, name, 1));
        for name in ["lxc66da2a01a005", "lxc000000000000", "lxcabcdefabcdef"] {
            assert!(is_pod(name), "{name}");
        }
        for name in [
            "lxc",
            "lxcbr0",
            "lxc1234_eth0",
            "lxc66da2a01a00",
            "lxc66da2a01a00g",
            "lxc66DA2A01A005",
            "lxc_health",
        ] {
            assert!(!is_pod(name), "{name}");
        }
        assert!(!is_pod_interface(&Link { kind: "bridge".to_owned(), ..link(1, "lxc66da2a01a005", 1) }));
    }

    fn link(index: u32, name: &str, mac: u8) -> Link {
        Link {
            index,
            name: name.to_owned(),
            kind: if name.starts_with("eth") { "dummy" } else { "veth" }.to_owned(),
            hardware_addr: HardwareAddr::new(&[2, 0, 0, 0, 0, mac]),
            ..Link::default()
        }
    }

    #[test]
    fn a_replaced_interface_is_distinguished_from_a_renamed_one() {
        let mut known = BTreeMap::new();
        let mut event = |link: &Link, deleted| event(&mut known, link, deleted);
        assert!(matches!(event(&link(7, "lxca", 1), false), Some(Event::Here(_))));
        assert!(matches!(event(&link(7, "lxcb", 1), false), Some(Event::Here(_))));
        assert!(matches!(event(&link(7, "lxcb", 2), false), Some(Event::Here(_))));
        assert!(matches!(event(&link(7, "lxcc", 3), false), Some(Event::Replaced(_))));
        assert!(matches!(event(&link(7, "eth1", 4), false), Some(Event::Replaced(_))));
        assert!(event(&link(7, "eth1", 4), true).is_none(), "not a pod's");
        assert!(event(&link(8, "eth1", 4), false).is_none());
        assert!(matches!(event(&link(7, "lxca", 1), false), Some(Event::Here(_))));
        assert!(matches!(event(&link(7, "host0", 1), false), Some(Event::Here(_))), "still the pod's");
        assert!(matches!(event(&link(7, "host0", 1), true), Some(Event::Gone)));
    }
}
