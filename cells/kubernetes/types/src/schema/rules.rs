//! Rules that schemas of single fields cannot express.

use serde_json::Value;

use super::check::{Faults, Path, quoted};
use super::format::Format;
use crate::Kind;

/// Checks rules that depend on several fields.
pub(super) fn check(kind: Kind, object: &Value, faults: &mut Faults) {
    match kind {
        Kind::Pod => port_names(&object["spec"], faults),
        Kind::EndpointSlice => addresses(object, faults),
        _ => {}
    }
}

/// Checks that port names are unique within a container.
fn port_names(spec: &Value, faults: &mut Faults) {
    let root = Path::Member(&Path::Root, "spec");
    for list in ["initContainers", "containers"] {
        let path = Path::Member(&root, list);
        for (at, container) in items(&spec[list]) {
            let path = Path::Item(&path, at);
            let path = Path::Member(&path, "ports");
            let mut seen = std::collections::BTreeSet::new();
            for (at, port) in items(&container["ports"]) {
                let Some(name) = port["name"].as_str().filter(|name| !name.is_empty()) else { continue };
                if !seen.insert(name) {
                    let port = Path::Item(&path, at);
                    let reason = "is the name of another port of this container; rename one";
                    faults.add(&Path::Member(&port, "name"), format_args!("{} {reason}", quoted(name)));
                }
            }
        }
    }
}

/// Checks that the addresses of a slice are of its type.
fn addresses(slice: &Value, faults: &mut Faults) {
    let format = match slice["addressType"].as_str() {
        Some("IPv4") => Format::Ipv4,
        Some("IPv6") => Format::Ipv6,
        _ => return,
    };
    let path = Path::Member(&Path::Root, "endpoints");
    for (at, endpoint) in items(&slice["endpoints"]) {
        let path = Path::Item(&path, at);
        let path = Path::Member(&path, "addresses");
        for (at, address) in items(&endpoint["addresses"]) {
            let Some(text) = address.as_str() else { continue };
            if let Err(right) = format.check(text) {
                faults.add(&Path::Item(&path, at), format_args!("{} is wrong; give {right}", quoted(text)));
            }
        }
    }
}

fn items(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}
