//! How programs choose backends of services.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use datapath_abi::NodeConfig;
use hive::Settings;

/// The options of the choice of a backend, which the load balancer has checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balancing {
    /// Proxies have packets of services that Envoy configurations name; sockets leave these to packets.
    proxied: bool,
    /// Devices choose by Maglev tables.
    maglev: bool,
    /// Services choose the algorithm.
    annotation: bool,
    /// Positions of a table; 0 without tables.
    table_size: u32,
    /// Seeds of the hashes of IPv4 and IPv6 flows.
    seeds: [u32; 2],
}

impl Balancing {
    /// Reads the options. `table_size` is that of the maps that the programs are loaded with, if there are any.
    pub(crate) fn new(settings: &Settings, table_size: Option<u32>) -> Self {
        let value = |option: &str| settings.get(option).map_or("", |setting| &setting.value);
        let proxied = value("enable-envoy-config") == "true";
        let Some(table_size) = table_size else { return Self { proxied, ..Self::default() } };
        Self {
            proxied,
            maglev: value("bpf-lb-algorithm") == "maglev",
            annotation: value("bpf-lb-algorithm-annotation") == "true",
            table_size,
            seeds: seeds(value("bpf-lb-maglev-hash-seed")).unwrap_or_default(),
        }
    }

    /// Writes the options into the constants of the programs.
    pub(crate) fn apply(&self, constants: &mut NodeConfig) {
        if self.proxied {
            constants.per_packet_lb = 1;
        }
        constants.maglev = self.maglev.into();
        constants.algorithm_annotation = self.annotation.into();
        constants.maglev_table_size = self.table_size;
        [constants.maglev_seed_ipv4, constants.maglev_seed_ipv6] = self.seeds;
    }
}

/// Returns the seeds of the hashes of flows: the second and the third word of the option. The first is that of tables.
fn seeds(option: &str) -> Option<[u32; 2]> {
    let bytes: [u8; 12] = BASE64_STANDARD.decode(option).ok()?.try_into().ok()?;
    let [_, _, _, _, a, b, c, d, e, f, g, h] = bytes;
    Some([u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_the_last_words_of_the_option() {
        assert_eq!(seeds("AAAAAAECAwQFBgcI"), Some([0x0102_0304, 0x0506_0708]));
        assert_eq!(seeds("AAAA"), None);
    }

    #[test]
    fn constants_are_those_of_the_options() {
        let mut constants = NodeConfig::default();
        Balancing::default().apply(&mut constants);
        assert_eq!(constants.per_packet_lb, 0);
        let all = Balancing { proxied: true, maglev: true, annotation: true, table_size: 251, seeds: [1, 2] };
        all.apply(&mut constants);
        assert_eq!(constants.per_packet_lb, 1);
        assert_eq!((constants.maglev, constants.algorithm_annotation), (1, 1));
        assert_eq!(
            (constants.maglev_table_size, constants.maglev_seed_ipv4, constants.maglev_seed_ipv6),
            (251, 1, 2)
        );
    }
}
