//! One load of the programs.

use std::time::Duration;

use bpf::{Collection, MapSpec, ObjectFile, RawMap};
use datapath_abi::{Pod, SockConfig};
use datapath_object::sock;
use loadbalancer::ServicesConfig;
use maps::{ClockConfig, FamilyConfig, Maps};

use crate::config::SocketLbConfig;
use crate::error::Error;
use crate::live::LiveValues;

/// The options that the programs depend on.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) config: SocketLbConfig,
    pub(crate) services: ServicesConfig,
    pub(crate) families: FamilyConfig,
    pub(crate) clock: ClockConfig,
    /// Whether only sockets of the host are translated.
    pub(crate) host_only: bool,
    /// The cookie of the host's network namespace; none on kernels that do not report it.
    pub(crate) host_netns_cookie: Option<u64>,
}

impl Options {
    /// Returns the constants of the programs. Blocks while the kernel reports its clock.
    pub(crate) fn constants(&self, live: &LiveValues) -> SockConfig {
        let trace = live.trace.map(|trace| (trace.aggregation, trace.interval.as_nanos() as u64));
        let (monitor_aggregation, trace_interval) = trace.unwrap_or_default();
        let (ports, clock) = (self.services.node_port_range.ports(), self.clock.clock());
        SockConfig {
            host_netns_cookie: self.host_netns_cookie.unwrap_or_default(),
            ticks_in_256_seconds: clock.ticks(Duration::from_secs(256)),
            node_port_first: *ports.start(),
            node_port_last: *ports.end(),
            enable_ipv4: self.families.enable_ipv4.into(),
            enable_ipv6: self.families.enable_ipv6.into(),
            host_only: self.host_only.into(),
            empty_services_drop: live.refuses_empty.into(),
            external_ip_mitigation: (!self.config.disable_external_ip_mitigation).into(),
            jiffies_clock: clock.is_jiffies().into(),
            set_retval: 1,
            trace_sock: trace.is_some().into(),
            trace_interval,
            monitor_aggregation,
            probes: self.services.probes_by_ipip().into(),
            pad: [0; 3],
        }
    }

    /// Returns the names of the programs in the order of their attachment. Without IPv6 in the kernel there are no hooks
    /// for its sockets; without `enable-ipv6` they translate the IPv4 addresses of these.
    pub(crate) fn names(&self, has_ipv6: bool) -> Vec<&'static str> {
        let (ipv4, ipv6) = (self.families.enable_ipv4, has_ipv6);
        let protects_ports = self.services.kube_proxy_replacement && self.config.node_port_bind_protection;
        let mut names = vec![sock::RELEASE];
        if ipv4 {
            names.extend(sock::IPV4);
        }
        if ipv6 {
            names.extend(sock::IPV6);
        }
        if protects_ports {
            names.extend(ipv4.then_some(sock::POST_BIND4));
            names.extend(ipv6.then_some(sock::POST_BIND6));
        }
        if self.services.probes_by_ipip() {
            names.extend(ipv4.then_some(sock::PRE_BIND4));
            names.extend(ipv6.then_some(sock::PRE_BIND6));
        }
        names
    }
}

/// Loads the programs of these names with the node's maps. On a kernel without `bpf_set_retval` refusals are EPERM.
pub(crate) fn load(maps: &Maps, constants: SockConfig, names: &[&str]) -> Result<Collection, Error> {
    let mut object = ObjectFile::parse("sock", sock::object())?;
    object.retain_programs(|name| names.contains(&name));
    let mut opened = Vec::new();
    for spec in object.maps() {
        let map = match maps.shared(&spec.name)? {
            Some(map) => map,
            None => stand_in(&spec)?,
        };
        opened.push((spec.name.into_owned(), map));
    }
    let opened: Vec<(&str, &RawMap)> = opened.iter().map(|(name, map)| (&**name, map)).collect();
    let with = |constants: SockConfig| {
        let mut object = object.clone();
        object.set_global(sock::SOCK_CONFIG, constants.as_bytes())?;
        object.load(&opened, maps.load_threads())
    };
    match with(constants) {
        Err(bpf::Error::Verifier { .. }) if constants.set_retval != 0 => {
            tracing::debug!("The kernel has no errors of their own for refused connections, they are EPERM");
            Ok(with(SockConfig { set_retval: 0, ..constants })?)
        }
        loaded => Ok(loaded?),
    }
}

/// Creates a map of one entry in place of one that this node does not have: the verifier removes the code that would use
/// it.
fn stand_in(spec: &MapSpec) -> bpf::Result<RawMap> {
    let mut spec = spec.clone();
    spec.layout.max_entries = 1;
    RawMap::create(&spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Trace;
    use loadbalancer::{DsrDispatch, LbMode};

    #[test]
    fn programs_follow_the_options_and_the_ways_back_come_first() {
        let mut options = Options {
            config: SocketLbConfig {
                cgroup_root: String::new(),
                disable_external_ip_mitigation: false,
                node_port_bind_protection: true,
                trace_sock: true,
            },
            services: ServicesConfig::default(),
            families: FamilyConfig { enable_ipv4: true, enable_ipv6: false },
            clock: ClockConfig { enable_bpf_clock_probe: false },
            host_only: false,
            host_netns_cookie: Some(7),
        };
        let names = options.names(true);
        assert_eq!(names.len(), 9);
        let place = |name: &str| names.iter().position(|known| *known == name).unwrap();
        assert!(place("cil_sock4_recvmsg") < place("cil_sock4_sendmsg"));
        assert!(place("cil_sock6_getpeername") < place("cil_sock6_connect"));
        assert_eq!(options.names(false).len(), 5, "a kernel without IPv6");
        options.services.kube_proxy_replacement = true;
        assert_eq!(options.names(true).len(), 11);
        options.config.node_port_bind_protection = false;
        assert_eq!(options.names(true).len(), 9);
        assert_eq!(options.constants(&LiveValues::default()).probes, 0);
        options.services.bpf_lb_mode = LbMode::Dsr;
        options.services.bpf_lb_dsr_dispatch = DsrDispatch::Ipip;
        options.services.bpf_lb_ipip_sock_mark = true;
        assert_eq!(options.names(true)[9..], [sock::PRE_BIND4, sock::PRE_BIND6]);
        assert_eq!(options.constants(&LiveValues::default()).probes, 1);
        let trace = Trace { aggregation: 3, interval: Duration::from_secs(5) };
        let constants = options.constants(&LiveValues { refuses_empty: true, trace: Some(trace) });
        let traced = (constants.trace_sock, constants.monitor_aggregation, constants.trace_interval);
        assert_eq!((constants.empty_services_drop, traced), (1, (1, 3, 5_000_000_000)));
        assert_eq!(options.constants(&LiveValues::default()).trace_sock, 0);
        assert_eq!((constants.enable_ipv4, constants.enable_ipv6), (1, 0));
        assert_eq!((constants.node_port_first, constants.node_port_last), (30_000, 32_767));
        assert_eq!((constants.external_ip_mitigation, constants.ticks_in_256_seconds), (1, 256));
    }
}
