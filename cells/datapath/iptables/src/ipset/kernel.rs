//! Requests about sets, over nfnetlink (`linux/netfilter/ipset/ip_set.h`): no program is needed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink::{Attribute, Attributes, Body, Connection, Error, Protocol, Request, nfnetlink};

use crate::rules::Family;

/// The subsystem and its messages (`IPSET_CMD_*`).
const IPSET: u8 = libc::NFNL_SUBSYS_IPSET as u8;
const CREATE: u8 = 2;
const DESTROY: u8 = 3;
const LIST: u8 = 7;
const ADD: u8 = 9;
const DELETE: u8 = 10;
const HEADER: u8 = 12;

// Attributes of a message (`IPSET_ATTR_*`).
const ATTR_PROTOCOL: u16 = 1;
const ATTR_SET_NAME: u16 = 2;
const ATTR_TYPE_NAME: u16 = 3;
const ATTR_REVISION: u16 = 4;
const ATTR_FAMILY: u16 = 5;
const ATTR_DATA: u16 = 7;
const ATTR_ADT: u16 = 8;
const ATTR_LINE: u16 = 9;
// Attributes of a member.
const ATTR_IP: u16 = 1;
const ATTR_IPV4: u16 = 1;
const ATTR_IPV6: u16 = 2;

/// The flag of an attribute in network byte order (`NLA_F_NET_BYTEORDER`), which the kernel requires for addresses.
const NET_BYTE_ORDER: u16 = 1 << 14;
/// The oldest version of the protocol that kernels speak, since Linux 2.6.39.
const PROTOCOL: u8 = 6;
/// The type of the sets, in its first revision, which all kernels have.
const TYPE_NAME: &str = "hash:ip";
const REVISION: u8 = 0;
/// Members in one message.
const BATCH: usize = 100;

/// The kernel's error codes beyond those of the system: a rule uses the set; there is a set of another type.
const ERROR_BUSY: i32 = 4100;

/// Bytes of `struct nfgenmsg`, which precedes the attributes.
const NFGENMSG_LEN: usize = 4;

/// A socket for requests about sets. Requests block for tens of microseconds.
#[derive(Debug)]
pub struct Sets(Connection);

impl Sets {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel has no nfnetlink.
    pub fn open() -> Result<Sets, Error> {
        Ok(Sets(Connection::open(Protocol::Netfilter)?))
    }

    /// Whether there is a set.
    ///
    /// # Errors
    /// If the kernel has no sets.
    pub fn exists(&mut self, set: &str) -> Result<bool, Error> {
        match self.0.get(&request(HEADER, body(set)), |_| Ok(())) {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a set of addresses of one family, unless there is one of this name.
    ///
    /// # Errors
    /// If the kernel has no sets.
    pub fn create(&mut self, set: &str, family: Family) -> Result<(), Error> {
        // A set that another program has made may have another revision, which is an error for the kernel.
        if self.exists(set)? {
            return Ok(());
        }
        let number = match family {
            Family::V4 => libc::NFPROTO_IPV4,
            Family::V6 => libc::NFPROTO_IPV6,
        };
        let mut body = body(set);
        body.string(ATTR_TYPE_NAME, TYPE_NAME).attribute(ATTR_REVISION, &[REVISION]);
        body.attribute(ATTR_FAMILY, &[number as u8]).nested(ATTR_DATA, |_| {});
        self.0.request(&request(CREATE, body), 0)
    }

    /// Adds members; those that the set has already are no error.
    ///
    /// # Errors
    /// If the set does not exist, is full or of another family.
    pub fn add(&mut self, set: &str, members: &[IpAddr]) -> Result<(), Error> {
        self.change(ADD, set, members)
    }

    /// Removes members; those that the set does not have are no error.
    ///
    /// # Errors
    /// If the set does not exist.
    pub fn remove(&mut self, set: &str, members: &[IpAddr]) -> Result<(), Error> {
        self.change(DELETE, set, members)
    }

    fn change(&mut self, message: u8, set: &str, members: &[IpAddr]) -> Result<(), Error> {
        for members in members.chunks(BATCH) {
            let mut body = body(set);
            body.attribute(ATTR_LINE, &0_u32.to_ne_bytes()).nested(ATTR_ADT, |list| {
                for member in members {
                    list.nested(ATTR_DATA, |data| {
                        data.nested(ATTR_IP, |ip| {
                            match member {
                                IpAddr::V4(v4) => ip.attribute(ATTR_IPV4 | NET_BYTE_ORDER, &v4.octets()),
                                IpAddr::V6(v6) => ip.attribute(ATTR_IPV6 | NET_BYTE_ORDER, &v6.octets()),
                            };
                        });
                    });
                }
            });
            self.0.request(&request(message, body), 0)?;
        }
        Ok(())
    }

    /// Returns the members of a set; none if it does not exist.
    ///
    /// # Errors
    /// If the kernel has no sets.
    pub fn members(&mut self, set: &str) -> Result<Vec<IpAddr>, Error> {
        let members = self.0.dump(&request(LIST, body(set)), |message| {
            let attributes = Attributes::new(message.body.get(NFGENMSG_LEN..).unwrap_or_default());
            let list = attributes.first(ATTR_ADT)?;
            let data = list.into_iter().flat_map(|list| list.nested()).filter_map(Result::ok);
            Ok(data.filter_map(|data| member(&data)).collect::<Vec<_>>())
        });
        match members {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            members => members,
        }
    }

    /// Destroys a set. Returns false if rules use it; a set that does not exist is no error.
    ///
    /// # Errors
    /// If the kernel refuses it for another reason.
    pub fn destroy(&mut self, set: &str) -> Result<bool, Error> {
        match self.0.request(&request(DESTROY, body(set)), 0) {
            Err(error) if error.errno() == Some(ERROR_BUSY) => Ok(false),
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(true),
        }
    }
}

/// Whether an error means that the kernel has no sets.
#[must_use]
pub fn is_unsupported(error: &Error) -> bool {
    matches!(
        error.errno(),
        Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::EAFNOSUPPORT)
    )
}

/// A message about a set.
fn body(set: &str) -> Body {
    let mut body = nfnetlink::body(libc::NFPROTO_UNSPEC as u8);
    body.attribute(ATTR_PROTOCOL, &[PROTOCOL]).string(ATTR_SET_NAME, set);
    body
}

fn request(message: u8, body: Body) -> Request<Body> {
    Request { kind: nfnetlink::kind(IPSET, message), body }
}

/// Returns the address of a member.
fn member(data: &Attribute<'_>) -> Option<IpAddr> {
    let ip = data.nested().first(ATTR_IP).ok()??;
    let address = ip.nested().next()?.ok()?;
    match address.kind {
        ATTR_IPV4 => <[u8; 4]>::try_from(address.value).ok().map(|octets| Ipv4Addr::from(octets).into()),
        ATTR_IPV6 => <[u8; 16]>::try_from(address.value).ok().map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipset::NODE_SETS;

    #[test]
    fn sets_are_made_filled_and_destroyed() {
        test_kit::require_root!();
        let _sandbox = test_kit::Sandbox::new().unwrap();
        let mut sets = Sets::open().unwrap();
        match sets.exists(NODE_SETS[0]) {
            Err(error) if is_unsupported(&error) => test_kit::skip!("needs sets in the kernel (ip_set)"),
            exists => assert!(!exists.unwrap()),
        }
        for (set, family) in NODE_SETS.into_iter().zip(Family::ALL) {
            assert_eq!(sets.members(set).unwrap(), [] as [IpAddr; 0], "a missing set has none");
            assert!(sets.add(set, &["192.0.2.1".parse().unwrap()]).unwrap_err().is_not_found());
            sets.create(set, family).unwrap();
            sets.create(set, family).expect("creation is idempotent");
            let address = |number: u16| match family {
                Family::V4 => IpAddr::from([192, 0, (number >> 8) as u8, number as u8]),
                Family::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, number]),
            };
            let many: Vec<IpAddr> = (0..1000).map(address).collect();
            sets.add(set, &many).unwrap();
            sets.add(set, &many[..2]).expect("adding is idempotent");
            let mut found = sets.members(set).unwrap();
            found.sort();
            assert_eq!(found, many);
            sets.remove(set, &many[1..]).unwrap();
            sets.remove(set, &many[1..]).expect("removal is idempotent");
            assert_eq!(sets.members(set).unwrap(), [address(0)]);
            assert!(sets.destroy(set).unwrap());
            assert!(sets.destroy(set).unwrap(), "destruction is idempotent");
            assert!(!sets.exists(set).unwrap());
        }
    }

    #[test]
    fn a_set_in_use_stays() {
        test_kit::require_root!();
        test_kit::require_command!("iptables-nft");
        let sandbox = test_kit::Sandbox::new().unwrap();
        let mut sets = Sets::open().unwrap();
        match sets.create(NODE_SETS[0], Family::V4) {
            Err(error) if is_unsupported(&error) => test_kit::skip!("needs sets in the kernel (ip_set)"),
            created => created.unwrap(),
        }
        let rule = "INPUT -m set --match-set cilium_node_set_v4 src -j ACCEPT";
        sandbox.host().exec(&format!("iptables-nft -A {rule}")).unwrap();
        assert!(!sets.destroy(NODE_SETS[0]).unwrap());
        sandbox.host().exec(&format!("iptables-nft -D {rule}")).unwrap();
        test_kit::wait_until("the kernel forgets the rule", std::time::Duration::from_secs(60), || {
            sets.destroy(NODE_SETS[0]).unwrap()
        });
    }
}
