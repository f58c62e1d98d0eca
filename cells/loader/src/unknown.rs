//! Pods that nobody has announced: what they send goes nowhere, from their interface's first moment on.
//!
//! A foreign CNI plugin switches a pod's link on before the agent hears of the endpoint. Two things stand in the way of
//! its packets: the program that [`guard`] attaches as soon as the interface is seen, which drops with 203, and until
//! then a rule of nftables in the way of every packet that the host's stack gets from such an interface without the
//! mark that our programs give. The rule needs no interface to exist, so there is no moment before it.

use std::io;
use std::sync::Arc;

use devices::Device;
use hive::JobCx;
use netlink_sys::{Socket, SocketAddr};
use statedb::Table;

use crate::error::DatapathError;
use crate::kernel::{KernelDatapath, POD_INTERFACE_PREFIX, is_pod_interface};

/// Attaches the program to pods' interfaces as they appear.
pub(crate) async fn guard(
    datapath: Arc<KernelDatapath>,
    devices: Arc<Table<Device>>,
    cx: JobCx,
) -> anyhow::Result<()> {
    let mut changes = devices.changes();
    loop {
        let batch = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            batch = changes.next() => batch,
        };
        let new = batch.iter().filter(|change| !change.deleted && is_pod_interface(&change.object.link));
        let new: Vec<(u32, String)> = new.map(|c| (c.object.index, c.object.name.clone())).collect();
        if new.is_empty() {
            continue;
        }
        let guarding = datapath.clone();
        let results: Vec<Result<bool, DatapathError>> = tokio::task::spawn_blocking(move || {
            new.iter().map(|(ifindex, name)| guarding.guard(*ifindex, name)).collect()
        })
        .await?;
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "Could not guard an interface");
        }
    }
}

// Numbers of linux/netfilter/nfnetlink.h and nf_tables.h.
const NETLINK_NETFILTER: isize = 12;
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const ERROR: u16 = 2;
const UNSPEC: u8 = 0;
const INET: u8 = 1;
const NESTED: u16 = 0x8000;
const PRE_ROUTING: u32 = 0;
/// Before connection tracking and everybody's `raw` tables (-300).
const PRIORITY: i32 = -310;
const ACCEPT: u32 = 1;
const DROP: u32 = 0;
const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;
const META_MARK: u32 = 3;
const META_IN_NAME: u32 = 6;
const META_IN_KIND: u32 = 26;
const EQUAL: u32 = 0;

/// The name of the rule's table, of the family `inet`.
pub const RULE_TABLE: &str = "apiary";
const TABLE: &[u8] = b"apiary\0";
const CHAIN: &[u8] = b"unknown-pods\0";

/// Puts the rule in place, or the newest one in the place of an older: one transaction.
///
/// ```text
/// table inet apiary { chain unknown-pods {
///     type filter hook prerouting priority -310; policy accept;
///     iifname "lxc*" iifkind "veth" meta mark & 0xf00 == 0 counter drop
/// } }
/// ```
pub(crate) fn install_rule() -> io::Result<()> {
    let mut batch = without_table(0);
    batch.message(NEW_TABLE, CREATE, INET, |m| m.attribute(1, TABLE));
    batch.message(NEW_CHAIN, CREATE, INET, |m| {
        m.attribute(1, TABLE);
        m.attribute(3, CHAIN);
        m.nested(4, |hook| {
            hook.number(1, PRE_ROUTING);
            hook.attribute(2, &PRIORITY.to_be_bytes());
        });
        m.number(5, ACCEPT);
        m.attribute(7, b"filter\0");
    });
    batch.message(NEW_RULE, CREATE | APPEND | ACK, INET, |m| {
        m.attribute(1, TABLE);
        m.attribute(2, CHAIN);
        m.nested(4, |list| {
            list.meta(META_IN_NAME);
            list.equals(POD_INTERFACE_PREFIX.as_bytes());
            list.meta(META_IN_KIND);
            list.equals(b"veth\0\0\0\0\0\0\0\0\0\0\0\0");
            list.meta(META_MARK);
            list.expression("bitwise", |data| {
                data.number(1, REGISTER);
                data.number(2, REGISTER);
                data.number(3, 4);
                data.nested(4, |mask| mask.attribute(1, &datapath_abi::mark::MAGIC_MASK.to_ne_bytes()));
                data.nested(5, |xor| xor.attribute(1, &[0; 4]));
            });
            list.equals(&[0; 4]);
            list.expression("counter", |_| {});
            list.expression("immediate", |data| {
                data.number(1, VERDICT_REGISTER);
                data.nested(2, |value| value.nested(2, |verdict| verdict.number(1, DROP)));
            });
        });
    });
    batch.commit()
}

/// Takes the rule away that an agent with other options has left.
///
/// # Errors
/// When nftables refuses, or is not there.
pub fn remove_rule() -> io::Result<()> {
    without_table(ACK).commit()
}

/// Whether the rule's table is there. A kernel without nftables has none.
///
/// # Errors
/// When nftables answers otherwise.
pub fn has_rule() -> io::Result<bool> {
    let mut request = Batch::default();
    let mut table = Attributes::default();
    table.attribute(1, TABLE);
    request.raw(GET_TABLE, REQUEST | ACK, INET, 0, &table.0);
    match request.send() {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported) => Ok(false),
        // No nf_tables: the subsystem is unknown, or the whole protocol.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput) => Ok(false),
        Err(e) => Err(e),
    }
}

/// A transaction that begins without our table; `flags` are those of its deletion.
fn without_table(flags: u16) -> Batch {
    let mut batch = Batch::default();
    // Deleting needs the table to exist, making it does no harm if it does.
    batch.message(NEW_TABLE, CREATE, INET, |m| m.attribute(1, TABLE));
    batch.message(DELETE_TABLE, flags, INET, |m| m.attribute(1, TABLE));
    batch
}

/// Attributes of a message.
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes)) {
        let mut inner = Attributes::default();
        fill(&mut inner);
        self.attribute(kind | NESTED, &inner.0);
    }

    /// One expression of a rule's list.
    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Attributes)) {
        self.nested(1, |expression| {
            expression.attribute(1, &[name.as_bytes(), b"\0"].concat());
            expression.nested(2, fill);
        });
    }

    /// Loads a property of the packet.
    fn meta(&mut self, key: u32) {
        self.expression("meta", |data| {
            data.number(1, REGISTER);
            data.number(2, key);
        });
    }

    /// Goes on only if what was loaded begins with these bytes.
    fn equals(&mut self, value: &[u8]) {
        self.expression("cmp", |data| {
            data.number(1, REGISTER);
            data.number(2, EQUAL);
            data.nested(3, |inner| inner.attribute(1, value));
        });
    }
}

/// Messages that take effect together or not at all.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
}

impl Batch {
    fn message(&mut self, kind: u16, flags: u16, family: u8, fill: impl FnOnce(&mut Attributes)) {
        let mut attributes = Attributes::default();
        fill(&mut attributes);
        if self.sequence == 0 {
            self.raw(BATCH_BEGIN, REQUEST, UNSPEC, SUBSYSTEM, &[]);
        }
        self.raw(kind, REQUEST | flags, family, 0, &attributes.0);
    }

    fn raw(&mut self, kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) {
        self.sequence += 1;
        let length = u32::try_from(20 + attributes.len()).unwrap_or(u32::MAX);
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        self.bytes.extend(attributes);
    }

    /// Sends it; the kernel has done it, or refused it, before the answer can be read.
    fn commit(mut self) -> io::Result<()> {
        self.raw(BATCH_END, REQUEST, UNSPEC, SUBSYSTEM, &[]);
        self.send()
    }

    /// Sends the messages and reads the first answer.
    fn send(&self) -> io::Result<()> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_non_blocking(true)?;
        socket.send(&self.bytes, 0)?;
        let (answer, _) = socket.recv_from_full()?;
        let word = |at: usize| {
            answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes)
        };
        let kind = answer.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
        match (kind, word(16)) {
            (Some(ERROR), Some(0)) => Ok(()),
            (Some(ERROR), Some(errno)) => Err(io::Error::from_raw_os_error(-errno)),
            (Some(NEW_TABLE), _) => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not an answer of nftables")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_replaces_itself() {
        test_kit::require_root!();
        let _sandbox = test_kit::Sandbox::new().unwrap();
        if let Err(error) = install_rule()
            && matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::NotFound)
        {
            test_kit::skip!("needs nf_tables in the kernel: {error}");
        }
        install_rule().unwrap();
        assert!(has_rule().unwrap());
        remove_rule().unwrap();
        assert!(!has_rule().unwrap());
        remove_rule().expect("what is not there can be removed");
    }

    #[test]
    fn a_refused_transaction_is_an_error() {
        test_kit::require_root!();
        let _sandbox = test_kit::Sandbox::new().unwrap();
        let mut batch = Batch::default();
        batch.message(NEW_RULE, CREATE | APPEND | ACK, INET, |m| {
            m.attribute(1, b"absent\0");
            m.attribute(2, CHAIN);
        });
        let error = batch.commit().unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
}
