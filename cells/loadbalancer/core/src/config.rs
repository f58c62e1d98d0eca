//! The options of services, in Cilium's spelling. Changes take effect at the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::lbmap::maglev::{Maglev, TABLE_SIZES};

/// Where services come from and how their rows are kept.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Services", check = |config: &Self| config.validate().map_err(|error| error.to_string()))]
pub struct ServicesConfig {
    /// This agent serves all services of the node, no kube-proxy does
    #[flag(default = false)]
    pub kube_proxy_replacement: bool,
    /// File of Services and EndpointSlices (.yaml, .yml or .json), read again when it changes
    #[flag(default = "")]
    pub lb_state_file: String,
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
    pub node_port_range: Vec<String>,
    /// Let services prefer backends of this node or its zone (trafficDistribution, topology annotations)
    #[flag(default = false)]
    pub enable_service_topology: bool,
    /// How long changes of services and endpoint slices that follow each other are taken together
    #[flag(default = "500ms", hidden)]
    pub lb_reflector_wait_time: Duration,
    /// How old levels of maps in metrics may be, 0 for none; they are counted along, so that they never are
    #[flag(default = "5m", hidden)]
    pub lb_pressure_metrics_interval: Duration,
    /// Who gives addresses to load balancers without a class: lbipam, nodeipam or none
    #[flag(default = "lbipam")]
    pub default_lb_service_ipam: String,
    /// How backends are chosen: random, or maglev by a table that is the same on all nodes
    #[flag(default = "random")]
    pub bpf_lb_algorithm: String,
    /// Let services choose by annotation service.cilium.io/lb-algorithm
    #[flag(default = false)]
    pub bpf_lb_algorithm_annotation: bool,
    /// Size of each table of maglev in entries, a prime (64 kB a frontend at 16381)
    #[flag(default = 16381)]
    pub bpf_lb_maglev_table_size: u32,
    /// Seed of the tables of maglev, the same on all nodes: base64 of 12 bytes
    #[flag(default = "JLfvgnHc2kaSUFaI")]
    pub bpf_lb_maglev_hash_seed: String,
    /// Serve clients from outside at addresses of the cluster (ClusterIP), too
    #[flag(default = false)]
    pub bpf_lb_external_clusterip: bool,
    /// Check source ranges of services at all their addresses, not only at those of load balancers
    #[flag(default = false)]
    pub bpf_lb_source_range_all_types: bool,
    /// How replies of backends on other nodes reach clients: snat through this node, dsr straight, hybrid dsr for TCP
    #[flag(default = "snat")]
    pub bpf_lb_mode: String,
    /// Let services choose by annotation service.cilium.io/forwarding-mode
    #[flag(default = false)]
    pub bpf_lb_mode_annotation: bool,
    /// How packets that dsr sends to other nodes carry the address of the service: opt, ipip or geneve
    #[flag(default = "opt")]
    pub bpf_lb_dsr_dispatch: String,
    /// Take the source address of packets for backends on other nodes from the route, not from the device
    #[flag(default = false)]
    pub enable_dynamic_source_lookup_nodeport: bool,
    /// Give addresses of pools to load balancers; without it those without a class are not of this cluster's agents
    #[flag(default = true)]
    pub enable_lb_ipam: bool,
    /// Numbers of zones in the rows of backends, 1 to 255: zone=number, separated by commas
    #[flag(default = "", file_only)]
    pub fixed_zone_mapping: BTreeMap<String, String>,
    /// Handle the services and slices with this label service.kubernetes.io/service-proxy-name, not those without one
    #[flag(default = "")]
    pub k8s_service_proxy_name: String,
}

/// An option that the agent cannot start with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option {option}: '{value}' is wrong; {right}")]
pub struct WrongOption {
    /// The option's name.
    pub option: &'static str,
    /// Its value.
    pub value: String,
    /// A description of valid values.
    pub right: &'static str,
}

impl ServicesConfig {
    /// Checks what the options' types do not.
    pub fn validate(&self) -> Result<(), WrongOption> {
        let wrong = |option, value: &str, right| Err(WrongOption { option, value: value.to_owned(), right });
        if !["lbipam", "nodeipam", "none"].contains(&self.default_lb_service_ipam.as_str()) {
            let value = &self.default_lb_service_ipam;
            return wrong("default-lb-service-ipam", value, "give lbipam, nodeipam or none");
        }
        if !["random", "maglev"].contains(&self.bpf_lb_algorithm.as_str()) {
            return wrong("bpf-lb-algorithm", &self.bpf_lb_algorithm, "give random or maglev");
        }
        if !["snat", "dsr", "hybrid"].contains(&self.bpf_lb_mode.as_str()) {
            return wrong("bpf-lb-mode", &self.bpf_lb_mode, "give snat, dsr or hybrid");
        }
        if !["opt", "ipip", "geneve"].contains(&self.bpf_lb_dsr_dispatch.as_str()) {
            return wrong("bpf-lb-dsr-dispatch", &self.bpf_lb_dsr_dispatch, "give opt, ipip or geneve");
        }
        if self.bpf_lb_mode == "hybrid" && self.bpf_lb_mode_annotation {
            let right = "with hybrid the protocol decides; give false, or set bpf-lb-mode to snat or dsr";
            return wrong("bpf-lb-mode-annotation", "true", right);
        }
        if !TABLE_SIZES.contains(&self.bpf_lb_maglev_table_size) {
            let right = "give 251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521 or 131071";
            return wrong("bpf-lb-maglev-table-size", &self.bpf_lb_maglev_table_size.to_string(), right);
        }
        if Maglev::new(self.bpf_lb_maglev_table_size, &self.bpf_lb_maglev_hash_seed).is_none() {
            let right = "give 12 bytes in base64, such as head -c12 /dev/urandom | base64 prints";
            return wrong("bpf-lb-maglev-hash-seed", &self.bpf_lb_maglev_hash_seed, right);
        }
        if !is_label_value(&self.k8s_service_proxy_name) {
            let right = "give the value of a label: at most 63 letters, digits, '-', '_' and '.'";
            return wrong("k8s-service-proxy-name", &self.k8s_service_proxy_name, right);
        }
        self.zones()?;
        self.node_ports()?;
        if self.lb_reflector_wait_time.is_zero() {
            return wrong("lb-reflector-wait-time", "0s", "give a duration, for instance 500ms");
        }
        if let Some(path) = self.state_file() {
            let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
            if !["yaml", "yml", "json"].contains(&suffix) {
                let right = "give a file whose name ends in .yaml, .yml or .json";
                return wrong("lb-state-file", &self.lb_state_file, right);
            }
        }
        Ok(())
    }

    /// How many positions tables of Maglev have, if frontends may have such.
    pub fn table_size(&self) -> Option<u32> {
        let used = self.bpf_lb_algorithm == "maglev" || self.bpf_lb_algorithm_annotation;
        used.then_some(self.bpf_lb_maglev_table_size)
    }

    /// Options that are set, with their values, for which the datapath has no programs yet.
    pub(crate) fn without_effect(&self) -> Vec<String> {
        let mut options = Vec::new();
        if self.bpf_lb_dsr_dispatch != "opt" {
            options.push(format!("bpf-lb-dsr-dispatch={}", self.bpf_lb_dsr_dispatch));
        }
        if self.enable_dynamic_source_lookup_nodeport {
            options.push("enable-dynamic-source-lookup-nodeport=true".to_owned());
        }
        options
    }

    /// The ports that are for NodePort services alone.
    pub fn node_ports(&self) -> Result<RangeInclusive<u16>, WrongOption> {
        let ports: Vec<u16> =
            self.node_port_range.iter().filter_map(|port| port.trim().parse().ok()).collect();
        match ports[..] {
            [first, last] if self.node_port_range.len() == 2 && 0 < first && first < last => Ok(first..=last),
            _ => Err(WrongOption {
                option: "node-port-range",
                value: self.node_port_range.join(","),
                right: "give the first and the last port, for instance 30000,32767",
            }),
        }
    }

    /// Numbers of zones, by name.
    pub fn zones(&self) -> Result<BTreeMap<String, u8>, WrongOption> {
        let mut taken = BTreeSet::new();
        let number = |(zone, text): (&String, &String)| {
            let number = text.trim().parse().ok().filter(|number| *number != 0 && taken.insert(*number));
            let number = number.filter(|_| !zone.trim().is_empty()).ok_or_else(|| WrongOption {
                option: "fixed-zone-mapping",
                value: format!("{zone}={text}"),
                right: "give each zone a number of its own from 1 to 255, for instance zone-a=1,zone-b=2",
            })?;
            Ok((zone.trim().to_owned(), number))
        };
        self.fixed_zone_mapping.iter().map(number).collect()
    }

    /// The state file, if there is to be one.
    pub fn state_file(&self) -> Option<PathBuf> {
        (!self.lb_state_file.is_empty()).then(|| PathBuf::from(&self.lb_state_file))
    }
}

fn is_label_value(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63 && text.chars().all(inside) && ends(text.chars().next()) && ends(text.chars().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_named_with_what_is_right() {
        ServicesConfig::default().validate().unwrap();
        for name in ["/run/lb.yaml", "lb.yml", "a.b.json"] {
            let config = ServicesConfig { lb_state_file: name.to_owned(), ..Default::default() };
            config.validate().unwrap();
        }
        for name in ["/run/lb.toml", "/run/lb", "/run/yaml"] {
            let config = ServicesConfig { lb_state_file: name.to_owned(), ..Default::default() };
            assert_eq!(
                config.validate().unwrap_err().to_string(),
                format!(
                    "option lb-state-file: '{name}' is wrong; give a file whose name ends in .yaml, .yml or .json"
                )
            );
        }
        let of = |config: ServicesConfig| config.validate().unwrap_err().to_string();
        let wrong = [
            of(ServicesConfig { bpf_lb_algorithm: "hash".to_owned(), ..Default::default() }),
            of(ServicesConfig { bpf_lb_maglev_table_size: 16_000, ..Default::default() }),
            of(ServicesConfig { bpf_lb_maglev_hash_seed: "short".to_owned(), ..Default::default() }),
            of(ServicesConfig { bpf_lb_mode: "direct".to_owned(), ..Default::default() }),
            of(ServicesConfig { bpf_lb_dsr_dispatch: "gre".to_owned(), ..Default::default() }),
            of(ServicesConfig {
                bpf_lb_mode: "hybrid".to_owned(),
                bpf_lb_mode_annotation: true,
                ..Default::default()
            }),
        ];
        let options = [
            "bpf-lb-algorithm",
            "bpf-lb-maglev-table-size",
            "bpf-lb-maglev-hash-seed",
            "bpf-lb-mode",
            "bpf-lb-dsr-dispatch",
            "bpf-lb-mode-annotation",
        ];
        for (text, option) in wrong.iter().zip(options) {
            assert!(text.starts_with(&format!("option {option}: ")) && text.contains("; "), "{text}");
        }
        for (zones, wrong) in [
            (&[("a", "0")][..], "a=0"),
            (&[("a", "256")], "a=256"),
            (&[("a", "x")], "a=x"),
            (&[("a", "1"), ("b", "1")], "b=1"),
            (&[("", "1")], "=1"),
        ] {
            let fixed_zone_mapping =
                zones.iter().map(|(zone, number)| (zone.to_string(), number.to_string())).collect();
            let config = ServicesConfig { fixed_zone_mapping, ..Default::default() };
            assert_eq!(
                config.validate().unwrap_err().to_string(),
                format!(
                    "option fixed-zone-mapping: '{wrong}' is wrong; give each zone a number of its own from 1 to \
                     255, for instance zone-a=1,zone-b=2"
                )
            );
        }
        for name in ["-x", "a b", "x."] {
            let config = ServicesConfig { k8s_service_proxy_name: name.to_owned(), ..Default::default() };
            let error = config.validate().unwrap_err().to_string();
            assert!(error.starts_with("option k8s-service-proxy-name: "), "{error}");
        }
        for range in [&["32767", "30000"][..], &["1"], &["1", "2", "x"], &["0", "9"], &["1", "65536"]] {
            let node_port_range = range.iter().map(|port| port.to_string()).collect();
            let error = ServicesConfig { node_port_range, ..Default::default() }.validate().unwrap_err();
            assert!(error.to_string().contains("the first and the last port"), "{error}");
        }
        assert_eq!(ServicesConfig::default().without_effect(), [] as [String; 0]);
        let config = ServicesConfig {
            bpf_lb_dsr_dispatch: "geneve".to_owned(),
            enable_dynamic_source_lookup_nodeport: true,
            ..Default::default()
        };
        config.validate().unwrap();
        let told = ["bpf-lb-dsr-dispatch=geneve", "enable-dynamic-source-lookup-nodeport=true"];
        assert_eq!(config.without_effect(), told);
        assert_eq!(ServicesConfig::default().node_ports().unwrap(), 30_000..=32_767);
        let config = ServicesConfig { default_lb_service_ipam: "x".to_owned(), ..Default::default() };
        assert!(config.validate().unwrap_err().to_string().contains("give lbipam, nodeipam or none"));
    }
}
