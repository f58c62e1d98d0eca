//! Options that cannot be in force together.

use maps::FamilyConfig;
use tunnel::{Family, RoutingMode, Tunnel};

use crate::MasqueradeConfig;

/// Options of masquerading that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The option is one of rules of iptables.
    #[error(
        "option {option}: '{value}' has no effect with enable-bpf-masquerade=true; remove it, or give \
         enable-bpf-masquerade=false"
    )]
    OfIptables {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
    },
    /// The option is one of the programs.
    #[error("option {option}: true needs enable-bpf-masquerade=true; give it, or remove {option}")]
    OfPrograms {
        /// The option.
        option: &'static str,
    },
    /// No family is masqueraded.
    #[error(
        "option enable-bpf-masquerade: true needs enable-ipv4-masquerade=true or enable-ipv6-masquerade=true; set one \
         of an enabled family, or give enable-bpf-masquerade=false"
    )]
    NoFamily,
    /// Which addresses the network routes is unknown.
    #[error(
        "option {option}: '' is wrong with routing-mode=native and enable-bpf-masquerade=true; give the range of all \
         pods that the network routes, such as {example}, or the ranges in a \
         file with enable-ip-masq-agent=true"
    )]
    NoNativeRange {
        /// The option.
        option: &'static str,
        /// A range of the family.
        example: &'static str,
    },
}

/// Checks the options against each other.
pub(crate) fn check(
    config: &MasqueradeConfig,
    families: &FamilyConfig,
    tunnel: &Tunnel,
) -> Result<(), Error> {
    if !config.enable_bpf_masquerade {
        let of_programs = [
            ("enable-ip-masq-agent", config.enable_ip_masq_agent),
            ("enable-remote-node-masquerade", config.enable_remote_node_masquerade),
        ];
        let given = of_programs.into_iter().find(|(_, is_on)| *is_on);
        return given.map_or(Ok(()), |(option, _)| Err(Error::OfPrograms { option }));
    }
    if !config.egress_masquerade_interfaces.is_empty() {
        let value = config.egress_masquerade_interfaces.join(",");
        return Err(Error::OfIptables { option: "egress-masquerade-interfaces", value });
    }
    if config.enable_masquerade_to_route_source {
        let value = "true".to_owned();
        return Err(Error::OfIptables { option: "enable-masquerade-to-route-source", value });
    }
    let is_on = |family| {
        let is_enabled = match family {
            Family::Ipv4 => families.enable_ipv4,
            Family::Ipv6 => families.enable_ipv6,
        };
        is_enabled && config.is_enabled(family)
    };
    let enabled: Vec<Family> = [Family::Ipv4, Family::Ipv6].into_iter().filter(|f| is_on(*f)).collect();
    if enabled.is_empty() {
        return Err(Error::NoFamily);
    }
    for family in enabled {
        // An invalid range was refused with the option itself.
        let range = config.native_routing_cidr(family).unwrap_or_default();
        if range.is_none() && !config.enable_ip_masq_agent && tunnel.mode != RoutingMode::Tunnel {
            return Err(match family {
                Family::Ipv4 => {
                    Error::NoNativeRange { option: "ipv4-native-routing-cidr", example: "10.0.0.0/8" }
                }
                Family::Ipv6 => {
                    Error::NoNativeRange { option: "ipv6-native-routing-cidr", example: "fd00::/16" }
                }
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tunnel::Protocol;

    use super::*;
    use crate::config::tests::masquerade;

    #[test]
    fn contradictions_name_the_option_the_value_and_the_remedy() {
        let both = FamilyConfig { enable_ipv4: true, enable_ipv6: true };
        let tunnel = |mode| Tunnel {
            mode,
            protocol: Protocol::Vxlan,
            port: 8472,
            source_ports: (0, 0),
            underlay: Family::Ipv4,
            is_ipv6_enabled: true,
        };
        let error = |config: &MasqueradeConfig, mode| match check(config, &both, &tunnel(mode)) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        let on = MasqueradeConfig { enable_bpf_masquerade: true, ..masquerade() };
        assert_eq!(error(&on, RoutingMode::Tunnel), "");
        assert_eq!(error(&masquerade(), RoutingMode::Native), "");
        let devices = MasqueradeConfig { egress_masquerade_interfaces: vec!["eth+".into()], ..on.clone() };
        assert_eq!(
            error(&devices, RoutingMode::Tunnel),
            "option egress-masquerade-interfaces: 'eth+' has no effect with enable-bpf-masquerade=true; remove it, or \
             give enable-bpf-masquerade=false"
        );
        let route = MasqueradeConfig { enable_masquerade_to_route_source: true, ..on.clone() };
        assert!(
            error(&route, RoutingMode::Tunnel)
                .starts_with("option enable-masquerade-to-route-source: 'true'")
        );
        let none =
            MasqueradeConfig { enable_ipv4_masquerade: false, enable_ipv6_masquerade: false, ..on.clone() };
        assert!(error(&none, RoutingMode::Tunnel).starts_with("option enable-bpf-masquerade: true needs"));
        for mode in [RoutingMode::Native, RoutingMode::Hybrid] {
            assert!(error(&on, mode).contains("ipv4-native-routing-cidr"));
        }
        let agent = MasqueradeConfig { enable_ip_masq_agent: true, ..on.clone() };
        assert_eq!(error(&agent, RoutingMode::Native), "", "the file has the ranges");
        for (option, config) in [
            ("enable-ip-masq-agent", MasqueradeConfig { enable_ip_masq_agent: true, ..masquerade() }),
            (
                "enable-remote-node-masquerade",
                MasqueradeConfig { enable_remote_node_masquerade: true, ..masquerade() },
            ),
        ] {
            let text = format!(
                "option {option}: true needs enable-bpf-masquerade=true; give it, or remove {option}"
            );
            assert_eq!(error(&config, RoutingMode::Tunnel), text);
        }
        let ipv4 = MasqueradeConfig { ipv4_native_routing_cidr: "10.0.0.0/8".into(), ..on };
        assert!(error(&ipv4, RoutingMode::Native).contains("ipv6-native-routing-cidr"));
    }
}
