//! Direct server return: backends of other nodes reply to clients themselves, not through this node.

use datapath_abi::dsr::dispatch;
use datapath_abi::{NodeConfig, dsr};
use hive::Settings;
use tunnel::{Protocol, Tunnel};

/// Options that cannot be in force together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// The tunnel cannot carry the frontend.
    #[error(
        "option {option}: '{value}' is wrong with routing-mode=tunnel, tunnel-protocol={protocol} and \
         bpf-lb-dsr-dispatch={dispatch}; give {remedy}, routing-mode=native, or tunnel-protocol=geneve and \
         bpf-lb-dsr-dispatch=geneve"
    )]
    Tunnel {
        /// The option that asks for direct server return.
        option: &'static str,
        /// Its value.
        value: String,
        /// The encapsulation between nodes.
        protocol: &'static str,
        /// The encoding of the frontend.
        dispatch: String,
        /// The value without direct server return.
        remedy: &'static str,
    },
    /// The frontend is to be in packets of a tunnel that is another one, or off.
    #[error(
        "option bpf-lb-dsr-dispatch: 'geneve' needs routing-mode=tunnel and tunnel-protocol=geneve; give both, or \
         bpf-lb-dsr-dispatch=opt with routing-mode=native"
    )]
    NoGeneve,
}

/// Which services use direct server return, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectReturn {
    /// One of [`dsr`].
    services: u8,
    /// How backends of other nodes learn the frontend, one of [`dispatch`].
    dispatch: u8,
    /// Packets that are too long are answered (`enable-pmtu-discovery`).
    icmp: bool,
}

impl DirectReturn {
    /// Reads the options, which the load balancer has checked for themselves. It reports those that have no programs.
    pub(crate) fn new(settings: &Settings, tunnel: &Tunnel) -> Result<Self, Error> {
        let value = |option: &str| settings.get(option).map_or("", |setting| setting.value.as_str());
        if value("kube-proxy-replacement") != "true" {
            return Ok(Self::default());
        }
        let annotation = value("bpf-lb-mode-annotation") == "true";
        let icmp = value("enable-pmtu-discovery") == "true";
        let checked = Self::checked(value("bpf-lb-mode"), annotation, value("bpf-lb-dsr-dispatch"), tunnel)?;
        Ok(Self { icmp, ..checked })
    }

    fn checked(mode: &str, annotation: bool, dispatch: &str, tunnel: &Tunnel) -> Result<Self, Error> {
        let has_mode = matches!(mode, "dsr" | "hybrid");
        if !has_mode && !annotation {
            return Ok(Self::default());
        }
        let (ipip, geneve) = (dispatch == "ipip", dispatch == "geneve");
        let is_geneve = tunnel.is_tunnel() && tunnel.protocol == Protocol::Geneve;
        // Annotations may be used with ipip, which is for receivers outside of the tunnel.
        if tunnel.is_tunnel() && !(is_geneve && geneve) && (has_mode || !ipip) {
            let (option, value, remedy) = match has_mode {
                true => ("bpf-lb-mode", mode, "bpf-lb-mode=snat"),
                false => ("bpf-lb-mode-annotation", "true", "bpf-lb-mode-annotation=false"),
            };
            let (value, dispatch) = (value.to_owned(), dispatch.to_owned());
            let protocol = tunnel.protocol.as_str();
            return Err(Error::Tunnel { option, value, protocol, dispatch, remedy });
        }
        if geneve && !is_geneve {
            return Err(Error::NoGeneve);
        }
        let services = match mode {
            "dsr" if !annotation => dsr::ALL,
            _ => dsr::BY_SERVICE,
        };
        let dispatch = match dispatch {
            "ipip" => dispatch::IPIP,
            "geneve" => dispatch::GENEVE,
            _ => dispatch::OPTION,
        };
        Ok(Self { services, dispatch, icmp: false })
    }

    /// Whether packets leave in outer IP headers.
    pub(crate) fn is_by_ipip(&self) -> bool {
        self.services != dsr::NONE && self.dispatch == dispatch::IPIP
    }

    /// Writes the options into the constants of the programs.
    pub(crate) fn apply(&self, constants: &mut NodeConfig) {
        constants.dsr = self.services;
        constants.dsr_dispatch = self.dispatch;
        constants.dsr_icmp = (self.icmp && self.services != dsr::NONE).into();
    }
}

#[cfg(test)]
mod tests {
    use tunnel::{Family, RoutingMode};

    use super::*;

    fn tunnel(mode: RoutingMode, protocol: Protocol) -> Tunnel {
        Tunnel {
            mode,
            protocol,
            port: 1,
            source_ports: (0, 0),
            underlay: Family::Ipv4,
            is_ipv6_enabled: true,
        }
    }

    #[test]
    fn modes_are_constants() {
        let native = tunnel(RoutingMode::Native, Protocol::Vxlan);
        let constants = |mode, annotation, dispatch, tunnel: &Tunnel| {
            let mut constants = NodeConfig::default();
            DirectReturn::checked(mode, annotation, dispatch, tunnel).unwrap().apply(&mut constants);
            (constants.dsr, constants.dsr_dispatch)
        };
        assert_eq!(constants("snat", false, "opt", &native), (dsr::NONE, 0));
        assert_eq!(constants("dsr", false, "opt", &native), (dsr::ALL, 0));
        assert_eq!(constants("hybrid", false, "opt", &native), (dsr::BY_SERVICE, 0));
        assert_eq!(constants("dsr", true, "opt", &native), (dsr::BY_SERVICE, 0), "services may choose snat");
        assert_eq!(constants("snat", true, "opt", &native), (dsr::BY_SERVICE, 0));
        assert_eq!(constants("dsr", false, "ipip", &native), (dsr::ALL, dispatch::IPIP));
        assert_eq!(constants("hybrid", false, "ipip", &native), (dsr::BY_SERVICE, dispatch::IPIP));
        let geneve = tunnel(RoutingMode::Tunnel, Protocol::Geneve);
        assert_eq!(constants("dsr", false, "geneve", &geneve), (dsr::ALL, dispatch::GENEVE));
        assert_eq!(constants("snat", false, "geneve", &native), (dsr::NONE, 0), "not in use");
        let vxlan = tunnel(RoutingMode::Tunnel, Protocol::Vxlan);
        assert_eq!(constants("snat", true, "ipip", &vxlan), (dsr::BY_SERVICE, dispatch::IPIP));
        let answers = |services| {
            let mut constants = NodeConfig::default();
            DirectReturn { services, dispatch: dispatch::OPTION, icmp: true }.apply(&mut constants);
            constants.dsr_icmp
        };
        assert_eq!((answers(dsr::ALL), answers(dsr::NONE)), (1, 0));
    }

    #[test]
    fn tunnels_that_cannot_carry_the_frontend_are_refused() {
        let vxlan = tunnel(RoutingMode::Tunnel, Protocol::Vxlan);
        let geneve = tunnel(RoutingMode::Tunnel, Protocol::Geneve);
        let native = tunnel(RoutingMode::Native, Protocol::Geneve);
        let error = |mode, annotation, dispatch, tunnel: &Tunnel| {
            DirectReturn::checked(mode, annotation, dispatch, tunnel).unwrap_err()
        };
        let refused = |error: Error| match error {
            Error::Tunnel { option, .. } => option,
            Error::NoGeneve => "bpf-lb-dsr-dispatch",
        };
        for (mode, annotation, dispatch, tunnel, option) in [
            ("dsr", false, "opt", &vxlan, "bpf-lb-mode"),
            ("hybrid", false, "geneve", &vxlan, "bpf-lb-mode"),
            ("dsr", false, "ipip", &vxlan, "bpf-lb-mode"),
            ("dsr", false, "opt", &geneve, "bpf-lb-mode"),
            ("snat", true, "opt", &vxlan, "bpf-lb-mode-annotation"),
            ("snat", true, "geneve", &native, "bpf-lb-dsr-dispatch"),
        ] {
            assert_eq!(refused(error(mode, annotation, dispatch, tunnel)), option, "{mode} {dispatch}");
        }
        assert_eq!(
            error("dsr", false, "opt", &vxlan).to_string(),
            "option bpf-lb-mode: 'dsr' is wrong with routing-mode=tunnel, tunnel-protocol=vxlan and \
             bpf-lb-dsr-dispatch=opt; give bpf-lb-mode=snat, routing-mode=native, or tunnel-protocol=geneve and \
             bpf-lb-dsr-dispatch=geneve"
        );
    }
}
