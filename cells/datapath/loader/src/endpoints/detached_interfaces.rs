//! Pods' interfaces that went away under their endpoint: deleted, or moved into another namespace.
//!
//! The number of an interface can be another one's a moment later, so an endpoint whose interface is gone must not answer
//! for the number any more, also not after a restart. An interface that comes back as it was is the endpoint's again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use datapath_abi::{EndpointConfig, ep_flag, mac_from_word};
use devices::{Link, Netlink};

use crate::endpoints::kernel::KernelDatapath;
use datapath_api::{DatapathError, Step};

/// Endpoints whose interface is away, by its number.
#[derive(Debug, Default)]
pub(crate) struct DetachedInterfaces(Mutex<BTreeMap<u32, u16>>);

impl DetachedInterfaces {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u32, u16>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoint itself is gone, or has another interface.
    pub(crate) fn forget(&self, id: u16) {
        self.all().retain(|_, endpoint| *endpoint != id);
    }
}

impl KernelDatapath {
    /// An interface of that number has gone, or another has its place: gives the endpoint that it was, which is not live
    /// any more.
    pub(crate) fn interface_gone(
        &self,
        nl: &mut Netlink,
        ifindex: u32,
    ) -> Result<Option<u16>, DatapathError> {
        let Some(id) = self.endpoint_at(ifindex)?.and_then(|id| u16::try_from(id).ok()) else {
            return Ok(None);
        };
        let _changing = self.change(id);
        let row = self.row(id);
        // Somebody may have made an endpoint of the next one with that number meanwhile.
        let next = match nl.link_by_index(ifindex) {
            Err(error) if error.is_not_found() => None,
            link => Some(link?),
        };
        if row.ifindex != ifindex || next.is_some_and(|link| may_be(&row, &link)) {
            return Ok(None);
        }
        self.retire(id, &row)?;
        Ok(Some(id))
    }

    /// Makes an endpoint answer for its interface no more.
    pub(crate) fn retire(&self, id: u16, row: &EndpointConfig) -> Result<(), DatapathError> {
        self.remove_interface(row.ifindex, id)?;
        let row = EndpointConfig { flags: row.flags & !ep_flag::LIVE, ..*row };
        let step = || format!("endpoint {id}: its interface is gone");
        self.write_row(id, &row).step(step)?;
        self.detached_interfaces().all().insert(row.ifindex, id);
        Ok(())
    }

    /// An interface has appeared: gives the endpoint that it was before it went away, which is live again once the program
    /// is on it.
    pub(crate) fn interface_back(&self, link: &Link) -> Result<Option<u16>, DatapathError> {
        let Some(id) = self.detached_interfaces().all().get(&link.index).copied() else { return Ok(None) };
        let _changing = self.change(id);
        let row = self.row(id);
        if row.id != u32::from(id) || row.ifindex != link.index || !is(&row, link) {
            return Ok(None);
        }
        self.detached_interfaces().forget(id);
        let row = EndpointConfig { flags: row.flags | ep_flag::LIVE, ..row };
        let step = || format!("endpoint {id}: its interface is back");
        self.write_row(id, &row).step(step)?;
        self.write_interface(link.index, id)?;
        Ok(Some(id))
    }

    /// The endpoint that packets from an interface are.
    pub(crate) fn endpoint_at(&self, ifindex: u32) -> Result<Option<u32>, DatapathError> {
        let id = self.by_interface(ifindex).lookup(&ifindex);
        let id = id.step(|| format!("look for the endpoint of interface {ifindex}"))?;
        Ok(id.filter(|id| *id != 0))
    }
}

/// Whether the link has the address that the endpoint's has.
fn is(row: &EndpointConfig, link: &Link) -> bool {
    row.node_mac != 0 && link.hardware_addr.octets() == mac_from_word(row.node_mac)
}

/// Whether the link may be the endpoint's, as far as anybody has said what that looks like.
fn may_be(row: &EndpointConfig, link: &Link) -> bool {
    row.node_mac == 0 || is(row, link)
}
