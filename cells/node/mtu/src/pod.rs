//! The MTU in one pod: both sides of its interface, its default routes. All functions block.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use devices::rtnetlink::{LinkChange, RouteSpec};
use devices::{Link, Netlink, NetlinkError, Route, TABLE_MAIN};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Error, Mtu};

/// The prefix of the alternative name by which the CNI plugin marks its interfaces in pods.
const PLUGIN_MARK: &str = "cilium_cni:";
/// The folder of network namespaces on a node, where the agent runs outside of a container.
const NODE_NAMESPACES: &str = "/var/run/netns";
/// The protocol of routes that the plugin makes (`RTPROT_BOOT`).
const PROTOCOL: u8 = 3;
/// `RTN_UNICAST` of `linux/rtnetlink.h`.
const KIND_UNICAST: u8 = 1;

/// A pod, and the MTUs that it should have.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// Endpoint id.
    pub(crate) id: u16,
    /// Name of the interface on the host.
    pub(crate) interface: String,
    /// Files of its network namespace; the first one that exists is taken. The path of the runtime may be another one in
    /// the agent's container.
    pub(crate) namespaces: Vec<PathBuf>,
    /// The rows of both families.
    pub(crate) mtus: [Mtu; 2],
}

impl Pod {
    /// Sets the MTUs where they differ. Returns false if the pod has ended: no namespace, or no interface.
    pub(crate) fn update(&self, host: &mut Netlink) -> Result<bool, Error> {
        let Some(mut inside) = self.enter()? else { return Ok(false) };
        let Some(outer) = host.find_link(&self.interface)? else { return Ok(false) };
        let device = self.mtus[0].device;
        // The file may be of another pod's namespace by now; the interface in it is the peer of the endpoint's.
        let is_peer = |link: &Link| link.parent == outer.index && is_of_plugin(link);
        let Some(link) = inside.links()?.into_iter().find(is_peer) else { return Ok(true) };
        // A side drops packets larger than its MTU without an ICMP message: the pod's side is never the larger one.
        if outer.mtu < device {
            set_mtu(host, outer.index, device)?;
        }
        if device < link.mtu {
            self.set_routes(&mut inside, link.index)?;
        }
        if device != link.mtu {
            set_mtu(&mut inside, link.index, device)?;
        }
        // The kernel changes routes of IPv6 with the device.
        self.set_routes(&mut inside, link.index)?;
        if outer.mtu > device {
            set_mtu(host, outer.index, device)?;
        }
        Ok(true)
    }

    /// Opens a socket in the pod's namespace; `None` if that is gone.
    fn enter(&self) -> Result<Option<Netlink>, Error> {
        for path in &self.namespaces {
            let failed = |source| Error::Namespace { path: path.clone(), source };
            let file = match File::open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            return match inside(&file) {
                Ok(opened) => Ok(Some(opened?)),
                // The namespace of the file was unmounted.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
                Err(error) => Err(failed(error)),
            };
        }
        Ok(None)
    }

    fn set_routes(&self, inside: &mut Netlink, index: u32) -> Result<(), NetlinkError> {
        for route in inside.routes()? {
            let Some(mtu) = self.mtus.iter().find(|mtu| mtu.prefix == route.key.dst) else { continue };
            if is_default(&route, index) && route.mtu != mtu.route {
                inside.replace_route(&changed(&route, mtu.route))?;
            }
        }
        Ok(())
    }
}

/// Sets the MTU of one of the agent's own devices, if it is there.
pub(crate) fn set_own(host: &mut Netlink, name: &str, mtu: u32) -> Result<(), NetlinkError> {
    match host.find_link(name)? {
        Some(link) if link.mtu != mtu => set_mtu(host, link.index, mtu),
        _ => Ok(()),
    }
}

fn set_mtu(netlink: &mut Netlink, index: u32, mtu: u32) -> Result<(), NetlinkError> {
    netlink.change_link(index, &LinkChange { mtu: Some(mtu), ..LinkChange::default() })
}

fn is_of_plugin(link: &Link) -> bool {
    link.alt_names.iter().any(|name| name.starts_with(PLUGIN_MARK))
}

fn is_default(route: &Route, index: u32) -> bool {
    let key = &route.key;
    key.link_index == index
        && key.table == TABLE_MAIN
        && key.dst.prefix() == 0
        && route.kind == KIND_UNICAST
        && route.gateway.is_some()
}

fn changed(route: &Route, mtu: u32) -> RouteSpec {
    RouteSpec {
        gateway: route.gateway,
        src: route.src,
        mtu,
        priority: route.key.priority,
        protocol: PROTOCOL,
        ..RouteSpec::on_link(route.key.dst, route.key.link_index)
    }
}

/// Opens a socket in the namespace, in a temporary thread: threads of the runtime must never change their namespace. The
/// socket stays in it.
fn inside(namespace: &File) -> io::Result<Result<Netlink, NetlinkError>> {
    std::thread::scope(|scope| {
        let enter = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(Netlink::open())
        };
        scope.spawn(enter).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns the paths at which the namespace of a record may be: its own, which is that of Cilium's container, then the same
/// name in the agent's folder and in that of the node.
pub(crate) fn namespace_paths(recorded: &str, folder: &Path) -> Vec<PathBuf> {
    let recorded = Path::new(recorded);
    let Some(name) = recorded.file_name() else { return Vec::new() };
    vec![recorded.to_owned(), folder.join(name), Path::new(NODE_NAMESPACES).join(name)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_is_at_its_path_or_in_the_agents_folder() {
        let folder = Path::new("/run/apiary/netns");
        let paths = namespace_paths("/var/run/cilium/netns/cni-1", folder);
        let expected = ["/var/run/cilium/netns/cni-1", "/run/apiary/netns/cni-1", "/var/run/netns/cni-1"];
        assert_eq!(paths, expected.map(Path::new));
        assert!(namespace_paths("", folder).is_empty(), "a record without a path");
    }
}
