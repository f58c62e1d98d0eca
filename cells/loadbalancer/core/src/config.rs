//! The options of services, in Cilium's spelling. Changes take effect at the next start.

use std::time::Duration;

use hive::OptionError;
use ipnetwork::IpNetwork;

use crate::model::service::Algorithm;
use crate::option_values::{
    Acceleration, DsrDispatch, LbMode, MaglevSeed, MaglevTableSize, NodePortRange, ServiceIpam,
    ServiceProxyName, StateFilePath, ZoneIds,
};

/// The options of services: sources, reconciliation, algorithms, modes.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Services", check = |config: &Self| config.validate().map_err(|error| error.to_string()))]
pub struct ServicesConfig {
    /// This agent serves all services of the node, no kube-proxy does
    #[flag(default = false)]
    pub kube_proxy_replacement: bool,
    /// File of Services and EndpointSlices (.yaml, .yml or .json), read again when it changes
    #[flag(default = "")]
    pub lb_state_file: Option<StateFilePath>,
    /// How long that file must be left alone before it is read again
    #[flag(default = "1s", hidden)]
    pub lb_state_file_interval: Duration,
    /// How long services of the previous run wait for all sources before any of them is changed
    #[flag(default = "1m", hidden)]
    pub lb_init_wait_timeout: Duration,
    /// First wait before rows that the kernel refused are written again
    #[flag(default = "1s", hidden)]
    pub lb_retry_backoff_min: Duration,
    /// Longest wait before rows that the kernel refused are written again
    #[flag(default = "1s", hidden)]
    pub lb_retry_backoff_max: Duration,
    /// Ports that are for NodePort services alone: the first and the last
    #[flag(default = "30000,32767")]
    pub node_port_range: NodePortRange,
    /// Let services prefer backends of this node or its zone (trafficDistribution, topology annotations)
    #[flag(default = false)]
    pub enable_service_topology: bool,
    /// How long changes of services and endpoint slices that follow each other are taken together
    #[flag(default = "500ms", hidden)]
    pub lb_reflector_wait_time: Duration,
    /// How old levels of maps in metrics may be, 0 for none; they are counted along, so that they never are
    #[flag(default = "5m", hidden)]
    pub lb_pressure_metrics_interval: Duration,
    /// Owner of the addresses of load balancers without a class: lbipam, nodeipam or none
    #[flag(default = "lbipam")]
    pub default_lb_service_ipam: ServiceIpam,
    /// How backends are chosen: random, or maglev by a table that is the same on all nodes
    #[flag(default = "random")]
    pub bpf_lb_algorithm: Algorithm,
    /// Let services choose by annotation service.cilium.io/lb-algorithm
    #[flag(default = false)]
    pub bpf_lb_algorithm_annotation: bool,
    /// Size of each table of maglev in entries, a prime (64 kB a frontend at 16381)
    #[flag(default = 16381)]
    pub bpf_lb_maglev_table_size: MaglevTableSize,
    /// Seed of the tables of maglev, the same on all nodes: base64 of 12 bytes
    #[flag(default = "JLfvgnHc2kaSUFaI")]
    pub bpf_lb_maglev_hash_seed: MaglevSeed,
    /// Serve clients from outside at addresses of the cluster (ClusterIP), too
    #[flag(default = false)]
    pub bpf_lb_external_clusterip: bool,
    /// Check source ranges of services at all their addresses, not only at those of load balancers
    #[flag(default = false)]
    pub bpf_lb_source_range_all_types: bool,
    /// How replies of backends on other nodes reach clients: snat through this node, dsr straight, hybrid dsr for TCP
    #[flag(default = "snat")]
    pub bpf_lb_mode: LbMode,
    /// Let services choose by annotation service.cilium.io/forwarding-mode
    #[flag(default = false)]
    pub bpf_lb_mode_annotation: bool,
    /// How packets that dsr sends to other nodes carry the address of the service: opt, ipip or geneve
    #[flag(default = "opt")]
    pub bpf_lb_dsr_dispatch: DsrDispatch,
    /// Range of sources of outer IPv4 headers that XDP writes (dsr by ipip), by a hash of the flow; empty: the node's
    #[flag(default = "")]
    pub bpf_lb_rss_ipv4_src_cidr: String,
    /// Range of sources of outer IPv6 headers that XDP writes (dsr by ipip), by a hash of the flow; empty: the node's
    #[flag(default = "")]
    pub bpf_lb_rss_ipv6_src_cidr: String,
    /// Send packets of health probes in an outer header to the backend that their socket names (dsr by ipip): one with
    /// SO_MARK 0xd00, bound to the backend's address and connected to the frontend
    #[flag(default = false, hidden)]
    pub bpf_lb_ipip_sock_mark: bool,
    /// Handle services before the kernel's stack, by XDP: native by drivers of devices, best-effort by those that can
    #[flag(default = "disabled")]
    pub bpf_lb_acceleration: Acceleration,
    /// Take the source address of packets for backends on other nodes from the route, not from the device
    #[flag(default = false)]
    pub enable_dynamic_source_lookup_nodeport: bool,
    /// Be a gateway between the families: packets to 64:ff9b::/96 continue as IPv4, those of IPv4 to other machines as IPv6
    #[flag(default = false)]
    pub enable_nat46x64_gateway: bool,
    /// Let frontends for clients outside have backends of the other family, if their service has none of their own
    #[flag(default = false, hidden)]
    pub bpf_lb_nat46x64: bool,
    /// Assign addresses of pools to load balancers; without it those without a class are not of this cluster's agents
    #[flag(default = true)]
    pub enable_lb_ipam: bool,
    /// Ids of zones in the map entries of backends, 1 to 255: zone=id, separated by commas
    #[flag(default = "", file_only)]
    pub fixed_zone_mapping: ZoneIds,
    /// Handle the services and slices with this label service.kubernetes.io/service-proxy-name, not those without one
    #[flag(default = "")]
    pub k8s_service_proxy_name: ServiceProxyName,
}

impl ServicesConfig {
    /// Checks options that depend on each other.
    pub fn validate(&self) -> Result<(), OptionError> {
        let wrong = |option, value: &str, expected| Err(OptionError::new(option, value, expected));
        if self.bpf_lb_mode == LbMode::Hybrid && self.bpf_lb_mode_annotation {
            let right = "false, or set bpf-lb-mode to snat or dsr: with hybrid the protocol decides";
            return wrong("bpf-lb-mode-annotation", "true", right);
        }
        let ranges = [
            (
                "bpf-lb-rss-ipv4-src-cidr",
                &self.bpf_lb_rss_ipv4_src_cidr,
                "a range of IPv4 such as 10.200.0.0/16",
            ),
            (
                "bpf-lb-rss-ipv6-src-cidr",
                &self.bpf_lb_rss_ipv6_src_cidr,
                "a range of IPv6 such as fd00:200::/64",
            ),
        ];
        for (option, text, expected) in ranges.into_iter().filter(|(_, text, _)| !text.is_empty()) {
            let range: Option<IpNetwork> = text.parse().ok();
            if !range.is_some_and(|range| range.prefix() > 0 && range.is_ipv4() == option.contains("ipv4")) {
                return wrong(option, text, expected);
            }
            if !self.sends_by_ipip() {
                let expected = "no range, or set bpf-lb-mode=dsr and bpf-lb-dsr-dispatch=ipip: others have no outer header";
                return wrong(option, text, expected);
            }
        }
        if self.bpf_lb_ipip_sock_mark && !self.sends_by_ipip() {
            let expected =
                "false, or set bpf-lb-mode=dsr and bpf-lb-dsr-dispatch=ipip: others have no outer header";
            return wrong("bpf-lb-ipip-sock-mark", "true", expected);
        }
        if self.lb_reflector_wait_time.is_zero() {
            return wrong("lb-reflector-wait-time", "0s", "a duration, for instance 500ms");
        }
        Ok(())
    }

    /// Returns the number of positions of Maglev tables, if frontends may have such tables.
    pub fn table_size(&self) -> Option<u32> {
        let used = self.bpf_lb_algorithm == Algorithm::Maglev || self.bpf_lb_algorithm_annotation;
        used.then(|| self.bpf_lb_maglev_table_size.positions())
    }

    /// Returns whether backends of other nodes may reply to clients themselves: of all services, or of those that ask for
    /// it.
    pub(crate) fn has_direct_return(&self) -> bool {
        self.bpf_lb_mode != LbMode::Snat || self.bpf_lb_mode_annotation
    }

    /// Returns whether packets to backends of other nodes leave in an outer IP header.
    fn sends_by_ipip(&self) -> bool {
        self.has_direct_return() && self.bpf_lb_dsr_dispatch == DsrDispatch::Ipip
    }

    /// Returns whether sockets of health probes name the backend that they ask.
    pub fn probes_by_ipip(&self) -> bool {
        self.kube_proxy_replacement && self.bpf_lb_ipip_sock_mark && self.sends_by_ipip()
    }

    /// Returns whether frontends may have backends of the other family.
    pub(crate) fn translates(&self) -> bool {
        self.kube_proxy_replacement && self.bpf_lb_nat46x64
    }

    /// Returns options that are set, with their values and remedies, for which the datapath has no programs yet.
    pub(crate) fn without_effect(&self) -> Vec<String> {
        let mut options = Vec::new();
        let translations = [
            (self.enable_nat46x64_gateway, "enable-nat46x64-gateway"),
            (self.bpf_lb_nat46x64, "bpf-lb-nat46x64"),
            (self.bpf_lb_ipip_sock_mark, "bpf-lb-ipip-sock-mark"),
        ];
        for (_, option) in translations.iter().filter(|(is_on, _)| *is_on && !self.kube_proxy_replacement) {
            options.push(format!("{option}=true (set kube-proxy-replacement=true as well)"));
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the options from `--option=value`; returns the first error as text.
    fn read(arguments: &[&str]) -> Result<ServicesConfig, String> {
        let builder = hive::Hive::builder(hive::config::<ServicesConfig>()).args(arguments.iter().copied());
        match builder.build() {
            Ok(hive) => hive.config::<ServicesConfig>().map_err(|error| error.to_string()),
            Err(hive::HiveError::Config(faults)) => Err(faults[0].to_string()),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn values_are_read_by_their_types() {
        let default = ServicesConfig::default();
        default.validate().unwrap();
        assert_eq!(read(&[]), Ok(default.clone()));
        assert_eq!((default.lb_state_file, default.node_port_range.ports()), (None, 30_000..=32_767));
        for name in ["/run/lb.yaml", "lb.yml", "a.b.json"] {
            let file = read(&[&format!("--lb-state-file={name}")]).unwrap().lb_state_file.unwrap();
            assert_eq!(file.as_ref(), std::path::Path::new(name));
        }
        let config =
            read(&["--node-port-range=1, 2", "--bpf-lb-mode=hybrid", "--bpf-lb-algorithm=maglev"]).unwrap();
        assert_eq!(config.node_port_range.ports(), 1..=2);
        assert_eq!((config.bpf_lb_mode, config.table_size()), (LbMode::Hybrid, Some(16_381)));
    }

    #[test]
    fn invalid_values_are_named_with_valid_ones() {
        let mut wrong = vec![
            ("lb-state-file", "/run/lb.toml", "a file whose name ends in .yaml, .yml or .json"),
            ("lb-state-file", "/run/lb", "a file whose name ends in .yaml, .yml or .json"),
            ("lb-state-file", "/run/yaml", "a file whose name ends in .yaml, .yml or .json"),
            ("default-lb-service-ipam", "dhcp", "lbipam, nodeipam or none"),
            ("bpf-lb-algorithm", "hash", "random or maglev"),
            (
                "bpf-lb-maglev-table-size",
                "16000",
                "251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521 or 131071",
            ),
            (
                "bpf-lb-maglev-hash-seed",
                "short",
                "12 bytes in base64 (such as head -c12 /dev/urandom | base64 prints)",
            ),
            ("bpf-lb-mode", "direct", "snat, dsr or hybrid"),
            ("bpf-lb-dsr-dispatch", "gre", "opt, ipip or geneve"),
        ];
        for range in ["32767,30000", "1", "1,2,x", "0,9", "1,65536"] {
            let expected = "the first and the last port of a range (such as 30000,32767)";
            wrong.push(("node-port-range", range, expected));
        }
        for name in ["-x", "a b", "x."] {
            let expected = "the value of a label: at most 63 letters, digits, '-', '_' and '.'";
            wrong.push(("k8s-service-proxy-name", name, expected));
        }
        for (option, value, expected) in wrong {
            let error = read(&[&format!("--{option}={value}")]).unwrap_err();
            assert_eq!(error, format!("command line: option {option}: \"{value}\" is not {expected}"));
        }
    }

    #[test]
    fn a_wrong_zone_is_named() {
        for (zones, wrong) in
            [("a=0", "a=0"), ("a=256", "a=256"), ("a=x", "a=x"), ("a=1,b=1", "b=1"), ("=1", "=1")]
        {
            let hive = hive::Hive::builder(hive::config::<ServicesConfig>());
            let error = hive.set("fixed-zone-mapping", zones).build().err().unwrap().to_string();
            let expected = format!(
                "option fixed-zone-mapping: \"{zones}\" is not a list of zones, each with an id of its own from 1 to \
                 255 (such as zone-a=1,zone-b=2) ({wrong})"
            );
            assert!(error.ends_with(&expected), "{error}");
        }
    }

    #[test]
    fn options_that_depend_on_each_other_are_checked() {
        for arguments in
            [&["--bpf-lb-mode=hybrid", "--bpf-lb-mode-annotation"][..], &["--lb-reflector-wait-time=0s"]]
        {
            let error = read(arguments).unwrap_err();
            let (option, _) =
                arguments.last().unwrap()[2..].split_once('=').unwrap_or(("bpf-lb-mode-annotation", ""));
            assert!(error.starts_with(&format!("option {option}: ")) && error.contains("; give "), "{error}");
        }
    }

    #[test]
    fn ranges_of_sources_belong_to_outer_headers() {
        const BY_IPIP: [&str; 2] = ["--bpf-lb-mode=dsr", "--bpf-lb-dsr-dispatch=ipip"];
        let error = |arguments: &[&str]| read(arguments).unwrap_err();
        for (option, good, bad) in [
            (
                "bpf-lb-rss-ipv4-src-cidr",
                "10.200.0.0/16",
                ["fd00::/64", "10.0.0.0/0", "10.0.0", "0.0.0.0/33"],
            ),
            ("bpf-lb-rss-ipv6-src-cidr", "fd00::/64", ["10.200.0.0/16", "::/0", "fd00", "::/129"]),
        ] {
            let argument = |value: &str| format!("--{option}={value}");
            read(&[BY_IPIP[0], BY_IPIP[1], &argument(good)]).unwrap();
            read(&["--bpf-lb-mode-annotation", BY_IPIP[1], &argument(good)]).unwrap();
            for value in bad {
                let text = error(&[BY_IPIP[0], BY_IPIP[1], &argument(value)]);
                let family = if option.contains("ipv4") { "IPv4" } else { "IPv6" };
                let expected =
                    format!("option {option}: '{value}' is wrong; give a range of {family} such as ");
                assert!(text.starts_with(&expected), "{text}");
            }
            for mode in [&BY_IPIP[..1], &BY_IPIP[1..]] {
                let text = error(&[mode[0], &argument(good)]);
                let expected = "give no range, or set bpf-lb-mode=dsr and bpf-lb-dsr-dispatch=ipip: ";
                assert!(text.contains(expected), "{text}");
            }
        }
    }

    #[test]
    fn probes_name_their_backends_with_outer_headers_only() {
        const MARK: &str = "--bpf-lb-ipip-sock-mark";
        let by_ipip = ["--bpf-lb-mode=dsr", "--bpf-lb-dsr-dispatch=ipip", MARK];
        for arguments in [&[MARK][..], &by_ipip[1..], &[by_ipip[0], MARK]] {
            let text = read(arguments).unwrap_err();
            let expected =
                "option bpf-lb-ipip-sock-mark: 'true' is wrong; give false, or set bpf-lb-mode=dsr and ";
            assert!(text.starts_with(expected), "{text}");
        }
        let config = read(&by_ipip).unwrap();
        assert_eq!(
            config.without_effect(),
            ["bpf-lb-ipip-sock-mark=true (set kube-proxy-replacement=true as well)"]
        );
        assert!(!config.probes_by_ipip());
        assert!(ServicesConfig { kube_proxy_replacement: true, ..config }.probes_by_ipip());
    }

    #[test]
    fn options_without_programs_are_reported() {
        assert_eq!(ServicesConfig::default().without_effect(), [] as [String; 0]);
        let gateway = ServicesConfig { enable_nat46x64_gateway: true, ..ServicesConfig::default() };
        let expected = ["enable-nat46x64-gateway=true (set kube-proxy-replacement=true as well)"];
        assert_eq!(gateway.without_effect(), expected);
        let served = ServicesConfig { kube_proxy_replacement: true, bpf_lb_nat46x64: true, ..gateway };
        assert_eq!(served.without_effect(), [] as [String; 0]);
    }
}
