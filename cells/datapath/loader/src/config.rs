//! The options of the datapath, under Cilium's names. Live options, except for the watchdog's interval, are constants
//! of the programs: a change reloads and replaces the programs without losing a packet. The options in
//! [`Notifications`] can be changed by `PATCH /config`, too.

use std::time::Duration;

use crate::programs::vlans::Vlans;
use hive::OptionError;
use runtime_options::{
    DROP_NOTIFICATION, MONITOR_AGGREGATION_LEVEL, POLICY_VERDICT_NOTIFICATION, RuntimeOption,
    TRACE_NOTIFICATION, level,
};

/// How programs are attached and what is compiled into them.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Datapath")]
#[config(check = |config: &Self| config.validate().map_err(|error| error.to_string()))]
pub struct LoaderConfig {
    /// Attach programs to devices by tcx links when the kernel has them (Linux 6.6)
    #[flag(default = true)]
    pub enable_tcx: bool,
    /// Priority of tc filters
    #[flag(default = 1, hidden)]
    pub bpf_filter_priority: u16,
    /// Interval of the check that reattaches removed programs; 0 disables it
    #[flag(default = "30s", live)]
    pub endpoint_bpf_prog_watchdog_interval: Duration,
    /// Route packets between pods and the network by the host's stack, and redirect those between pods of the node to the
    /// host side of the veth, not into the namespace of the pod
    #[flag(default = false)]
    pub enable_host_legacy_routing: bool,
    /// Encode the source identity in the mark of packets that are passed to the host's stack
    #[flag(default = true)]
    pub enable_identity_mark: bool,
    /// Bytes of the packet in each trace event
    #[flag(default = 128, unit = "bytes", live)]
    pub trace_payloadlen: u32,
    /// Aggregation level of trace events: none, lowest, low, medium, maximum
    #[flag(default = "None", live)]
    pub monitor_aggregation: String,
    /// Emit drop events to monitors
    #[flag(default = true, live)]
    pub bpf_events_drop_enabled: bool,
    /// Emit trace events to monitors
    #[flag(default = true, live)]
    pub bpf_events_trace_enabled: bool,
    /// Emit policy verdict events to monitors
    #[flag(default = true, live)]
    pub bpf_events_policy_verdict_enabled: bool,
    /// Count packets and bytes of each policy map entry
    #[flag(default = true, live)]
    pub policy_accounting: bool,
    /// Apply policy to ICMP messages by type
    #[flag(default = true, hidden)]
    pub enable_icmp_rules: bool,
    /// Answer packets that exceed the MTU with direct server return by an ICMP error with the length that fits
    #[flag(default = false)]
    pub enable_pmtu_discovery: bool,
    /// Allow ICMP messages of path MTU discovery regardless of policy
    #[flag(default = true, live)]
    pub allow_icmp_frag_needed: bool,
    /// Enforce policies of nodes (nodeSelector) on packets from and to this host
    #[flag(default = false)]
    pub enable_host_firewall: bool,
    /// Answer to packets of pods that policy denies: none, or icmp (administratively prohibited)
    #[flag(default = "none")]
    pub policy_deny_response: String,
    /// Remove the outer IP headers of packets to pods and addresses of this host, which are for a backend there
    #[flag(default = false)]
    pub enable_ipip_termination: bool,
    /// Ids of VLANs on devices with packets that pass untouched, 0 for all; those of other VLANs are dropped
    #[flag(default = "")]
    pub vlan_bpf_bypass: Vec<String>,
}

/// How connections are tracked; constants of the programs. A change takes effect with the next packets.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Connections")]
#[config(check = |config: &Self| config.report_flags().map(drop).map_err(|error| error.to_string()))]
pub struct ConntrackConfig {
    /// Track SCTP connections
    #[flag(default = false, live)]
    pub enable_sctp: bool,
    /// Forward protocols other than TCP, UDP, SCTP and ICMP, tracked by their addresses
    #[flag(default = false, live)]
    pub enable_extended_ip_protocols: bool,
    /// Count packets and bytes of each connection
    #[flag(default = false, live)]
    pub bpf_conntrack_accounting: bool,
    /// Timeout of idle established TCP connections
    #[flag(default = "2h13m20s", live)]
    pub bpf_ct_timeout_regular_tcp: Duration,
    /// Timeout of idle non-TCP connections
    #[flag(default = "1m0s", live)]
    pub bpf_ct_timeout_regular_any: Duration,
    /// Timeout of TCP connections after both sides have closed
    #[flag(default = "10s", live)]
    pub bpf_ct_timeout_regular_tcp_fin: Duration,
    /// Timeout of TCP connections of which only the SYN was seen
    #[flag(default = "1m0s", live)]
    pub bpf_ct_timeout_regular_tcp_syn: Duration,
    /// Timeout of idle established TCP connections to services
    #[flag(default = "2h13m20s", live)]
    pub bpf_ct_timeout_service_tcp: Duration,
    /// Timeout of idle non-TCP connections to services
    #[flag(default = "1m0s", live)]
    pub bpf_ct_timeout_service_any: Duration,
    /// Grace period in which a closed connection to a service keeps its backend
    #[flag(default = "1m0s", live)]
    pub bpf_ct_timeout_service_tcp_grace: Duration,
    /// Interval of trace events per established connection, with aggregation level medium
    #[flag(default = "5s", live)]
    pub monitor_aggregation_interval: Duration,
    /// TCP flags reported at their first occurrence in a connection: syn, fin, rst, psh, ack, urg, ece, cwr, or all
    #[flag(default = "syn,fin,rst", live)]
    pub monitor_aggregation_flags: Vec<String>,
}

/// The TCP flags, lowest bit first.
const TCP_FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

impl ConntrackConfig {
    /// Returns `monitor-aggregation-flags` as the flags byte of a TCP header.
    pub fn report_flags(&self) -> Result<u8, OptionError> {
        let mut flags = 0;
        for name in self.monitor_aggregation_flags.iter().map(|name| name.trim().to_ascii_lowercase()) {
            let known = TCP_FLAGS.iter().position(|flag| *flag == name).map(|bit| 1 << bit);
            let known = known.or((name == "all").then_some(u8::MAX));
            flags |= known.ok_or_else(|| {
                OptionError::new(
                    "monitor-aggregation-flags",
                    &name,
                    "syn, fin, rst, psh, ack, urg, ece, cwr or all",
                )
            })?;
        }
        Ok(flags)
    }
}

/// The events that are reported to monitors, on the whole node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notifications {
    /// Dropped packets.
    pub(crate) drops: bool,
    /// Forwarded packets.
    pub(crate) traces: bool,
    /// Policy verdicts.
    pub(crate) verdicts: bool,
    /// The aggregation level of trace events ([`datapath_abi::trace::aggregation`]).
    pub(crate) aggregation: u32,
}

impl Notifications {
    /// Returns these events with an option of `PATCH /config` applied; other options are ignored.
    pub(crate) fn with(mut self, option: &RuntimeOption) -> Notifications {
        match option.name {
            DROP_NOTIFICATION => self.drops = option.enabled(),
            TRACE_NOTIFICATION => self.traces = option.enabled(),
            POLICY_VERDICT_NOTIFICATION => self.verdicts = option.enabled(),
            MONITOR_AGGREGATION_LEVEL => self.aggregation = option.level(),
            _ => {}
        }
        self
    }
}

impl LoaderConfig {
    /// Returns the aggregation level as the programs encode it ([`datapath_abi::trace::aggregation`]).
    pub fn aggregation(&self) -> Result<u32, OptionError> {
        level(&self.monitor_aggregation).ok_or_else(|| {
            OptionError::new(
                "monitor-aggregation",
                &self.monitor_aggregation,
                "none, lowest, low, medium or maximum",
            )
        })
    }

    /// Returns the events that the options enable, before any `PATCH /config`.
    pub(crate) fn notifications(&self) -> Result<Notifications, OptionError> {
        Ok(Notifications {
            drops: self.bpf_events_drop_enabled,
            traces: self.bpf_events_trace_enabled,
            verdicts: self.bpf_events_policy_verdict_enabled,
            aggregation: self.aggregation()?,
        })
    }

    /// Whether packets of pods that policy denies are answered by ICMP errors.
    pub(crate) fn answers_denied(&self) -> Result<bool, OptionError> {
        match self.policy_deny_response.as_str() {
            "none" => Ok(false),
            "icmp" => Ok(true),
            other => Err(OptionError::new("policy-deny-response", other, "none or icmp")),
        }
    }

    /// Returns the VLANs that programs of devices leave alone.
    pub(crate) fn vlans(&self) -> Result<Vlans, OptionError> {
        Vlans::new(&self.vlan_bpf_bypass)
    }

    /// Validates the aggregation level, the response to denied packets, the ids of VLANs and the filter priority, which
    /// the types of the fields do not constrain.
    pub fn validate(&self) -> Result<(), OptionError> {
        self.aggregation()?;
        self.answers_denied()?;
        self.vlans()?;
        if self.bpf_filter_priority == 0 {
            return Err(OptionError::new("bpf-filter-priority", "0", "a number from 1 to 65535"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(monitor_aggregation: &str) -> LoaderConfig {
        LoaderConfig {
            enable_tcx: true,
            bpf_filter_priority: 1,
            endpoint_bpf_prog_watchdog_interval: Duration::ZERO,
            enable_host_legacy_routing: false,
            enable_identity_mark: true,
            trace_payloadlen: 128,
            monitor_aggregation: monitor_aggregation.to_owned(),
            bpf_events_drop_enabled: true,
            bpf_events_trace_enabled: true,
            bpf_events_policy_verdict_enabled: true,
            policy_accounting: true,
            enable_icmp_rules: true,
            enable_pmtu_discovery: false,
            allow_icmp_frag_needed: true,
            enable_host_firewall: false,
            policy_deny_response: "none".to_owned(),
            enable_ipip_termination: false,
            vlan_bpf_bypass: Vec::new(),
        }
    }

    #[test]
    fn aggregation_levels_are_parsed_from_names_and_numbers() {
        assert_eq!(config("None").aggregation(), Ok(0));
        assert_eq!(config("medium").aggregation(), Ok(3));
        assert_eq!(config("4").aggregation(), Ok(4));
        assert_eq!(
            config("much").validate().unwrap_err().to_string(),
            "option monitor-aggregation: 'much' is wrong; give none, lowest, low, medium or maximum"
        );
        assert_eq!(config("").aggregation(), Ok(0));
        let zero = LoaderConfig { bpf_filter_priority: 0, ..config("none") };
        assert_eq!(
            zero.validate().unwrap_err().to_string(),
            "option bpf-filter-priority: '0' is wrong; give a number from 1 to 65535"
        );
    }

    #[test]
    fn runtime_options_override_the_options_of_the_start() {
        let start = config("low").notifications().unwrap();
        assert_eq!(start, Notifications { drops: true, traces: true, verdicts: true, aggregation: 2 });
        let verdicts = (POLICY_VERDICT_NOTIFICATION, "off");
        let level = (MONITOR_AGGREGATION_LEVEL, "none");
        let changed = [(DROP_NOTIFICATION, "off"), verdicts, level, ("Debug", "on")];
        let options = changed.map(|(name, value)| RuntimeOption::new(name, value).unwrap());
        let now = options.iter().fold(start, Notifications::with);
        assert_eq!(now, Notifications { drops: false, traces: true, verdicts: false, aggregation: 0 });
    }

    #[test]
    fn report_flags_have_names() {
        let flags = |names: &[&str]| {
            let monitor_aggregation_flags = names.iter().map(|name| (*name).to_owned()).collect();
            ConntrackConfig { monitor_aggregation_flags, ..crate::interfaces::desired::tests::conntrack() }
                .report_flags()
        };
        assert_eq!(flags(&["syn", "FIN", " rst"]), Ok(7));
        assert_eq!(flags(&["all"]), Ok(0xff));
        assert_eq!(flags(&["ack", "cwr"]), Ok(0x90));
        assert_eq!(flags(&[]), Ok(0));
        assert_eq!(
            flags(&["syn", "sin"]).unwrap_err().to_string(),
            "option monitor-aggregation-flags: 'sin' is wrong; give syn, fin, rst, psh, ack, urg, ece, cwr or all"
        );
    }
}
