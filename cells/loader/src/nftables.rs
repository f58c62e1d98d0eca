//! The one rule of nftables: it holds back pods that nobody has announced.

use std::io;

use netlink_sys::{Socket, SocketAddr};

use crate::kernel::POD_INTERFACE_PREFIX;

// Numbers of linux/netfilter/nfnetlink.h and nf_tables.h.
pub(crate) const NETLINK_NETFILTER: isize = 12;
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const GET_RULE: u16 = SUBSYSTEM << 8 | 7;
const DELETIONS: [u16; 3] = [DELETE_TABLE, SUBSYSTEM << 8 | 5, SUBSYSTEM << 8 | 8];
const DUMP: u16 = 0x300;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const ERROR: u16 = 2;
const DONE: u16 = 3;
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
    match request.answer() {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported) => Ok(false),
        // No nf_tables: the subsystem is unknown, or the whole protocol.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether the rule itself is in place, or cannot be, as the kernel has no nftables. Its expressions are not looked at.
pub(crate) fn is_installed() -> io::Result<bool> {
    let mut request = Batch::default();
    let mut attributes = Attributes::default();
    attributes.attribute(1, TABLE);
    attributes.attribute(2, CHAIN);
    request.raw(GET_RULE, REQUEST | DUMP, INET, 0, &attributes.0);
    let socket = match request.send() {
        Err(e) if e.kind() == io::ErrorKind::Unsupported => return Ok(true),
        socket => socket?,
    };
    let mut found = false;
    loop {
        let (answer, _) = socket.recv_from_full()?;
        for (kind, message) in messages(&answer) {
            match kind {
                NEW_RULE => found = true,
                DONE => return Ok(found),
                ERROR => {
                    return match io::Error::from_raw_os_error(errno(message)) {
                        // The subsystem is unknown.
                        e if e.kind() == io::ErrorKind::InvalidInput => Ok(true),
                        e => Err(e),
                    };
                }
                _ => {}
            }
        }
    }
}

/// Whether a notification tells that something of ours was deleted.
pub(crate) fn tells_of_deletion(notification: &[u8]) -> bool {
    messages(notification).any(|(kind, message)| {
        DELETIONS.contains(&kind) && message.windows(TABLE.len()).any(|name| name == TABLE)
    })
}

/// Types and bytes, with their headers, of the messages of a packet.
pub(crate) fn messages(packet: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = packet;
    std::iter::from_fn(move || {
        let head = rest.get(..6)?;
        let length = u32::from_ne_bytes(head[..4].try_into().ok()?) as usize;
        let message = rest.get(..length).filter(|_| length >= 16)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([head[4], head[5]]), message))
    })
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

    /// Sends it by a socket of its own. The kernel has answered when this returns: reading waits for nothing.
    fn send(&self) -> io::Result<Socket> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_non_blocking(true)?;
        socket.send(&self.bytes, 0)?;
        Ok(socket)
    }

    /// Sends it; the kernel has done it, or refused it, before the answer can be read.
    fn commit(mut self) -> io::Result<()> {
        self.raw(BATCH_END, REQUEST, UNSPEC, SUBSYSTEM, &[]);
        self.answer()
    }

    /// Sends the messages and reads the first answer.
    fn answer(&self) -> io::Result<()> {
        let (answer, _) = self.send()?.recv_from_full()?;
        match messages(&answer).next() {
            Some((ERROR, message)) => match errno(message) {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            },
            Some((NEW_TABLE, _)) => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not an answer of nftables")),
        }
    }
}

/// The error number in an acknowledgement, 0 for none.
fn errno(message: &[u8]) -> i32 {
    let bytes = message.get(16..20).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, |bytes| -i32::from_ne_bytes(bytes))
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
        assert!(has_rule().unwrap() && is_installed().unwrap());
        install_rule().unwrap();
        assert!(is_installed().unwrap());
        let mut socket = Socket::new(NETLINK_NETFILTER).unwrap();
        socket.bind_auto().unwrap();
        socket.add_membership(crate::alarms::GROUP_NFTABLES).unwrap();
        remove_rule().unwrap();
        assert!(!has_rule().unwrap() && !is_installed().unwrap());
        socket.set_non_blocking(true).unwrap();
        let told = |(packet, _): (Vec<u8>, _)| tells_of_deletion(&packet);
        assert!(std::iter::from_fn(|| socket.recv_from_full().ok()).any(told));
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
