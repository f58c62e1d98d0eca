//! The devices that add outer IP headers for direct server return by IPIP, `cilium_ipip4` and `cilium_ipip6`.

use devices::rtnetlink::{IpipKind, LinkChange};
use devices::{Link, Netlink, NetlinkError};

use crate::programs::ipip::IpipSettings;

/// A device, its kernel module, and the length by which its MTU is lower than that of the devices below.
struct Kind {
    kind: IpipKind,
    device: &'static str,
    module: &'static str,
    overhead: u32,
    /// The device that the module itself creates, and its name with an agent: nothing else must use it by accident.
    fallback: [&'static str; 2],
}

/// The devices of both families. IPv6 has an encapsulation limit option beside the header.
const KINDS: [Kind; 2] = [
    Kind {
        kind: IpipKind::Ipip,
        device: "cilium_ipip4",
        module: "ipip",
        overhead: 20,
        fallback: ["tunl0", "cilium_tunl"],
    },
    Kind {
        kind: IpipKind::Ip6tnl,
        device: "cilium_ipip6",
        module: "ip6_tunnel",
        overhead: 48,
        fallback: ["ip6tnl0", "cilium_ip6tnl"],
    },
];

/// The reason why a device is missing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IpipError {
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
    /// The kernel has no such devices.
    #[error(
        "the kernel has no {kind} devices: load its module {module}, or set bpf-lb-dsr-dispatch to opt or geneve"
    )]
    Unsupported {
        /// The kind.
        kind: &'static str,
        /// The module with it.
        module: &'static str,
    },
    /// A request failed otherwise.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// The index of each family's device; the first reason why one is missing.
#[derive(Debug, Default)]
pub(crate) struct Ensured {
    /// The indexes, of IPv4 and of IPv6; zero without a device.
    pub(crate) indexes: [u32; 2],
    /// The reason.
    pub(crate) error: Option<IpipError>,
}

/// Creates the desired devices or what differs, and deletes others of a previous run.
pub(crate) fn ensure(nl: &mut Netlink, settings: Option<&IpipSettings>) -> Ensured {
    let wanted = settings.map_or([false; 2], IpipSettings::families);
    let mtu = settings.map_or(0, |settings| settings.mtu);
    let mut ensured = Ensured::default();
    for ((kind, is_wanted), index) in KINDS.iter().zip(wanted).zip(&mut ensured.indexes) {
        let done = match is_wanted {
            true => ensure_one(nl, kind, mtu.saturating_sub(kind.overhead)).map(|link| link.index),
            false => delete(nl, kind).map(|()| 0),
        };
        match done {
            Ok(found) => *index = found,
            Err(error) => ensured.error = ensured.error.or(Some(error)),
        }
    }
    ensured
}

fn ensure_one(nl: &mut Netlink, kind: &Kind, mtu: u32) -> Result<Link, IpipError> {
    let (name, expected) = (kind.device, kind.kind.name());
    match nl.find_link(name)? {
        Some(link) if link.kind != expected => Err(IpipError::Foreign { name, found: link.kind, expected }),
        Some(link) if link.is_up() && link.mtu == mtu => Ok(link),
        Some(link) => {
            let change = LinkChange { up: Some(true), mtu: Some(mtu), ..LinkChange::default() };
            nl.change_link(link.index, &change)?;
            Ok(nl.link_by_index(link.index)?)
        }
        None => {
            let link = nl.add_ipip(name, kind.kind, mtu).map_err(|error| match error.errno() {
                Some(libc::EOPNOTSUPP) => IpipError::Unsupported { kind: expected, module: kind.module },
                _ => IpipError::Netlink(error),
            })?;
            rename_fallback(nl, kind);
            Ok(link)
        }
    }
}

/// Renames the device that the kernel's module has created, unless it is in use.
fn rename_fallback(nl: &mut Netlink, kind: &Kind) {
    let [from, to] = kind.fallback;
    let Ok(Some(link)) = nl.find_link(from) else { return };
    if link.kind != kind.kind.name() || link.is_up() {
        return;
    }
    if let Err(error) = nl.change_link(link.index, &LinkChange { name: Some(to), ..LinkChange::default() }) {
        tracing::debug!(%error, device = from, "The kernel's own device keeps its name");
    }
}

fn delete(nl: &mut Netlink, kind: &Kind) -> Result<(), IpipError> {
    let Some(link) = nl.find_link(kind.device)?.filter(|link| link.kind == kind.kind.name()) else {
        return Ok(());
    };
    match nl.delete_link(link.index) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use test_kit::NetNs;

    use super::*;

    const BOTH: IpipSettings = IpipSettings { ipv4: true, ipv6: true, mtu: 1500 };

    /// With the modules the devices are made; without them their names and what to do are in the error.
    #[test]
    fn devices_are_created_or_their_module_is_named() {
        test_kit::require_root!();
        let ns = NetNs::detached().unwrap();
        ns.run(|| {
            let mut nl = Netlink::open().unwrap();
            let ensured = ensure(&mut nl, Some(&BOTH));
            let Some(error) = ensured.error else {
                for (kind, index) in KINDS.iter().zip(ensured.indexes) {
                    let link = nl.find_link(kind.device).unwrap().unwrap();
                    assert_eq!((link.index, link.mtu, link.is_up()), (index, 1500 - kind.overhead, true));
                    assert_eq!(nl.find_link(kind.fallback[0]).unwrap().map(|link| link.is_up()), None);
                }
                assert_eq!(ensure(&mut nl, Some(&BOTH)).indexes, ensured.indexes);
                assert!(ensure(&mut nl, None).error.is_none());
                assert!(KINDS.iter().all(|kind| nl.find_link(kind.device).unwrap().is_none()));
                return;
            };
            let text = error.to_string();
            let named = KINDS.iter().any(|kind| {
                text == format!(
                    "the kernel has no {} devices: load its module {}, or set bpf-lb-dsr-dispatch to opt or geneve",
                    kind.kind.name(),
                    kind.module
                )
            });
            assert!(named, "{text}");
        });
    }

    #[test]
    fn devices_of_others_stay_and_are_named() {
        test_kit::require_root!();
        let ns = NetNs::detached().unwrap();
        ns.ip_batch("link add cilium_ipip4 type veth peer name cilium_ipip6").unwrap();
        ns.run(|| {
            let mut nl = Netlink::open().unwrap();
            let ensured = ensure(&mut nl, Some(&BOTH));
            assert_eq!(ensured.indexes, [0; 2]);
            assert_eq!(
                ensured.error.unwrap().to_string(),
                "cilium_ipip4 is a device of kind veth and not ipip: delete or rename it"
            );
            assert!(ensure(&mut nl, None).error.is_none());
            assert!(KINDS.iter().all(|kind| nl.find_link(kind.device).unwrap().is_some()));
        });
    }
}
