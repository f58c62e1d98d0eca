//! The features that process packets on their way out of the node's devices.

use datapath_abi::NodeConfig;
use maps::FamilyConfig;
use masquerade::MasqueradeConfig;
use tunnel::Family;

/// The features that need `cil_to_netdev` on the devices of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EgressFeatures {
    /// IPv4 packets of pods are masqueraded by the programs.
    masquerade_ipv4: bool,
    /// IPv6 packets of pods are masqueraded by the programs.
    masquerade_ipv6: bool,
    /// Devices serve frontends of services (`kube-proxy-replacement`).
    nodeport: bool,
}

impl EgressFeatures {
    pub(crate) fn new(families: &FamilyConfig, masquerade: &MasqueradeConfig, nodeport: bool) -> Self {
        Self {
            masquerade_ipv4: families.enable_ipv4 && masquerade.is_in_bpf(Family::Ipv4),
            masquerade_ipv6: families.enable_ipv6 && masquerade.is_in_bpf(Family::Ipv6),
            nodeport,
        }
    }

    /// Writes the switches into the constants of the programs.
    pub(crate) fn apply(self, constants: &mut NodeConfig) {
        constants.masquerade_ipv4 = self.masquerade_ipv4.into();
        constants.masquerade_ipv6 = self.masquerade_ipv6.into();
        constants.nodeport = self.nodeport.into();
    }
}

/// Whether programs with these constants process packets that leave by the devices of the node.
pub(crate) fn is_needed(constants: &NodeConfig) -> bool {
    (constants.masquerade_ipv4 | constants.masquerade_ipv6 | constants.nodeport) != 0
}
