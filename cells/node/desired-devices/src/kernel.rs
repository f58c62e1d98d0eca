//! The operations of the reconciler: rows to the kernel's devices, with the log in front.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use devices::{Link, Netlink, NetlinkError};
use reconciler::{OpCx, OpResult, Ops};
use statedb::{Rows, Snapshot, Table};

use crate::wal::{Key, Wal};
use crate::{DesiredDevice, Error};

/// The requests to the kernel.
pub(crate) trait Kernel: Sized + Send + 'static {
    /// Opens a socket.
    fn open() -> Result<Self, NetlinkError>;
    /// Lists all links with the ids of VLAN devices.
    fn vlans(&mut self) -> Result<Vec<(Link, Option<u16>)>, NetlinkError>;
    /// Adds a VLAN device, which is up.
    fn add_vlan(&mut self, name: &str, parent: u32, id: u16) -> Result<(), NetlinkError>;
    /// Sets a link up.
    fn set_up(&mut self, index: u32) -> Result<(), NetlinkError>;
    /// Deletes a link.
    fn delete_link(&mut self, index: u32) -> Result<(), NetlinkError>;
}

impl Kernel for Netlink {
    fn open() -> Result<Self, NetlinkError> {
        Netlink::open()
    }

    fn vlans(&mut self) -> Result<Vec<(Link, Option<u16>)>, NetlinkError> {
        Netlink::vlans(self)
    }

    fn add_vlan(&mut self, name: &str, parent: u32, id: u16) -> Result<(), NetlinkError> {
        Netlink::add_vlan(self, name, parent, id)
    }

    fn set_up(&mut self, index: u32) -> Result<(), NetlinkError> {
        self.set_link_up(index, true)
    }

    fn delete_link(&mut self, index: u32) -> Result<(), NetlinkError> {
        Netlink::delete_link(self, index)
    }
}

/// The kernel's devices as the target of the reconciler. Opens its socket and its log at the first use, on the thread of
/// the reconciler.
pub(crate) struct KernelDevices<K = Netlink> {
    desired: Table<DesiredDevice>,
    log: PathBuf,
    open: Option<Open<K>>,
}

struct Open<K> {
    kernel: K,
    wal: Wal,
}

impl<K: Kernel> KernelDevices<K> {
    pub(crate) fn new(desired: Table<DesiredDevice>, log: PathBuf) -> Self {
        Self { desired, log, open: None }
    }

    /// Runs requests on the socket. After an error answers may still be in flight: the next attempt opens another one.
    fn with(
        &mut self,
        work: impl FnOnce(&Table<DesiredDevice>, &mut Open<K>) -> Result<(), Error>,
    ) -> OpResult {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => Open { kernel: K::open().map_err(Error::from)?, wal: Wal::open(&self.log)? },
        };
        work(&self.desired, &mut open)?;
        self.open = Some(open);
        Ok(())
    }
}

impl<K: Kernel> Open<K> {
    fn write(&mut self, row: &mut DesiredDevice) -> Result<(), Error> {
        let links = self.kernel.vlans()?;
        let find = |name: &str| links.iter().find(|(link, _)| link.name == name);
        let Some((parent, _)) = find(&row.vlan.parent) else {
            return Err(Error::NoParent { name: row.name.clone(), parent: row.vlan.parent.clone() });
        };
        row.vlan.parent_index = parent.index;
        let key = key_of(row);
        if let Some((link, id)) = find(&row.name) {
            if !self.wal.keys().iter().any(|key| key.name == row.name) {
                return Err(Error::Foreign { name: row.name.clone(), kind: link.kind.clone() });
            }
            self.wal.insert([key.clone()])?;
            if link.parent == parent.index && *id == Some(row.vlan.id) {
                return self.set_up(link);
            }
            self.kernel.delete_link(link.index)?;
        }
        self.wal.insert([key.clone()])?;
        if let Err(error) = self.kernel.add_vlan(&row.name, parent.index, row.vlan.id) {
            // A name without a device of this agent is not its to replace or to delete.
            self.wal.remove([key])?;
            return Err(error.into());
        }
        Ok(())
    }

    fn set_up(&mut self, link: &Link) -> Result<(), Error> {
        if link.raw_flags & IFF_UP == 0 {
            self.kernel.set_up(link.index)?;
        }
        Ok(())
    }

    /// Deletes the device of a name, if it is there.
    fn delete(&mut self, name: &str) -> Result<(), Error> {
        let links = self.kernel.vlans()?;
        let Some((link, _)) = links.iter().find(|(link, _)| link.name == name) else { return Ok(()) };
        match self.kernel.delete_link(link.index) {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// `IFF_UP` of `linux/if.h`.
const IFF_UP: u32 = 0x1;

fn is_desired(desired: &Table<DesiredDevice>, snapshot: &Snapshot, name: &str) -> bool {
    desired.get(snapshot, DesiredDevice::by_name(name)).is_some()
}

fn key_of(row: &DesiredDevice) -> Key {
    Key { owner: Arc::clone(&row.owner), name: Arc::clone(&row.name) }
}

impl<K: Kernel> Ops<DesiredDevice> for KernelDevices<K> {
    fn update(&mut self, _: &OpCx<'_>, row: &mut DesiredDevice) -> OpResult {
        self.with(|_, open| open.write(row))
    }

    fn delete(&mut self, cx: &OpCx<'_>, row: &DesiredDevice) -> OpResult {
        self.with(|desired, open| {
            let key = key_of(row);
            if open.wal.keys().contains(&key) && !is_desired(desired, cx.snapshot, &row.name) {
                open.delete(&row.name)?;
            }
            // Another owner of the name inserts its own record when it is written.
            if !is_desired(desired, cx.snapshot, &row.name) {
                open.wal.remove([key])?;
            }
            Ok(())
        })
    }

    fn prune(&mut self, cx: &OpCx<'_>, _: Rows<'_, DesiredDevice>) -> OpResult {
        self.with(|desired, open| {
            let is_stale = |owner: &str, name: &str| {
                desired.get(cx.snapshot, DesiredDevice::by_id(owner, name)).is_none()
            };
            let stale = open.wal.keys().iter().filter(|key| is_stale(&key.owner, &key.name)).cloned();
            for key in stale.collect::<BTreeSet<_>>() {
                if !is_desired(desired, cx.snapshot, &key.name) {
                    open.delete(&key.name)?;
                    tracing::info!(device = %key.name, owner = %key.owner, "Deleted a device that is not desired any more");
                }
                open.wal.remove([key])?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
