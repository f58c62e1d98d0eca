//! The response of `GET /config`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use api_models::{
    DaemonConfiguration, DaemonConfigurationSpec, DaemonConfigurationStatus, KvstoreConfiguration,
    MasqueradeProtocols, NodeAddressing, NodeAddressingElement,
};
use big_tcp::Limits;
use devices::Device;
use local_node::LocalNode;
use serde_json::Value;
use tunnel::{MtuConfig, Tunnel};

use crate::config::CniConfig;
use crate::error::Error;

/// Values that are constant while the agent runs.
#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    pub(crate) config: CniConfig,
    pub(crate) ipam_mode: String,
    pub(crate) masquerade: MasqueradeProtocols,
    pub(crate) mtu: MtuConfig,
    pub(crate) tunnel: Arc<Tunnel>,
    pub(crate) running: BTreeMap<String, Value>,
}

/// Returns the response.
pub(crate) fn configuration<'a>(
    fixed: &Fixed,
    spec: DaemonConfigurationSpec,
    node: Option<&LocalNode>,
    devices: impl Iterator<Item = &'a Device>,
    segments: Limits,
) -> Result<DaemonConfiguration, Error> {
    let config = &fixed.config;
    let mtu = fixed.mtu.device_mtu(&fixed.tunnel, devices);
    let status = DaemonConfigurationStatus {
        gro_ipv4_max_size: segments.ipv4.gro.into(),
        gro_max_size: segments.ipv6.gro.into(),
        gso_ipv4_max_size: segments.ipv4.gso.into(),
        gso_max_size: segments.ipv6.gso.into(),
        addressing: node.map(addressing),
        configured_datapath_mode: config.datapath_mode.clone(),
        daemon_configuration_map: fixed.running.clone(),
        datapath_mode: "veth".to_owned(),
        device_mtu: mtu.into(),
        enable_route_mtu_for_cni_chaining: config.enable_route_mtu_for_cni_chaining,
        install_uplink_routes_for_delegated_ipam: config.install_uplink_routes_for_delegated_ipam,
        ip_local_reserved_ports: config.reserved_ports().to_owned(),
        ipam_mode: fixed.ipam_mode.clone(),
        kvstore_configuration: Some(KvstoreConfiguration::default()),
        masquerade: fixed.masquerade.ipv4 || fixed.masquerade.ipv6,
        masquerade_protocols: Some(fixed.masquerade.clone()),
        packetization_layer_pmtud_mode: config.pmtud_mode()?.to_owned(),
        realized: Some(spec.clone()),
        route_mtu: fixed.tunnel.route_mtu(mtu).into(),
        ..Default::default()
    };
    Ok(DaemonConfiguration { spec: Some(spec), status: Some(status) })
}

/// Returns the node's addresses and pod ranges for each enabled family.
fn addressing(node: &LocalNode) -> NodeAddressing {
    fn element(router: Option<impl Display>, range: Option<impl Display>) -> Option<NodeAddressingElement> {
        Some(NodeAddressingElement {
            alloc_range: range?.to_string(),
            enabled: true,
            ip: router.map(|router| router.to_string()).unwrap_or_default(),
            ..Default::default()
        })
    }
    NodeAddressing {
        ipv4: element(node.router_ipv4, node.ipv4_alloc_cidr),
        ipv6: element(node.router_ipv6, node.ipv6_alloc_cidr),
    }
}
