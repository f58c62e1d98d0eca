//! Option `install-no-conntrack-iptables-rules`: with native routing, netfilter tracks no connection of pods.

use ipnetwork::IpNetwork;
use maps::FamilyConfig;
use masquerade::MasqueradeConfig;
use tunnel::{Family, Tunnel};

use crate::{Error, IptablesConfig};

const OPTION: &str = "install-no-conntrack-iptables-rules";

/// Returns the IPv4 range of which traffic is not tracked.
///
/// # Errors
/// Something else of these options needs netfilter to track connections of pods.
pub(crate) fn untracked_range(
    config: &IptablesConfig,
    masquerade: &MasqueradeConfig,
    families: &FamilyConfig,
    tunnel: &Tunnel,
    replaces_kube_proxy: bool,
) -> Result<Option<IpNetwork>, Error> {
    if !config.install_no_conntrack_iptables_rules {
        return Ok(None);
    }
    let is_masqueraded = masquerade.enable_ipv4_masquerade;
    let needs = [
        (!tunnel.is_tunnel(), "routing-mode=native, as netfilter sees only the tunnel's packets otherwise"),
        (families.enable_ipv4, "enable-ipv4=true, as its rules are about IPv4"),
        (
            replaces_kube_proxy,
            "kube-proxy-replacement=true, as kube-proxy translates tracked connections only",
        ),
        (
            !is_masqueraded || masquerade.enable_bpf_masquerade,
            "enable-bpf-masquerade=true, as iptables masquerades tracked connections only",
        ),
    ];
    if let Some((_, needed)) = needs.into_iter().find(|(is_met, _)| !is_met) {
        return Err(Error::NeedsOption { option: OPTION, needed });
    }
    // An invalid range was refused with the option itself.
    let range = masquerade.native_routing_cidr(Family::Ipv4).unwrap_or_default();
    if range.is_none() {
        tracing::warn!("{OPTION} has no effect without ipv4-native-routing-cidr");
    }
    Ok(range)
}
