//! BPF host routing: whether packets between pods and the network bypass the host's stack.
//!
//! The conditions are Cilium's, and one more: with endpoint routes the stack delivers to pods by their routes. Cilium's
//! condition on the kernel's helpers is always met: an agent does not start without them.

use maps::FamilyConfig;
use masquerade::MasqueradeConfig;
use tunnel::{EndpointRoutesConfig, Family};

use crate::config::LoaderConfig;

/// How packets are routed between pods and the network: both directions bypass the host's stack, or neither. If its
/// conntrack saw only one direction of a connection, firewalls would drop packets of the other one as invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostRouting {
    /// By the programs.
    Bpf,
    /// Through the stack.
    Legacy(LegacyReason),
}

/// The reason for routing through the host's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegacyReason {
    /// `enable-host-legacy-routing`.
    Option,
    /// The programs of devices do not translate: no `kube-proxy-replacement`.
    NoReplacement,
    /// Rules of iptables masquerade, of which the programs would bypass the chain.
    Iptables,
    /// `enable-endpoint-routes`.
    EndpointRoutes,
}

impl HostRouting {
    /// Returns what the options give, with or without `kube-proxy-replacement`.
    pub(crate) fn new(
        config: &LoaderConfig,
        families: &FamilyConfig,
        masquerade: &MasqueradeConfig,
        endpoint_routes: &EndpointRoutesConfig,
        replacement: bool,
    ) -> Self {
        let iptables = families.enable_ipv4 && masquerade.is_in_iptables(Family::Ipv4)
            || families.enable_ipv6 && masquerade.is_in_iptables(Family::Ipv6);
        Self::with(config, replacement, iptables, endpoint_routes)
    }

    fn with(
        config: &LoaderConfig,
        replacement: bool,
        iptables: bool,
        endpoint_routes: &EndpointRoutesConfig,
    ) -> Self {
        if config.enable_host_legacy_routing {
            Self::Legacy(LegacyReason::Option)
        } else if !replacement {
            Self::Legacy(LegacyReason::NoReplacement)
        } else if iptables {
            Self::Legacy(LegacyReason::Iptables)
        } else if endpoint_routes.enable_endpoint_routes {
            Self::Legacy(LegacyReason::EndpointRoutes)
        } else {
            Self::Bpf
        }
    }

    /// Returns the value in `GET /healthz` (`intra-host-routing-mode`).
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Legacy(_) => "Legacy",
            Self::Bpf => "BPF",
        }
    }

    /// Returns the message for health.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Bpf => "BPF: packets between pods and the network bypass the host's stack",
            Self::Legacy(LegacyReason::Option) => "Legacy: enable-host-legacy-routing",
            Self::Legacy(LegacyReason::NoReplacement) => "Legacy: kube-proxy-replacement is off",
            Self::Legacy(LegacyReason::Iptables) => {
                "Legacy: iptables masquerades; set enable-bpf-masquerade, or disable masquerading"
            }
            Self::Legacy(LegacyReason::EndpointRoutes) => {
                "Legacy: enable-endpoint-routes has the stack deliver to pods"
            }
        }
    }

    /// Returns the reason if the options ask for the bypass and do not get it.
    pub(crate) fn fallback(self) -> Option<&'static str> {
        match self {
            Self::Bpf | Self::Legacy(LegacyReason::Option) => None,
            Self::Legacy(_) => Some(self.message()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interfaces::desired::tests::config;

    #[test]
    fn the_stack_is_bypassed_only_if_the_programs_do_all_of_its_work() {
        let routing = |enable_host_legacy_routing, replacement, iptables, enable_endpoint_routes| {
            let config = LoaderConfig { enable_host_legacy_routing, ..config() };
            HostRouting::with(
                &config,
                replacement,
                iptables,
                &EndpointRoutesConfig { enable_endpoint_routes },
            )
        };
        assert_eq!(routing(false, true, false, false), HostRouting::Bpf);
        assert_eq!((HostRouting::Bpf.word(), HostRouting::Bpf.fallback()), ("BPF", None));
        let option = routing(true, false, true, true);
        assert_eq!(option, HostRouting::Legacy(LegacyReason::Option));
        assert_eq!(option.fallback(), None, "as the options ask for");
        for (routing, reason, named) in [
            (routing(false, false, false, false), LegacyReason::NoReplacement, "kube-proxy-replacement"),
            (routing(false, true, true, false), LegacyReason::Iptables, "enable-bpf-masquerade"),
            (routing(false, true, false, true), LegacyReason::EndpointRoutes, "enable-endpoint-routes"),
        ] {
            assert_eq!((routing, routing.word()), (HostRouting::Legacy(reason), "Legacy"));
            assert!(routing.fallback().unwrap().contains(named), "{routing:?}");
        }
    }
}
