//! Options for the CNI plugin, which reads them by `GET /config`.

use crate::error::Error;

/// Options for the CNI plugin. Changes take effect for pods that are created after the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Pods and CNI", check = |config: &Self| config.validate().map_err(|error| error.to_string()))]
pub struct CniConfig {
    /// Device type of pods: veth, or auto, which is veth
    #[flag(default = "veth")]
    pub datapath_mode: String,
    /// MTU probing in pods: blackhole, always or disabled
    #[flag(default = "blackhole")]
    pub packetization_layer_pmtud_mode: String,
    /// Ports that pods must not use as ephemeral ones, auto for those that the agent itself needs: none
    #[flag(default = "auto")]
    pub container_ip_local_reserved_ports: String,
    /// Routes via the uplink for addresses of a delegated plugin
    #[flag(default = false)]
    pub install_uplink_routes_for_delegated_ipam: bool,
    /// Route MTU also for pods of chained plugins
    #[flag(default = false)]
    pub enable_route_mtu_for_cni_chaining: bool,
}

impl CniConfig {
    /// Returns the first invalid option as an error.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let one_of = |key, value: &str, permitted: &[&str], expected| {
            let wrong = Error::Option { key, value: value.to_owned(), expected };
            if permitted.contains(&value) { Ok(()) } else { Err(wrong) }
        };
        one_of("datapath-mode", &self.datapath_mode, &["veth", "auto"], "veth or auto")?;
        self.pmtud_mode().map(drop)
    }

    /// Returns the value of `net.ipv4.tcp_mtu_probing` for the mode; empty: do not change it.
    pub(crate) fn pmtud_mode(&self) -> Result<&'static str, Error> {
        match self.packetization_layer_pmtud_mode.as_str() {
            "blackhole" => Ok("1"),
            "always" => Ok("2"),
            "disabled" | "" => Ok(""),
            other => Err(Error::Option {
                key: "packetization-layer-pmtud-mode",
                value: other.to_owned(),
                expected: "blackhole, always or disabled",
            }),
        }
    }

    /// Returns the ports to reserve; empty for none.
    pub(crate) fn reserved_ports(&self) -> &str {
        match self.container_ip_local_reserved_ports.as_str() {
            "auto" => "",
            ports => ports,
        }
    }
}
