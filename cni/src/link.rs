//! The pair of interfaces between a pod and its node.

use crate::error::Error;
use crate::netns;
use crate::plan::{AddressPlan, Mac, RoutePlan};
use netlink::{Attributes, Body, Connection, Message, Protocol, Request};
use netlink_packet_core::{Emitable, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Parseable as _};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage, Prop,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
    RouteType,
};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The queue length of both ends; a veth has none by default, but qdiscs that users attach derive theirs from it.
const TX_QUEUE_LENGTH: u32 = 1000;

/// The number of checks whether an interface transmits, and the delay between them. Since 6.9 the kernel runs the
/// pending link event when it is queried, so the first check usually succeeds.
const RUNNING_TRIES: u32 = 1000;
const RUNNING_PAUSE: Duration = Duration::from_millis(1);

/// The timeout for the kernel to accept packets to a new IPv6 address, and the delay between two checks. It takes some
/// milliseconds; usually the first check succeeds.
const LOCAL_TIMEOUT: Duration = Duration::from_secs(5);
const LOCAL_PAUSE: Duration = Duration::from_micros(500);

/// From linux/rtnetlink.h, missing in libc.
const RTM_NEWLINKPROP: u16 = 108;

/// The properties of a pair.
#[derive(Clone, Debug)]
pub(crate) struct PairSpec<'a> {
    pub(crate) host: &'a str,
    pub(crate) container: &'a str,
    pub(crate) host_mac: Mac,
    pub(crate) container_mac: Mac,
    pub(crate) mtu: u32,
    pub(crate) gro_max_size: u32,
    pub(crate) gso_max_size: u32,
    pub(crate) gro_ipv4_max_size: u32,
    pub(crate) gso_ipv4_max_size: u32,
}

impl PairSpec<'_> {
    /// Returns the attributes of one end. A limit of 0 means the kernel's default.
    fn end(&self, name: &str, mac: Mac) -> Vec<LinkAttribute> {
        let mut attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::Address(mac.0.to_vec()),
            LinkAttribute::TxQueueLen(TX_QUEUE_LENGTH),
        ];
        let limits = [
            (self.mtu, LinkAttribute::Mtu as fn(u32) -> LinkAttribute),
            (self.gso_max_size, LinkAttribute::GsoMaxSize),
            (self.gro_max_size, LinkAttribute::GroMaxSize),
            (self.gso_ipv4_max_size, LinkAttribute::GsoIpv4MaxSize),
            (self.gro_ipv4_max_size, LinkAttribute::GroIpv4MaxSize),
        ];
        attributes
            .extend(limits.into_iter().filter(|(limit, _)| *limit > 0).map(|(limit, make)| make(limit)));
        attributes
    }
}

/// A veth as chaining needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Veth {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Option<Mac>,
    /// The index of the other end in its own namespace.
    pub(crate) peer: Option<u32>,
}

impl Veth {
    /// Decodes a link; none if it is of another kind.
    fn parse(answer: Message<'_>) -> Result<Option<Self>, netlink::Error> {
        /// The length of `struct ifinfomsg`.
        const HEADER: usize = 16;
        let header = LinkHeader::parse(answer.body).map_err(|error| answer.undecodable(error))?;
        let attributes = Attributes::new(answer.body.get(HEADER..).unwrap_or_default());
        let info = attributes.first(libc::IFLA_LINKINFO)?;
        let kind = info.map(|info| info.nested().first(libc::IFLA_INFO_KIND)).transpose()?.flatten();
        if kind.is_none_or(|kind| kind.text() != b"veth") {
            return Ok(None);
        }
        let name = attributes.first(libc::IFLA_IFNAME)?;
        let mac = attributes.first(libc::IFLA_ADDRESS)?;
        let peer = attributes.first(libc::IFLA_LINK)?.map(|peer| peer.u32()).transpose()?;
        Ok(Some(Self {
            index: header.index,
            name: name.map(|name| String::from_utf8_lossy(name.text()).into_owned()).unwrap_or_default(),
            mac: mac.and_then(|mac| mac.value.try_into().ok()).map(Mac),
            peer,
        }))
    }
}

/// An rtnetlink socket with requests for links, addresses and routes.
///
/// Responses are bytes of which only the needed part is parsed: parsers for all of rtnetlink would be a third of the
/// binary.
#[derive(Debug)]
pub(crate) struct Links(Connection);

impl Links {
    /// Opens a socket in the current namespace of the thread; it stays in that namespace after the thread has left it.
    pub(crate) fn here() -> Result<Self, Error> {
        Connection::open(Protocol::Route).map(Self).map_err(|error| Error::Link {
            action: "open netlink for",
            interface: "".into(),
            source: error.into(),
        })
    }

    /// Creates the pair with the container's end inside `container_netns`; both ends are down. Returns the host's
    /// index.
    pub(crate) fn create_pair(&mut self, spec: &PairSpec<'_>, container_netns: &File) -> Result<u32, Error> {
        let failed = |source| Error::Link { action: "create veth pair", interface: spec.host.into(), source };
        let mut peer = LinkMessage::default();
        peer.attributes = spec.end(spec.container, spec.container_mac);
        peer.attributes.push(LinkAttribute::NetNsFd(container_netns.as_raw_fd()));
        let mut message = LinkMessage::default();
        message.attributes = spec.end(spec.host, spec.host_mac);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.0
            .request(&Request { kind: libc::RTM_NEWLINK, body: message }, NLM_F_CREATE | NLM_F_EXCL)
            .map_err(failed)?;
        self.index(spec.host)?.ok_or_else(|| Error::NoInterface { interface: spec.host.into() })
    }

    /// Returns the index of an interface, if there is one of that name.
    pub(crate) fn index(&mut self, name: &str) -> Result<Option<u32>, Error> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        match self.header(message) {
            Ok(header) => Ok(header.map(|header| header.index)),
            Err(error) if is_no_device(&error) => Ok(None),
            Err(source) => Err(Error::Link { action: "look up", interface: name.into(), source }),
        }
    }

    /// Returns the header of the response about one link.
    fn header(&mut self, body: LinkMessage) -> Result<Option<LinkHeader>, netlink::Error> {
        self.0.get(&Request { kind: libc::RTM_GETLINK, body }, |answer| {
            LinkHeader::parse(answer.body).map_err(|error| answer.undecodable(error))
        })
    }

    /// Waits until the kernel transmits on an interface whose peer has come up: until then, up to a second on a busy
    /// machine, it drops sent packets, and a lost neighbour solicitation costs another second. Returns without an error
    /// on timeout: the interface comes up later by itself.
    pub(crate) fn wait_running(&mut self, index: u32, name: &str) -> Result<(), Error> {
        let failed = |source| Error::Link { action: "look at", interface: name.into(), source };
        for _ in 0..RUNNING_TRIES {
            let mut message = LinkMessage::default();
            message.header.index = index;
            let header = self.header(message).map_err(failed)?;
            if header.is_none_or(|header| header.flags.contains(LinkFlags::Running)) {
                break;
            }
            std::thread::sleep(RUNNING_PAUSE);
        }
        Ok(())
    }

    /// Waits until the namespace receives packets to an address. For an IPv4 address that holds once it is added. For
    /// an IPv6 address without duplicate address detection the kernel inserts the local route in a work item after it
    /// has acknowledged the address: until then sockets can bind to it, but packets to it are dropped.
    pub(crate) fn wait_local(&mut self, name: &str, address: IpAddr) -> Result<(), Error> {
        let begin = Instant::now();
        while address.is_ipv6() && !self.is_local(name, address)? {
            if begin.elapsed() > LOCAL_TIMEOUT {
                return Err(Error::NotLocal { address, interface: name.into(), waited: LOCAL_TIMEOUT });
            }
            std::thread::sleep(LOCAL_PAUSE);
        }
        Ok(())
    }

    /// Whether a route lookup of an address returns a local route.
    pub(crate) fn is_local(&mut self, name: &str, address: IpAddr) -> Result<bool, Error> {
        /// The offset of `rtm_type` in `struct rtmsg`.
        const TYPE: usize = 7;
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = if address.is_ipv6() { 128 } else { 32 };
        message.attributes.push(RouteAttribute::Destination(route_address(address)));
        let request = Request { kind: libc::RTM_GETROUTE, body: message };
        match self.0.get(&request, |answer| Ok(answer.body.get(TYPE) == Some(&libc::RTN_LOCAL))) {
            Ok(is_local) => Ok(is_local == Some(true)),
            // There is no route to it at all.
            Err(error) if error.errno() == Some(libc::ENETUNREACH) => Ok(false),
            Err(source) => Err(Error::Link {
                action: "look up the route to an address of",
                interface: name.into(),
                source,
            }),
        }
    }

    /// Removes an interface and thereby its peer; one that does not exist is success.
    pub(crate) fn remove(&mut self, index: u32) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        match self.0.request(&Request { kind: libc::RTM_DELLINK, body: message }, 0) {
            Err(error) if !is_no_device(&error) => {
                Err(Error::Link { action: "remove interface", interface: index.to_string(), source: error })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn remove_by_name(&mut self, name: &str) -> Result<(), Error> {
        self.index(name)?.map_or(Ok(()), |index| self.remove(index))
    }

    pub(crate) fn set_up(&mut self, index: u32, name: &str) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.change("set up", name, Request { kind: libc::RTM_SETLINK, body: message }, 0)
    }

    pub(crate) fn set_mac(&mut self, index: u32, name: &str, mac: Mac) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
        self.change("set the MAC address of", name, Request { kind: libc::RTM_SETLINK, body: message }, 0)
    }

    pub(crate) fn add_alternative_name(
        &mut self,
        index: u32,
        name: &str,
        alternative: String,
    ) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::PropList(vec![Prop::AltIfName(alternative)]));
        self.change("name", name, Request { kind: RTM_NEWLINKPROP, body: message }, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds the pod's address. Duplicate address detection is disabled: the agent has allocated it to this pod only.
    pub(crate) fn add_address(&mut self, index: u32, name: &str, address: &AddressPlan) -> Result<(), Error> {
        let mut message = AddressMessage::default();
        message.header.family = family(address.ip);
        message.header.prefix_len = address.prefix_length();
        message.header.index = index;
        match address.ip {
            IpAddr::V4(_) => message.attributes.push(AddressAttribute::Local(address.ip)),
            IpAddr::V6(_) => message.header.flags = AddressHeaderFlags::Nodad,
        }
        message.attributes.push(AddressAttribute::Address(address.ip));
        self.change(
            "add an address to",
            name,
            Request { kind: libc::RTM_NEWADDR, body: message },
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    pub(crate) fn add_route(&mut self, index: u32, name: &str, route: &RoutePlan) -> Result<(), Error> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(route.destination);
        message.header.destination_prefix_length = route.prefix_length;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Boot;
        message.header.kind = RouteType::Unicast;
        message.header.scope = if route.gateway.is_some() { RouteScope::Universe } else { RouteScope::Link };
        if route.prefix_length > 0 {
            message.attributes.push(RouteAttribute::Destination(route_address(route.destination)));
        }
        if let Some(gateway) = route.gateway {
            message.attributes.push(RouteAttribute::Gateway(route_address(gateway)));
        }
        if let Some(mtu) = route.mtu {
            message.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
        }
        message.attributes.push(RouteAttribute::Oif(index));
        self.change(
            "add a route to",
            name,
            Request { kind: libc::RTM_NEWROUTE, body: message },
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Returns all veths of the namespace.
    pub(crate) fn veths(&mut self) -> Result<Vec<Veth>, Error> {
        let all = Request { kind: libc::RTM_GETLINK, body: LinkMessage::default() };
        self.0.dump(&all, Veth::parse).map_err(|source| Error::Link {
            action: "list",
            interface: "veth".into(),
            source,
        })
    }

    /// Sets the MTU of all routes of the main table through an interface; other metrics and fields stay.
    pub(crate) fn set_route_mtu(&mut self, index: u32, name: &str, mtu: u32) -> Result<(), Error> {
        let failed = |source| Error::Link { action: "list the routes of", interface: name.into(), source };
        let all = Request { kind: libc::RTM_GETROUTE, body: RouteMessage::default() };
        let routes =
            self.0.dump(&all, |answer| Ok(route_with_mtu(answer.body, index, mtu)?)).map_err(failed)?;
        routes.into_iter().try_for_each(|body| {
            let request = Request { kind: libc::RTM_NEWROUTE, body };
            self.change("set the MTU of a route to", name, request, NLM_F_CREATE | NLM_F_REPLACE)
        })
    }

    /// Returns the addresses of an interface as `IP/LENGTH`.
    pub(crate) fn addresses(&mut self, index: u32, name: &str) -> Result<Vec<(IpAddr, u8)>, Error> {
        let all = Request { kind: libc::RTM_GETADDR, body: AddressMessage::default() };
        let of_interface = |answer: Message<'_>| {
            let message =
                AddressMessage::parse(answer.body).ok().filter(|message| message.header.index == index);
            Ok(message.and_then(|message| {
                message.attributes.iter().find_map(|attribute| match attribute {
                    AddressAttribute::Address(address) => Some((*address, message.header.prefix_len)),
                    _ => None,
                })
            }))
        };
        self.0.dump(&all, of_interface).map_err(|source| Error::Link {
            action: "list the addresses of",
            interface: name.into(),
            source,
        })
    }

    fn change<M: Emitable>(
        &mut self,
        action: &'static str,
        name: &str,
        request: Request<M>,
        flags: u16,
    ) -> Result<(), Error> {
        self.0.request(&request, flags).map_err(|source| Error::Link {
            action,
            interface: name.into(),
            source,
        })
    }
}

/// Removes the interface with this index from `netns` in a separate process that outlives this one: the kernel takes 16
/// to 30 ms for it. Indexes are not reused in a namespace, so a pair that a concurrent ADD creates is safe.
pub(crate) fn remove_behind(netns: &File, index: u32) -> io::Result<()> {
    use std::os::unix::process::CommandExt as _;
    Command::new("/proc/self/exe")
        .args(["remove-link", &index.to_string()])
        .env_clear()
        .stdin(Stdio::from(netns.try_clone()?))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map(drop)
}

/// Runs in the child process of [`remove_behind`].
pub(crate) fn remove_from_stdin_namespace(index: u32) -> Result<(), Error> {
    netns::join(io::stdin().as_fd()).map_err(|source| Error::Netns {
        action: "entering",
        path: "/dev/stdin".into(),
        source,
    })?;
    Links::here()?.remove(index)
}

/// Returns a route of the main table through an interface with another MTU; none for other routes, and for those that
/// have it.
fn route_with_mtu(route: &[u8], interface: u32, mtu: u32) -> Result<Option<Body>, netlink::Malformed> {
    /// The length of `struct rtmsg`, and the offset of `rtm_table` in it.
    const HEADER: usize = 12;
    const TABLE: usize = 4;
    /// From linux/rtnetlink.h.
    const RTAX_MTU: u16 = 2;
    let Some((header, attributes)) = route.split_at_checked(HEADER) else { return Ok(None) };
    let attributes = Attributes::new(attributes);
    let out = attributes.first(libc::RTA_OIF)?.map(|out| out.u32()).transpose()?;
    if header[TABLE] != RouteHeader::RT_TABLE_MAIN || out != Some(interface) {
        return Ok(None);
    }
    let mut metrics = Body::default();
    if let Some(found) = attributes.first(libc::RTA_METRICS)? {
        for metric in found.nested() {
            let metric = metric?;
            if metric.kind == RTAX_MTU && metric.u32()? == mtu {
                return Ok(None);
            }
            if metric.kind != RTAX_MTU {
                metrics.attribute(metric.kind, metric.value);
            }
        }
    }
    metrics.attribute(RTAX_MTU, &mtu.to_ne_bytes());
    let mut body = Body::new(header);
    for attribute in attributes {
        let attribute = attribute?;
        // The kernel's statistics of the route are no part of a request.
        if ![libc::RTA_METRICS, libc::RTA_CACHEINFO].contains(&attribute.kind) {
            body.attribute(attribute.kind, attribute.value);
        }
    }
    body.attribute(libc::RTA_METRICS, metrics.as_bytes());
    Ok(Some(body))
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

fn is_no_device(error: &netlink::Error) -> bool {
    error.errno() == Some(libc::ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use test_kit::Sandbox;

    /// Without the wait a lookup right after the acknowledgement usually finds no local route.
    #[test]
    fn an_ipv6_address_receives_packets_after_the_wait() {
        test_kit::require_root!();
        let sandbox = Sandbox::new().unwrap();
        let pod = sandbox.netns("pod").unwrap();
        sandbox.host().veth("lxc0", &pod, "eth0").unwrap();
        let stop = AtomicBool::new(false);
        let add_all = || {
            let mut links = Links::here().unwrap();
            let index = links.index("eth0").unwrap().unwrap();
            links.set_up(index, "eth0").unwrap();
            let absent = IpAddr::from([0xfd09, 0, 0, 0, 0, 0, 1, 0]);
            assert!(!links.is_local("eth0", absent).unwrap(), "no interface has it");
            let is_late = |n: &u16| {
                let ip = IpAddr::from([0xfd09, 0, 0, 0, 0, 0, 0, *n]);
                let address = AddressPlan { ip, gateway: absent, routes: Vec::new() };
                links.add_address(index, "eth0", &address).unwrap();
                links.wait_local("eth0", ip).unwrap();
                !links.is_local("eth0", ip).unwrap()
            };
            (1..=200).filter(is_late).collect::<Vec<_>>()
        };
        let late = std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop()
                    }
                });
            }
            let late = pod.run(add_all);
            stop.store(true, Ordering::Relaxed);
            late
        });
        assert!(late.is_empty(), "{} of 200: {late:?}", late.len());
    }
}
