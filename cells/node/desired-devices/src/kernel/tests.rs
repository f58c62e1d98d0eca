//! The operations on a kernel in memory, as many kernels have no VLAN devices.

use std::cell::RefCell;
use std::path::Path;

use statedb::{Db, RwTable};

use super::*;

thread_local! {
    /// Links by index; the kernel of the test.
    static LINKS: RefCell<Vec<(Link, Option<u16>)>> = const { RefCell::new(Vec::new()) };
}

/// A kernel in the memory of the thread. VLAN 4000 is refused.
struct Memory;

impl Kernel for Memory {
    fn open() -> Result<Self, NetlinkError> {
        Ok(Memory)
    }

    fn vlans(&mut self) -> Result<Vec<(Link, Option<u16>)>, NetlinkError> {
        Ok(LINKS.with_borrow(Clone::clone))
    }

    fn add_vlan(&mut self, name: &str, parent: u32, id: u16) -> Result<(), NetlinkError> {
        if id == 4000 {
            return Err(NetlinkError::NoLink(name.to_owned()));
        }
        LINKS.with_borrow_mut(|links| {
            let link = Link { raw_flags: IFF_UP, parent, kind: "vlan".to_owned(), ..link_after(links, name) };
            links.push((link, Some(id)));
        });
        Ok(())
    }

    fn set_up(&mut self, index: u32) -> Result<(), NetlinkError> {
        LINKS.with_borrow_mut(|links| {
            links
                .iter_mut()
                .filter(|(link, _)| link.index == index)
                .for_each(|(link, _)| link.raw_flags |= IFF_UP);
        });
        Ok(())
    }

    fn delete_link(&mut self, index: u32) -> Result<(), NetlinkError> {
        LINKS.with_borrow_mut(|links| links.retain(|(link, _)| link.index != index));
        Ok(())
    }
}

fn link_after(links: &[(Link, Option<u16>)], name: &str) -> Link {
    let index = links.iter().map(|(link, _)| link.index).max().unwrap_or(0) + 1;
    Link { index, name: name.to_owned(), ..Link::default() }
}

/// Returns name, VLAN and state of the links but the parent.
fn kernel() -> Vec<String> {
    let text = |(link, id): &(Link, Option<u16>)| {
        let state = if link.raw_flags & IFF_UP == 0 { "down" } else { "up" };
        format!("{} {} {state}", link.name, id.unwrap_or_default())
    };
    LINKS.with_borrow(|links| links[1..].iter().map(text).collect())
}

struct Fixture {
    desired: RwTable<DesiredDevice>,
    ops: KernelDevices<Memory>,
}

impl Fixture {
    fn new(log: &Path) -> Fixture {
        let desired = Db::new().table_with_display::<DesiredDevice>().unwrap();
        let ops = KernelDevices::new(desired.reader(), log.join("device-reconciler.wal"));
        Fixture { desired, ops }
    }

    fn upsert(&mut self, owner: &str, name: &str, id: u16) -> String {
        let mut row = DesiredDevice { owner: owner.into(), ..DesiredDevice::vlan(name, "eth0", id).unwrap() };
        self.desired.transact(|txn| drop(txn.insert(row.clone())));
        let snapshot = self.desired.snapshot();
        let result = self.ops.update(&OpCx::new(&snapshot, 1), &mut row);
        result.map_err(|error| error.to_string()).err().unwrap_or_default()
    }

    fn delete(&mut self, owner: &str, name: &str) {
        let row = self.desired.transact(|txn| txn.delete(DesiredDevice::by_id(owner, name))).0.unwrap();
        let snapshot = self.desired.snapshot();
        self.ops.delete(&OpCx::new(&snapshot, 1), &row).unwrap();
    }

    fn prune(&mut self) {
        let snapshot = self.desired.snapshot();
        let rows = self.desired.all(&snapshot);
        self.ops.prune(&OpCx::new(&snapshot, 1), rows).unwrap();
    }
}

#[test]
fn devices_are_created_repaired_and_deleted_and_those_of_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = Fixture::new(dir.path());
    assert!(agent.upsert("a", "d1", 1).contains("no parent device eth0"));
    for name in ["eth0", "foreign"] {
        LINKS.with_borrow_mut(|links| {
            let link = Link { kind: "dummy".to_owned(), ..link_after(links, name) };
            links.push((link, None));
        });
    }
    assert_eq!(agent.upsert("a", "d1", 1), "");
    assert!(agent.upsert("a", "foreign", 9).contains("exists already (dummy), made by another process"));
    assert_eq!(kernel(), ["foreign 0 down", "d1 1 up"]);
    // Down by hand, then another id.
    LINKS.with_borrow_mut(|links| links[2].0.raw_flags = 0);
    assert_eq!(agent.upsert("a", "d1", 1), "");
    assert_eq!(kernel(), ["foreign 0 down", "d1 1 up"]);
    assert_eq!(agent.upsert("a", "d1", 11), "");
    assert_eq!(kernel(), ["foreign 0 down", "d1 11 up"]);
    agent.delete("a", "foreign");
    agent.delete("a", "d1");
    assert_eq!(kernel(), ["foreign 0 down"], "only the own one");
    // A name that was refused is not recorded: a device of another process that has it later stays.
    assert!(!agent.upsert("a", "late", 4000).is_empty());
    LINKS.with_borrow_mut(|links| {
        let link = link_after(links, "late");
        links.push((link, None));
    });
    agent.delete("a", "late");
    assert_eq!(kernel(), ["foreign 0 down", "late 0 down"]);
}

#[test]
fn devices_of_the_previous_run_are_kept_or_pruned_by_the_log() {
    let dir = tempfile::tempdir().unwrap();
    LINKS.with_borrow_mut(|links| {
        let link = link_after(links, "eth0");
        links.push((link, None));
    });
    let mut agent = Fixture::new(dir.path());
    for (name, id) in [("d1", 1), ("d2", 2), ("d3", 3)] {
        assert_eq!(agent.upsert("a", name, id), "");
    }
    let mut agent = Fixture::new(dir.path());
    let index = LINKS.with_borrow(|links| links[1].0.index);
    assert_eq!(agent.upsert("a", "d1", 1), "");
    assert_eq!(agent.upsert("b", "d2", 22), "", "another owner takes the name over");
    assert_eq!(LINKS.with_borrow(|links| links[1].0.index), index, "the same device");
    agent.prune();
    assert_eq!(kernel(), ["d1 1 up", "d2 22 up"]);
    // The record of the previous owner does not delete the device of the next one.
    let mut agent = Fixture::new(dir.path());
    assert_eq!((agent.upsert("b", "d2", 22), agent.upsert("a", "d1", 1)), (String::new(), String::new()));
    agent.prune();
    assert_eq!(kernel(), ["d1 1 up", "d2 22 up"]);
}
