//! The result of an ADD in the format of each version of the specification.

use crate::plan::{AddressPlan, RoutePlan};
use crate::version::CniVersion;
use serde::Serialize as _;
use serde_json::{Value, json};
use std::path::Path;

/// The result of an ADD, which can be written in any version's format.
#[derive(Clone, Debug)]
pub(crate) struct AddResult<'a> {
    pub(crate) host_interface: &'a str,
    pub(crate) host_mac: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) mac: &'a str,
    pub(crate) sandbox: &'a Path,
    /// IPv6 before IPv4, the order of Cilium.
    pub(crate) addresses: &'a [AddressPlan],
}

/// The index of the container's interface in the list.
const CONTAINER_INTERFACE: u32 = 1;

impl AddResult<'_> {
    pub(crate) fn to_json(&self, version: CniVersion) -> String {
        let mut document =
            if version < CniVersion::V0_3_0 { self.by_family() } else { self.by_interface(version) };
        document["cniVersion"] = version.as_str().into();
        if version < CniVersion::V1_0_0 {
            document["dns"] = json!({});
        }
        pretty(&document)
    }

    /// Formats a result up to 0.2.0: one address a family, no interfaces.
    fn by_family(&self) -> Value {
        let mut document = json!({});
        for address in self.addresses {
            let key = if address.ip.is_ipv4() { "ip4" } else { "ip6" };
            document[key] = json!({
                "ip": address.cidr(),
                "gateway": address.gateway.to_string(),
                "routes": address.routes.iter().map(route_json).collect::<Vec<_>>(),
            });
        }
        document
    }

    /// Formats a result since 0.3.0: addresses refer to a list of interfaces by index. Before 1.0.0 each has its
    /// family, too.
    fn by_interface(&self, version: CniVersion) -> Value {
        let ip = |address: &AddressPlan| {
            let mut ip = json!({
                "address": address.cidr(),
                "gateway": address.gateway.to_string(),
                "interface": CONTAINER_INTERFACE,
            });
            if version < CniVersion::V1_0_0 {
                ip["version"] = if address.ip.is_ipv4() { "4" } else { "6" }.into();
            }
            ip
        };
        json!({
            "interfaces": [
                { "name": self.host_interface, "mac": self.host_mac },
                { "name": self.interface, "mac": self.mac, "sandbox": self.sandbox },
            ],
            "ips": self.addresses.iter().map(ip).collect::<Vec<_>>(),
            "routes": self.addresses.iter().flat_map(|address| address.routes.iter().map(route_json)).collect::<Vec<_>>(),
        })
    }
}

fn route_json(route: &RoutePlan) -> Value {
    let mut document = json!({ "dst": format!("{}/{}", route.destination, route.prefix_length) });
    if let Some(gateway) = route.gateway {
        document["gw"] = gateway.to_string().into();
    }
    if let Some(mtu) = route.mtu {
        document["mtu"] = mtu.into();
    }
    document
}

/// Formats JSON with four spaces, as the specification's reference library does.
pub(crate) fn pretty(value: &Value) -> String {
    let mut text = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, format);
    match value.serialize(&mut serializer) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => value.to_string(),
    }
}
