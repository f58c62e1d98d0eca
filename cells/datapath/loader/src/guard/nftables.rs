//! Rules of nftables: one marks the host's own packets, one drops packets of pods that have no endpoint yet.
//!
//! The first is the last of Cilium's rules in `CILIUM_OUTPUT`. It lives here until there is a cell for iptables, which will
//! install it with the others.

use std::io;

use datapath_abi::mark;
use netlink_sys::{Socket, SocketAddr};

use crate::endpoints::kernel::{POD_INTERFACE_DIGITS, POD_INTERFACE_PREFIX};

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
const DELETE_CHAIN: u16 = SUBSYSTEM << 8 | 5;
const DELETE_RULE: u16 = SUBSYSTEM << 8 | 8;
const DELETIONS: [u16; 3] = [DELETE_TABLE, DELETE_CHAIN, DELETE_RULE];
const DUMP: u16 = 0x300;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const ERROR: u16 = 2;
/// `EAFNOSUPPORT`.
const ADDRESS_FAMILY_UNSUPPORTED: i32 = 97;
const DONE: u16 = 3;
const UNSPEC: u8 = 0;
const INET: u8 = 1;
const NESTED: u16 = 0x8000;
const PRE_ROUTING: u32 = 0;
const LOCAL_OUT: u32 = 3;
const ACCEPT: u32 = 1;
const DROP: u32 = 0;
const REGISTER: u32 = 1;
const SECOND_REGISTER: u32 = 2;
/// `IFNAMSIZ`: a name with the zeros behind it, as it is loaded.
const INTERFACE_NAME: usize = 16;
const VERDICT_REGISTER: u32 = 0;
const META_MARK: u32 = 3;
const META_IN_NAME: u32 = 6;
const NOT_EQUAL: u32 = 1;
const META_IN_KIND: u32 = 26;
const EQUAL: u32 = 0;

/// The name of the table of all rules, of the family `inet`.
pub const RULE_TABLE: &str = "apiary";
const TABLE: &[u8] = b"apiary\0";
/// A chain with one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chain {
    /// Marks what the host makes, before the programs of cilium_host read the mark.
    ///
    /// ```text
    /// chain host-packets {
    ///     type filter hook output priority 0; policy accept;
    ///     meta mark & 0xf00 != { 0x400, 0x800, 0x900, 0xa00, 0xb00, 0xd00, 0xe00 } meta mark set meta mark & 0xfffff0ff | 0xc00
    /// }
    /// ```
    ///
    /// Marks of tunnels, proxies and encryption stay, as do the bits of others. A mark that carries an identity does not:
    /// the host's answers have it from the packet of a pod (`fwmark_reflect`).
    HostPackets,
    /// Holds back what comes from pods' interfaces without the mark of our programs.
    ///
    /// ```text
    /// chain unknown-pods {
    ///     type filter hook prerouting priority -310; policy accept;
    ///     iifname "lxc*" iifkind "veth" meta mark & 0xf00 == 0 DIGITS counter drop
    /// }
    /// ```
    ///
    /// DIGITS stands for two comparisons for each of the other 12 characters of the name: from `0` to `f`, not from `:` to
    /// `` ` ``. Veths of others, such as `lxc1234_eth0`, are not held back.
    UnknownPods,
}

/// Kinds of marks that the host's packets may have got from processes and devices of the node: those that Cilium's rule
/// leaves alone.
const KEPT_MARKS: [u32; 7] = [
    mark::OVERLAY,
    mark::SKIP_TPROXY,
    mark::PROXY_EGRESS_EPID,
    mark::PROXY_INGRESS,
    mark::PROXY_EGRESS,
    mark::DECRYPT,
    mark::ENCRYPT,
];

impl Chain {
    fn name(self) -> &'static [u8] {
        match self {
            Chain::HostPackets => b"host-packets\0",
            Chain::UnknownPods => b"unknown-pods\0",
        }
    }

    /// Words for logs.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Chain::HostPackets => "rule of nftables that marks the host's packets (table inet apiary)",
            Chain::UnknownPods => "rule of nftables against unknown pods (table inet apiary)",
        }
    }

    /// The hook of netfilter, and where in it.
    fn hook(self) -> (u32, i32) {
        match self {
            // Where Cilium's is, behind all that may set marks in `mangle` (-150) and `nat` (-100).
            Chain::HostPackets => (LOCAL_OUT, 0),
            // Before connection tracking and everybody's `raw` tables (-300).
            Chain::UnknownPods => (PRE_ROUTING, -310),
        }
    }

    fn rule(self, list: &mut Attributes) {
        match self {
            Chain::HostPackets => {
                list.meta(META_MARK);
                list.masked(mark::MAGIC_MASK, 0);
                for kept in KEPT_MARKS {
                    list.compare(NOT_EQUAL, &kept.to_ne_bytes());
                }
                list.meta(META_MARK);
                list.masked(!mark::MAGIC_MASK, mark::HOST);
                list.expression("meta", |data| {
                    data.number(2, META_MARK);
                    data.number(3, REGISTER);
                });
            }
            Chain::UnknownPods => {
                list.meta(META_IN_NAME);
                list.compare(EQUAL, POD_INTERFACE_PREFIX.as_bytes());
                list.meta(META_IN_KIND);
                list.compare(EQUAL, b"veth\0\0\0\0\0\0\0\0\0\0\0\0");
                list.meta(META_MARK);
                list.masked(mark::MAGIC_MASK, 0);
                list.compare(EQUAL, &[0; 4]);
                // Marked packets, which are nearly all, do not get here.
                list.meta(META_IN_NAME);
                let first = POD_INTERFACE_PREFIX.len();
                for position in first..first + POD_INTERFACE_DIGITS {
                    list.hexadecimal(position);
                }
                list.expression("counter", |_| {});
                list.expression("immediate", |data| {
                    data.number(1, VERDICT_REGISTER);
                    data.nested(2, |value| value.nested(2, |verdict| verdict.number(1, DROP)));
                });
            }
        }
    }

    /// Puts the rule in place, or the newest one in the place of an older: one transaction, at no moment there is none.
    pub(crate) fn install(self) -> io::Result<()> {
        let mut batch = self.emptied();
        batch.message(NEW_RULE, CREATE | APPEND | ACK, INET, |m| {
            m.attribute(1, TABLE);
            m.attribute(2, self.name());
            m.nested(4, |list| self.rule(list));
        });
        batch.commit()
    }

    /// Removes the chain that an agent with other options has left.
    pub(crate) fn remove(self) -> io::Result<()> {
        let mut batch = self.emptied();
        batch.message(DELETE_CHAIN, ACK, INET, |m| {
            m.attribute(1, TABLE);
            m.attribute(3, self.name());
        });
        batch.commit()
    }

    /// A transaction that begins with the chain, without a rule.
    fn emptied(self) -> Batch {
        let (hook, priority) = self.hook();
        let mut batch = Batch::default();
        batch.message(NEW_TABLE, CREATE, INET, |m| m.attribute(1, TABLE));
        batch.message(NEW_CHAIN, CREATE, INET, |m| {
            m.attribute(1, TABLE);
            m.attribute(3, self.name());
            m.nested(4, |data| {
                data.number(1, hook);
                data.attribute(2, &priority.to_be_bytes());
            });
            m.number(5, ACCEPT);
            m.attribute(7, b"filter\0");
        });
        batch.message(DELETE_RULE, 0, INET, |m| {
            m.attribute(1, TABLE);
            m.attribute(2, self.name());
        });
        batch
    }

    /// Whether the rule is in place, or cannot be, as the kernel has no nftables. Its expressions are not looked at.
    pub(crate) fn is_installed(self) -> io::Result<bool> {
        let mut request = Batch::default();
        let mut attributes = Attributes::default();
        attributes.attribute(1, TABLE);
        attributes.attribute(2, self.name());
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
}

/// Whether an error means that the kernel has no nftables for both families, or not all that the rules need.
pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    // The protocol, the subsystem, the family `inet`, a kind of expression.
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput | io::ErrorKind::NotFound)
        || error.raw_os_error() == Some(ADDRESS_FAMILY_UNSUPPORTED)
}

/// Removes the table with all rules.
///
/// # Errors
/// When nftables refuses, or is not there.
pub fn remove_rule() -> io::Result<()> {
    let mut batch = Batch::default();
    // Deleting needs the table to exist, making it does no harm if it does.
    batch.message(NEW_TABLE, CREATE, INET, |m| m.attribute(1, TABLE));
    batch.message(DELETE_TABLE, ACK, INET, |m| m.attribute(1, TABLE));
    batch.commit()
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

    /// Changes the four bytes that were loaded: those of the mask stay, others are those of `bits`.
    fn masked(&mut self, mask: u32, bits: u32) {
        self.expression("bitwise", |data| {
            data.number(1, REGISTER);
            data.number(2, REGISTER);
            data.number(3, 4);
            data.nested(4, |inner| inner.attribute(1, &mask.to_ne_bytes()));
            data.nested(5, |inner| inner.attribute(1, &bits.to_ne_bytes()));
        });
    }

    /// Goes on only if a character of the interface name that was loaded is a lower-case hexadecimal digit.
    fn hexadecimal(&mut self, position: usize) {
        let at = |byte| {
            let mut name = [0; INTERFACE_NAME];
            name[position] = byte;
            name
        };
        self.expression("bitwise", |data| {
            data.number(1, REGISTER);
            data.number(2, SECOND_REGISTER);
            data.number(3, INTERFACE_NAME as u32);
            data.nested(4, |mask| mask.attribute(1, &at(0xff)));
            data.nested(5, |xor| xor.attribute(1, &at(0)));
        });
        for (operator, from, to) in [(EQUAL, b'0', b'f'), (NOT_EQUAL, b'9' + 1, b'a' - 1)] {
            self.expression("range", |data| {
                data.number(1, SECOND_REGISTER);
                data.number(2, operator);
                data.nested(3, |value| value.attribute(1, &at(from)));
                data.nested(4, |value| value.attribute(1, &at(to)));
            });
        }
    }

    /// Goes on only if what was loaded begins with these bytes, or does not.
    fn compare(&mut self, operator: u32, value: &[u8]) {
        self.expression("cmp", |data| {
            data.number(1, REGISTER);
            data.number(2, operator);
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

    /// A sandbox with both rules; `None` if the kernel has no nf_tables.
    fn installed() -> Option<test_kit::Sandbox> {
        let sandbox = test_kit::Sandbox::new().unwrap();
        for chain in CHAINS {
            match chain.install() {
                Err(error) if is_unsupported(&error) => return None,
                result => result.unwrap(),
            }
        }
        Some(sandbox)
    }

    const CHAINS: [Chain; 2] = [Chain::HostPackets, Chain::UnknownPods];

    #[test]
    fn rules_replace_themselves_and_go_one_by_one() {
        test_kit::require_root!();
        let Some(_sandbox) = installed() else { test_kit::skip!("needs nf_tables in the kernel") };
        let there = || CHAINS.map(|chain| chain.is_installed().unwrap());
        assert!(has_rule().unwrap());
        assert_eq!(there(), [true, true]);
        CHAINS.iter().for_each(|chain| chain.install().unwrap());
        assert_eq!(there(), [true, true]);
        let mut socket = Socket::new(NETLINK_NETFILTER).unwrap();
        socket.bind_auto().unwrap();
        socket.add_membership(crate::watchdog::alarms::GROUP_NFTABLES).unwrap();
        socket.set_non_blocking(true).unwrap();
        let told = || {
            let ours = |(packet, _): (Vec<u8>, _)| tells_of_deletion(&packet);
            std::iter::from_fn(|| socket.recv_from_full().ok()).map(ours).fold(false, |any, ours| any | ours)
        };
        Chain::UnknownPods.remove().unwrap();
        assert_eq!(there(), [true, false]);
        assert!(told());
        Chain::UnknownPods.remove().expect("what is not there can be removed");
        remove_rule().unwrap();
        assert!(!has_rule().unwrap());
        assert_eq!(there(), [false, false]);
        assert!(told());
        remove_rule().expect("what is not there can be removed");
    }

    /// Marks of packets as they leave the host, after those that others have given them. Kernel and processes are alike.
    #[test]
    fn the_hosts_packets_get_cilium_s_mark_and_keep_those_of_others() {
        test_kit::require_root!();
        test_kit::require_command!("nft");
        let Some(sandbox) = installed() else { test_kit::skip!("needs nf_tables in the kernel") };
        // Ports and marks before; none is reflected from a packet that was answered.
        let marks = [
            (0, 0xc00),
            (0x4000, 0x4c00),
            (0xffff_f0ff, 0xffff_fcff),
            (0xc00, 0xc00),
            (0x1234_0f05, 0x1234_0c05),
            (0x200, 0xc00),
            (0x300, 0xc00),
            (0x500, 0xc00),
            (0x400, 0x400),
            (0x77_0800, 0x77_0800),
            (0x900, 0x900),
            (0x1234_0a05, 0x1234_0a05),
            (0xb00, 0xb00),
            (0xd00, 0xd00),
            (0xe00, 0xe00),
        ];
        let port = |index: usize| 1001 + index;
        let set = |(index, (before, _)): (usize, &(u32, u32))| {
            format!("udp dport {} meta mark set {before};\n", port(index))
        };
        let seen = |(index, (_, after)): (usize, &(u32, u32))| {
            format!("udp dport {} meta mark {after} counter;\n", port(index))
        };
        let set: String = marks.iter().enumerate().map(set).collect();
        let seen: String = marks.iter().enumerate().map(seen).collect();
        let rules = format!(
            "table inet test {{\nchain before {{ type filter hook output priority -150;\n{set}}}\n\
             chain after {{ type filter hook postrouting priority 0;\n{seen}\
             icmp type echo-reply meta mark 0xc00 counter;\n\
             icmpv6 type destination-unreachable meta mark 0xc00 counter;\n\
             icmpv6 type nd-neighbor-solicit meta mark 0xc00 counter;\n\
             tcp flags & rst == rst meta mark 0xc00 counter;\n\
             tcp flags & (syn | ack | rst) == (syn | ack) meta mark 0xc00 counter;\n}}\n}}\n"
        );
        let file = sandbox.dir().join("rules.nft");
        std::fs::write(&file, rules).unwrap();
        let host = sandbox.host();
        host.exec(&format!("nft -f {}", file.display())).unwrap();
        host.ip("link set lo up").unwrap();
        let outside = sandbox.netns("outside").unwrap();
        host.veth("out0", &outside, "eth0").unwrap();
        host.ip("addr add 2001:db8::1/64 dev out0 nodad").unwrap();
        host.run(|| {
            let socket = std::net::UdpSocket::bind(("::1", 0)).unwrap();
            for index in 0..marks.len() {
                // Errors of the sends before may be reported here.
                while socket.send_to(b"x", ("::1", port(index) as u16)).is_err() {}
            }
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            drop(std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            std::net::TcpStream::connect("127.0.0.1:9").unwrap_err();
            let detached_interfaces = std::net::UdpSocket::bind(("::", 0)).unwrap();
            detached_interfaces.send_to(b"x", ("2001:db8::2", 9)).unwrap();
        });
        host.exec("ping -c1 -q 127.0.0.1").unwrap();
        let counted = host.exec("nft list chain inet test after").unwrap();
        let missed: Vec<&str> = counted.lines().filter(|line| line.contains("packets 0 ")).collect();
        assert!(missed.is_empty() && counted.contains("packets 1 "), "{counted}");
    }

    #[test]
    fn a_refused_transaction_is_an_error() {
        test_kit::require_root!();
        let _sandbox = test_kit::Sandbox::new().unwrap();
        let mut batch = Batch::default();
        batch.message(NEW_RULE, CREATE | APPEND | ACK, INET, |m| {
            m.attribute(1, b"absent\0");
            m.attribute(2, Chain::HostPackets.name());
        });
        let error = batch.commit().unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
}
