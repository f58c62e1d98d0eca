//! The annotations: keys, values, and the traffic that they name.

use std::collections::BTreeSet;

use iptables::Protocol;
use k8s_tables::core::Pod;

/// Keys of the port of a pod with an endpoint; the first that is there is taken.
pub(crate) const POD_PORT: [&str; 2] = ["policy.cilium.io/no-track-port", "io.cilium.no-track-port"];
/// The key of the ports of a pod in the node's network.
pub(crate) const HOST_PORTS: &str = "network.cilium.io/no-track-host-ports";

/// A wrong value of an annotation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("annotation {key}: '{value}' is no port; give one from 1 to 65535")]
    Port { key: &'static str, value: String },
    #[error("annotation {HOST_PORTS}: '{value}' is no port; give ports such as 443/tcp,53/udp")]
    HostPort { value: String },
    #[error("annotation {HOST_PORTS} needs hostNetwork: true; give policy.cilium.io/no-track-port")]
    NotInHostNetwork,
}

/// Returns the port of a pod with an endpoint, none without the annotation.
pub(crate) fn pod_port(pod: &Pod) -> Result<Option<u16>, Refused> {
    let annotations = &pod.metadata.annotations;
    let Some((key, value)) = POD_PORT.iter().find_map(|key| Some((*key, annotations.get(key)?))) else {
        return Ok(None);
    };
    match value.trim().parse() {
        Ok(0) | Err(_) => Err(Refused::Port { key, value: value.to_string() }),
        Ok(port) => Ok(Some(port)),
    }
}

/// Returns the ports of a pod in the node's network, and the first wrong one: the others are in force.
pub(crate) fn host_ports(pod: &Pod) -> (BTreeSet<(Protocol, u16)>, Option<Refused>) {
    let Some(value) = pod.metadata.annotations.get(HOST_PORTS) else { return Default::default() };
    if !pod.spec.host_network {
        return (BTreeSet::new(), Some(Refused::NotInHostNetwork));
    }
    let (mut ports, mut refused) = (BTreeSet::new(), None);
    for entry in value.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        match host_port(entry) {
            Some(port) => drop(ports.insert(port)),
            None => drop(refused.get_or_insert_with(|| Refused::HostPort { value: entry.to_owned() })),
        }
    }
    (ports, refused)
}

fn host_port(entry: &str) -> Option<(Protocol, u16)> {
    let (port, protocol) = entry.split_once('/').unwrap_or((entry, "tcp"));
    let protocol = match protocol.to_ascii_lowercase().as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return None,
    };
    let port = port.parse().ok().filter(|port| *port != 0)?;
    Some((protocol, port))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(host_network: bool, annotations: &[(&str, &str)]) -> Pod {
        let annotations: std::collections::BTreeMap<_, _> = annotations.iter().copied().collect();
        let metadata = json!({"name": "p", "namespace": "ns", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"hostNetwork": host_network}})).unwrap()
    }

    #[test]
    fn the_first_key_that_is_there_is_taken() {
        let [key, alias] = POD_PORT;
        assert_eq!(pod_port(&pod(false, &[])), Ok(None));
        assert_eq!(pod_port(&pod(false, &[(alias, "53")])), Ok(Some(53)));
        assert_eq!(pod_port(&pod(false, &[(alias, "53"), (key, " 54 ")])), Ok(Some(54)));
        for value in ["0", "70000", "-1", "dns", "", "53/udp"] {
            let refused = Refused::Port { key, value: value.to_owned() };
            assert_eq!(
                pod_port(&pod(false, &[(key, value), (alias, "53")])),
                Err(refused),
                "the alias is not read"
            );
        }
    }

    #[test]
    fn ports_of_the_host_have_a_protocol_and_wrong_ones_are_left_out() {
        let of = |host, value| host_ports(&pod(host, &[(HOST_PORTS, value)]));
        let ports = [(Protocol::Tcp, 80), (Protocol::Tcp, 443), (Protocol::Udp, 53)].into();
        assert_eq!(of(true, "443/tcp, 53/UDP,80"), (ports, None));
        let refused = Refused::HostPort { value: "1/sctp".to_owned() };
        assert_eq!(of(true, "53/udp,1/sctp,0"), ([(Protocol::Udp, 53)].into(), Some(refused)));
        assert_eq!(of(false, "53/udp"), (BTreeSet::new(), Some(Refused::NotInHostNetwork)));
        assert_eq!(host_ports(&pod(false, &[])), (BTreeSet::new(), None));
    }
}
