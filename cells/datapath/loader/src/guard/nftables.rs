//! Rules of nftables: one marks the host's own packets, one drops packets of pods that have no endpoint yet.
//!
//! The first is the last of Cilium's rules in `CILIUM_OUTPUT`. It is installed while that rule of iptables is not
//! (`host_mark`): between programs and iptables at a start, and with `install-iptables-rules=false`.

use std::io;

use datapath_abi::mark;
use netlink::{Attributes, Body, Connection, Message, Protocol, Request, nfnetlink};
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};

use crate::endpoints::pod_interface::{POD_INTERFACE_DIGITS, POD_INTERFACE_PREFIX};

/// The subsystem and its messages (`linux/netfilter/nfnetlink.h`, `nf_tables.h`).
const NF_TABLES: u8 = libc::NFNL_SUBSYS_NFTABLES as u8;
const NEW_TABLE: u8 = libc::NFT_MSG_NEWTABLE as u8;
const GET_TABLE: u8 = libc::NFT_MSG_GETTABLE as u8;
const DELETE_TABLE: u8 = libc::NFT_MSG_DELTABLE as u8;
const NEW_CHAIN: u8 = libc::NFT_MSG_NEWCHAIN as u8;
const DELETE_CHAIN: u8 = libc::NFT_MSG_DELCHAIN as u8;
const NEW_RULE: u8 = libc::NFT_MSG_NEWRULE as u8;
const GET_RULE: u8 = libc::NFT_MSG_GETRULE as u8;
const DELETE_RULE: u8 = libc::NFT_MSG_DELRULE as u8;
/// Notifications of deletions; in all three the same attribute names the table.
const DELETIONS: [u16; 3] = [
    nfnetlink::kind(NF_TABLES, DELETE_TABLE),
    nfnetlink::kind(NF_TABLES, DELETE_CHAIN),
    nfnetlink::kind(NF_TABLES, DELETE_RULE),
];
/// The family of tables for IPv4 and IPv6 (`linux/netfilter.h`).
const INET: u8 = libc::NFPROTO_INET as u8;
/// Bytes of `struct nfgenmsg`, which precedes the attributes.
const NFGENMSG_LEN: usize = 4;
/// The verdicts of `linux/netfilter.h` as attribute values.
const NF_DROP: u32 = libc::NF_DROP as u32;
const NF_ACCEPT: u32 = libc::NF_ACCEPT as u32;

/// The register for properties of a packet, and one for results (`NFT_REG_*`).
const REGISTER: u32 = libc::NFT_REG_1 as u32;
const SECOND_REGISTER: u32 = libc::NFT_REG_2 as u32;
const VERDICT_REGISTER: u32 = libc::NFT_REG_VERDICT as u32;
/// Properties of a packet: its mark, the name and the kind of the interface that it came from (`NFT_META_*`).
const META_MARK: u32 = libc::NFT_META_MARK as u32;
const META_INPUT_NAME: u32 = libc::NFT_META_IIFNAME as u32;
const META_INPUT_KIND: u32 = 26; // NFT_META_IIFKIND, which libc does not have
/// Comparisons of `cmp` (`NFT_CMP_*`), which `range` numbers alike (`NFT_RANGE_*`).
const EQUAL: u32 = libc::NFT_CMP_EQ as u32;
const NOT_EQUAL: u32 = libc::NFT_CMP_NEQ as u32;
/// `IFNAMSIZ`: a name or kind with the zeros behind it, as it is loaded.
const NAME_LEN: usize = libc::IFNAMSIZ;

// Attributes of linux/netfilter/nf_tables.h, by the object that they belong to.
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_META_SREG: u16 = 3;
const NFTA_BITWISE_SREG: u16 = 1;
const NFTA_BITWISE_DREG: u16 = 2;
const NFTA_BITWISE_LEN: u16 = 3;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_RANGE_SREG: u16 = 1;
const NFTA_RANGE_OP: u16 = 2;
const NFTA_RANGE_FROM_DATA: u16 = 3;
const NFTA_RANGE_TO_DATA: u16 = 4;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;

/// The name of the table of all rules, of the family `inet`.
pub const RULE_TABLE: &str = "apiary";

/// A chain with one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chain {
    /// Marks packets that the host generates, before the programs of cilium_host read the mark.
    ///
    /// ```text
    /// chain host-packets {
    ///     type filter hook output priority 0; policy accept;
    ///     meta mark & 0xf00 != { 0x400, 0x800, 0x900, 0xa00, 0xb00, 0xd00, 0xe00 } meta mark set meta mark &
    /// 0xfffff0ff | 0xc00 }
    /// ```
    ///
    /// Marks of tunnels, proxies and encryption stay, as do all bits outside of the mask. A mark that carries an
    /// identity is replaced: the host's replies inherit it from the packet of a pod (`fwmark_reflect`).
    HostPackets,
    /// Drops packets from pods' interfaces without the mark of our programs.
    ///
    /// ```text
    /// chain unknown-pods {
    ///     type filter hook prerouting priority -310; policy accept;
    ///     iifname "lxc*" iifkind "veth" meta mark & 0xf00 == 0 DIGITS counter drop
    /// }
    /// ```
    ///
    /// DIGITS stands for two comparisons for each of the other 12 characters of the name: from `0` to `f`, not from `:`
    /// to
    /// `` ` ``. Packets from other veths, such as `lxc1234_eth0`, are not dropped.
    UnknownPods,
}

/// Kinds of marks that processes and devices of the node may have set on the host's packets: those that Cilium's rule
/// keeps.
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
    fn name(self) -> &'static str {
        match self {
            Chain::HostPackets => "host-packets",
            Chain::UnknownPods => "unknown-pods",
        }
    }

    /// Returns its description for logs.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Chain::HostPackets => "rule of nftables that marks the host's packets (table inet apiary)",
            Chain::UnknownPods => "rule of nftables against unknown pods (table inet apiary)",
        }
    }

    /// Returns the hook of netfilter and the priority in it.
    fn hook(self) -> (i32, i32) {
        match self {
            // As Cilium's rule, after all chains that may set marks in `mangle` (-150) and `nat` (-100).
            Chain::HostPackets => (libc::NF_INET_LOCAL_OUT, 0),
            // Before connection tracking (-200) and all `raw` tables (-300).
            Chain::UnknownPods => (libc::NF_INET_PRE_ROUTING, -310),
        }
    }

    /// Appends the expressions of its rule.
    fn expressions(self, list: &mut Body) {
        match self {
            Chain::HostPackets => {
                load(list, META_MARK);
                mask(list, mark::MAGIC_MASK, 0);
                for kept in KEPT_MARKS {
                    compare(list, NOT_EQUAL, &kept.to_ne_bytes());
                }
                load(list, META_MARK);
                mask(list, !mark::MAGIC_MASK, mark::HOST);
                expression(list, "meta", |data| {
                    data.u32_be(NFTA_META_KEY, META_MARK).u32_be(NFTA_META_SREG, REGISTER);
                });
            }
            Chain::UnknownPods => {
                load(list, META_INPUT_NAME);
                compare(list, EQUAL, POD_INTERFACE_PREFIX.as_bytes());
                load(list, META_INPUT_KIND);
                compare(list, EQUAL, &padded(0, b"veth"));
                load(list, META_MARK);
                mask(list, mark::MAGIC_MASK, 0);
                compare(list, EQUAL, &[0; 4]);
                // Marked packets, which are nearly all, have left the rule before this point.
                load(list, META_INPUT_NAME);
                let first = POD_INTERFACE_PREFIX.len();
                for position in first..first + POD_INTERFACE_DIGITS {
                    compare_hexadecimal(list, position);
                }
                expression(list, "counter", |_| {});
                expression(list, "immediate", |data| {
                    data.u32_be(NFTA_IMMEDIATE_DREG, VERDICT_REGISTER);
                    data.nested(NFTA_IMMEDIATE_DATA, |value| {
                        value.nested(NFTA_DATA_VERDICT, |verdict| {
                            verdict.u32_be(NFTA_VERDICT_CODE, NF_DROP);
                        });
                    });
                });
            }
        }
    }

    /// Installs the rule, replacing that of an older agent: in one transaction, so that there is always a rule.
    pub(crate) fn install(self) -> Result<(), netlink::Error> {
        let mut batch = self.emptied();
        let mut rule = self.rule();
        rule.nested(NFTA_RULE_EXPRESSIONS, |list| self.expressions(list));
        batch.push(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, rule);
        open()?.commit(&batch)
    }

    /// Removes the chain that an agent with other options has left.
    pub(crate) fn remove(self) -> Result<(), netlink::Error> {
        let mut batch = self.emptied();
        batch.push(DELETE_CHAIN, 0, self.chain());
        open()?.commit(&batch)
    }

    /// Returns a transaction that begins with the chain, without a rule.
    fn emptied(self) -> nfnetlink::Batch {
        let (hook, priority) = self.hook();
        let mut chain = self.chain();
        chain.nested(NFTA_CHAIN_HOOK, |data| {
            data.attribute(NFTA_HOOK_HOOKNUM, &hook.to_be_bytes());
            data.attribute(NFTA_HOOK_PRIORITY, &priority.to_be_bytes());
        });
        chain.u32_be(NFTA_CHAIN_POLICY, NF_ACCEPT).string(NFTA_CHAIN_TYPE, "filter");
        let mut batch = nfnetlink::Batch::new(NF_TABLES);
        batch.push(NEW_TABLE, NLM_F_CREATE, table());
        batch.push(NEW_CHAIN, NLM_F_CREATE, chain);
        batch.push(DELETE_RULE, 0, self.rule());
        batch
    }

    /// A message about the chain.
    fn chain(self) -> Body {
        let mut body = nfnetlink::body(INET);
        body.string(NFTA_CHAIN_TABLE, RULE_TABLE).string(NFTA_CHAIN_NAME, self.name());
        body
    }

    /// A message about the chain's rules.
    fn rule(self) -> Body {
        let mut body = nfnetlink::body(INET);
        body.string(NFTA_RULE_TABLE, RULE_TABLE).string(NFTA_RULE_CHAIN, self.name());
        body
    }

    /// Whether the rule is installed, or cannot be, as the kernel has no nftables. Its expressions are not compared.
    pub(crate) fn is_installed(self) -> Result<bool, netlink::Error> {
        let mut connection = match open() {
            Err(error) if is_protocol_missing(&error) => return Ok(true),
            connection => connection?,
        };
        let request = Request { kind: nfnetlink::kind(NF_TABLES, GET_RULE), body: self.rule() };
        let rules = connection.dump(&request, |answer| {
            Ok((answer.header.message_type == nfnetlink::kind(NF_TABLES, NEW_RULE)).then_some(()))
        });
        match rules {
            Ok(rules) => Ok(!rules.is_empty()),
            // The subsystem is unknown.
            Err(error) if error.errno() == Some(libc::EINVAL) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Opens a socket to netfilter. One for each request: they are hours apart.
fn open() -> io::Result<Connection> {
    Connection::open(Protocol::Netfilter)
}

/// A message about the table.
fn table() -> Body {
    let mut body = nfnetlink::body(INET);
    body.string(NFTA_TABLE_NAME, RULE_TABLE);
    body
}

/// Whether the kernel has no netlink protocol for netfilter.
fn is_protocol_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP | libc::ENOSYS))
}

/// Whether an error means that the kernel has no nftables for both families, or not all that the rules need.
pub(crate) fn is_unsupported(error: &netlink::Error) -> bool {
    matches!(
        error.errno(),
        Some(
            // The protocol, the subsystem, a kind of expression, the family `inet`.
            libc::EPROTONOSUPPORT
                | libc::EOPNOTSUPP
                | libc::ENOSYS
                | libc::EINVAL
                | libc::ENOENT
                | libc::EAFNOSUPPORT
        )
    )
}

/// Removes the table with all rules.
///
/// # Errors
/// If nftables returns an error, or does not exist.
pub fn remove_rule() -> Result<(), netlink::Error> {
    let mut batch = nfnetlink::Batch::new(NF_TABLES);
    // Deletion of an absent table fails, creation of an existing one does not.
    batch.push(NEW_TABLE, NLM_F_CREATE, table()).push(DELETE_TABLE, 0, table());
    open()?.commit(&batch)
}

/// Whether the rules' table exists. A kernel without nftables has none.
///
/// # Errors
/// If nftables returns another error.
pub fn has_rule() -> Result<bool, netlink::Error> {
    let request = Request { kind: nfnetlink::kind(NF_TABLES, GET_TABLE), body: table() };
    let answer = open().map_err(Into::into).and_then(|mut connection| connection.get(&request, |_| Ok(())));
    match answer {
        Ok(found) => Ok(found.is_some()),
        Err(error) if is_unsupported(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a notification reports the deletion of something in our table.
pub(crate) fn is_deletion(notification: &Message<'_>) -> bool {
    let attributes = notification.body.get(NFGENMSG_LEN..).unwrap_or_default();
    let table = || Attributes::new(attributes).first(NFTA_TABLE_NAME).ok().flatten();
    DELETIONS.contains(&notification.header.message_type)
        && table().is_some_and(|table| table.text() == RULE_TABLE.as_bytes())
}

/// Appends an expression to a rule's list.
fn expression(list: &mut Body, name: &str, fill: impl FnOnce(&mut Body)) {
    list.nested(NFTA_LIST_ELEM, |expression| {
        expression.string(NFTA_EXPR_NAME, name).nested(NFTA_EXPR_DATA, fill);
    });
}

/// Appends a value to an expression's data.
fn value(data: &mut Body, kind: u16, value: &[u8]) {
    data.nested(kind, |inner| {
        inner.attribute(NFTA_DATA_VALUE, value);
    });
}

/// Loads a property of the packet.
fn load(list: &mut Body, key: u32) {
    expression(list, "meta", |data| {
        data.u32_be(NFTA_META_DREG, REGISTER).u32_be(NFTA_META_KEY, key);
    });
}

/// Changes the four loaded bytes: bits of the mask stay, the others are set to those of `bits`.
fn mask(list: &mut Body, mask: u32, bits: u32) {
    bitwise(list, REGISTER, &mask.to_ne_bytes(), &bits.to_ne_bytes());
}

/// Writes the loaded bytes into a register: `loaded & mask ^ xor`.
fn bitwise(list: &mut Body, result: u32, mask: &[u8], xor: &[u8]) {
    expression(list, "bitwise", |data| {
        data.u32_be(NFTA_BITWISE_SREG, REGISTER).u32_be(NFTA_BITWISE_DREG, result);
        data.u32_be(NFTA_BITWISE_LEN, mask.len() as u32);
        value(data, NFTA_BITWISE_MASK, mask);
        value(data, NFTA_BITWISE_XOR, xor);
    });
}

/// A name as it is loaded: these bytes at a position, zeros around them.
fn padded(position: usize, bytes: &[u8]) -> [u8; NAME_LEN] {
    let mut name = [0; NAME_LEN];
    name[position..position + bytes.len()].copy_from_slice(bytes);
    name
}

/// Continues only if a character of the interface name that was loaded is a lower-case hexadecimal digit.
fn compare_hexadecimal(list: &mut Body, position: usize) {
    bitwise(list, SECOND_REGISTER, &padded(position, &[0xff]), &[0; NAME_LEN]);
    for (operator, from, to) in [(EQUAL, b'0', b'f'), (NOT_EQUAL, b'9' + 1, b'a' - 1)] {
        expression(list, "range", |data| {
            data.u32_be(NFTA_RANGE_SREG, SECOND_REGISTER).u32_be(NFTA_RANGE_OP, operator);
            value(data, NFTA_RANGE_FROM_DATA, &padded(position, &[from]));
            value(data, NFTA_RANGE_TO_DATA, &padded(position, &[to]));
        });
    }
}

/// Continues only if the loaded value begins with these bytes, or does not.
fn compare(list: &mut Body, operator: u32, bytes: &[u8]) {
    expression(list, "cmp", |data| {
        data.u32_be(NFTA_CMP_SREG, REGISTER).u32_be(NFTA_CMP_OP, operator);
        value(data, NFTA_CMP_DATA, bytes);
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netlink::{Received, Subscription};

    use super::*;

    /// After this time without a notification, none is expected any more.
    const QUIET_TIME: Duration = Duration::from_millis(100);

    /// A sandbox with both rules; `None` if the kernel has no nf_tables.
    fn install_all() -> Option<test_kit::Sandbox> {
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
        let Some(_sandbox) = install_all() else { test_kit::skip!("needs nf_tables in the kernel") };
        let installed = || CHAINS.map(|chain| chain.is_installed().unwrap());
        assert!(has_rule().unwrap());
        assert_eq!(installed(), [true, true]);
        CHAINS.iter().for_each(|chain| chain.install().unwrap());
        assert_eq!(installed(), [true, true]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let groups = [crate::watchdog::alarms::GROUP_NFTABLES];
        let open = || Subscription::open(Protocol::Netfilter, &groups, None).unwrap();
        let mut subscription = runtime.block_on(async { open() });
        // Reads until there is nothing for a while: the kernel has sent notifications before it answers.
        let mut has_deletion = || {
            runtime.block_on(async {
                let mut has_deletion = false;
                while let Ok(received) = tokio::time::timeout(QUIET_TIME, subscription.receive()).await {
                    assert_eq!(received.unwrap(), Received::Packet);
                    has_deletion |= subscription.messages().any(|message| is_deletion(&message.unwrap()));
                }
                has_deletion
            })
        };
        assert!(!has_deletion(), "of the time before the subscription");
        Chain::UnknownPods.remove().unwrap();
        assert_eq!(installed(), [true, false]);
        assert!(has_deletion());
        Chain::UnknownPods.remove().expect("removal is idempotent");
        remove_rule().unwrap();
        assert!(!has_rule().unwrap());
        assert_eq!(installed(), [false, false]);
        assert!(has_deletion());
        remove_rule().expect("removal is idempotent");
    }

    /// Marks of packets as they leave the host, by their initial mark. Packets of the kernel and of processes behave
    /// alike.
    #[test]
    fn the_hosts_packets_get_cilium_s_mark_and_keep_those_of_others() {
        test_kit::require_root!();
        test_kit::require_command!("nft");
        let Some(sandbox) = install_all() else { test_kit::skip!("needs nf_tables in the kernel") };
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
                // Errors of previous sends may be reported here.
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
}
