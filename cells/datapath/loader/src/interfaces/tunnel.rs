//! The tunnel device, `cilium_vxlan` or `cilium_geneve`.

use devices::rtnetlink::{LinkChange, TunnelKind, TunnelLink, TunnelSpec};
use devices::{Link, Netlink, NetlinkError};
use tunnel::{Family, Protocol, Tunnel};

/// Names of the tunnel devices, by kind.
const DEVICES: [(TunnelKind, &str, &str); 2] =
    [(TunnelKind::Vxlan, "cilium_vxlan", "vxlan"), (TunnelKind::Geneve, "cilium_geneve", "geneve")];

/// The desired tunnel device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSettings {
    kind: TunnelKind,
    pub(crate) port: u16,
    source_ports: (u16, u16),
    zero_checksum_receive: bool,
    mtu: u32,
}

/// The tunnel device as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    /// Its link.
    pub link: Link,
    /// Whether it was created: no program is attached to it.
    pub created: bool,
}

/// The reason why there is no tunnel device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelError {
    /// Another device has the name.
    #[error("{name} is a device of kind {found} and not {expected}: delete or rename it")]
    Foreign {
        /// The name.
        name: &'static str,
        /// Its kind.
        found: String,
        /// The kind of the agent's device.
        expected: &'static str,
    },
    /// The port is in use.
    #[error(
        "UDP port {port} of the tunnel is in use by {user}: delete that, or set tunnel-port to another one on all nodes"
    )]
    PortInUse {
        /// The port.
        port: u16,
        /// The device that has it, as far as known.
        user: String,
    },
    /// The kernel has no such devices.
    #[error(
        "the kernel has no {kind} devices: load its module, or set tunnel-protocol to another protocol on all nodes"
    )]
    Unsupported {
        /// The kind.
        kind: &'static str,
    },
    /// A request failed otherwise.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

impl TunnelSettings {
    /// Returns the device of these options; `None` in native mode.
    pub(crate) fn new(tunnel: &Tunnel, mtu: u32) -> Option<TunnelSettings> {
        let kind = match tunnel.protocol {
            Protocol::Vxlan => TunnelKind::Vxlan,
            Protocol::Geneve => TunnelKind::Geneve,
        };
        // Packets between nodes have no UDP checksum: the inner ones have their own.
        let zero_checksum_receive = tunnel.underlay == Family::Ipv6;
        let (port, source_ports) = (tunnel.port, tunnel.source_ports);
        tunnel.is_tunnel().then_some(TunnelSettings { kind, port, source_ports, zero_checksum_receive, mtu })
    }

    /// Returns the device's name.
    pub(crate) fn device(&self) -> &'static str {
        device(self.kind)
    }

    /// Whether the device has to be created again to be as desired. Source ports are those of its creation.
    fn is_replaced(&self, found: &TunnelLink) -> bool {
        found.port != self.port
            || !found.external
            || found.learning
            || found.zero_checksum_receive != self.zero_checksum_receive
    }

    /// Whether the device is as desired.
    fn is_met(&self, found: &TunnelLink) -> bool {
        !self.is_replaced(found) && found.link.mtu == self.mtu && found.link.is_up()
    }
}

fn device(kind: TunnelKind) -> &'static str {
    DEVICES.iter().find(|(known, ..)| *known == kind).map_or("", |(_, name, _)| name)
}

fn word(kind: TunnelKind) -> &'static str {
    DEVICES.iter().find(|(known, ..)| *known == kind).map_or("", |(.., word)| word)
}

/// Creates or changes the tunnel device, with the index and MAC address of `former`, so that programs with these constants
/// stay as they are. Deletes the device of the other protocol; without settings both.
pub fn ensure(
    nl: &mut Netlink,
    settings: Option<&TunnelSettings>,
    former: Option<&Link>,
) -> Result<Option<Ensured>, TunnelError> {
    let found = nl.tunnels()?;
    let own = |kind: TunnelKind| {
        move |tunnel: &&TunnelLink| tunnel.kind == kind && tunnel.link.name == device(kind)
    };
    for (kind, ..) in DEVICES {
        if settings.is_some_and(|settings| settings.kind == kind) {
            continue;
        }
        if let Some(left) = found.iter().find(own(kind)) {
            delete(nl, left.link.index)?;
        }
    }
    let Some(settings) = settings else { return Ok(None) };
    let mut former = former.cloned();
    match found.iter().find(own(settings.kind)) {
        Some(tunnel) if settings.is_replaced(tunnel) => {
            former = Some(tunnel.link.clone());
            delete(nl, tunnel.link.index)?;
        }
        Some(tunnel) if settings.is_met(tunnel) => {
            return Ok(Some(Ensured { link: tunnel.link.clone(), created: false }));
        }
        Some(tunnel) => {
            let change = LinkChange { up: Some(true), mtu: Some(settings.mtu), ..LinkChange::default() };
            nl.change_link(tunnel.link.index, &change).map_err(|error| explain(nl, settings, error))?;
            let link = nl.link_by_index(tunnel.link.index)?;
            return Ok(Some(Ensured { link, created: false }));
        }
        None => {
            if let Some(link) = nl.find_link(settings.device())? {
                let (name, expected) = (settings.device(), word(settings.kind));
                return Err(TunnelError::Foreign { name, found: link.kind, expected });
            }
        }
    }
    let link = create(nl, settings, former.as_ref()).map_err(|error| explain(nl, settings, error))?;
    Ok(Some(Ensured { link, created: true }))
}

/// Whether the device is missing or not as desired; `link` as [`ensure`] returned it.
pub(crate) fn differs(
    nl: &mut Netlink,
    settings: &TunnelSettings,
    link: &Link,
) -> Result<bool, NetlinkError> {
    let found = nl.tunnels()?;
    let same = found.iter().find(|tunnel| tunnel.link.index == link.index);
    Ok(!same.is_some_and(|tunnel| {
        settings.is_met(tunnel)
            && tunnel.link.name == settings.device()
            && tunnel.link.hardware_addr == link.hardware_addr
    }))
}

fn delete(nl: &mut Netlink, index: u32) -> Result<(), NetlinkError> {
    match nl.delete_link(index) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

fn create(nl: &mut Netlink, settings: &TunnelSettings, former: Option<&Link>) -> Result<Link, NetlinkError> {
    let spec = TunnelSpec {
        name: settings.device(),
        kind: settings.kind,
        port: settings.port,
        source_ports: settings.source_ports,
        zero_checksum_receive: settings.zero_checksum_receive,
        mtu: Some(settings.mtu),
        mac: former.and_then(|link| link.hardware_addr.ethernet()),
        index: former.map(|link| link.index),
    };
    match nl.add_tunnel(&spec) {
        // Another device has got the index.
        Err(error) if spec.index.is_some() && index_is_taken(&error) => {
            nl.add_tunnel(&TunnelSpec { index: None, ..spec })
        }
        created => created,
    }
}

fn index_is_taken(error: &NetlinkError) -> bool {
    matches!(error.errno(), Some(libc::EBUSY | libc::EEXIST))
}

/// Names the cause of a device that cannot be created or set up.
fn explain(nl: &mut Netlink, settings: &TunnelSettings, error: NetlinkError) -> TunnelError {
    match error.errno() {
        Some(libc::EOPNOTSUPP) => TunnelError::Unsupported { kind: word(settings.kind) },
        Some(libc::EADDRINUSE | libc::EEXIST) => {
            let same_port = |tunnel: &TunnelLink| tunnel.port == settings.port;
            let user = nl.tunnels().unwrap_or_default().into_iter().find(same_port);
            let user = user.map(|tunnel| format!("device {}", tunnel.link.name));
            let user = user.unwrap_or_else(|| "another socket of this node".to_owned());
            TunnelError::PortInUse { port: settings.port, user }
        }
        _ => error.into(),
    }
}
