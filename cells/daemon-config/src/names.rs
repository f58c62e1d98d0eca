//! The settings in force under the names that the original's API and files give them.

use std::collections::BTreeMap;
use std::path::Path;

use hive::config::{Kind, parse_duration};
use hive::{Setting, Settings};
use serde_json::{Value, json};

/// Options and their names in `daemonConfigurationMap`. Options that only cells of the original know are not there.
const NAMES: [(&str, &str); 64] = [
    ("allow-icmp-frag-needed", "AllowICMPFragNeeded"),
    ("bpf-auth-map-max", "AuthMapEntries"),
    ("bpf-conntrack-accounting", "BPFConntrackAccounting"),
    ("bpf-ct-global-any-max", "CTMapEntriesGlobalAny"),
    ("bpf-ct-global-tcp-max", "CTMapEntriesGlobalTCP"),
    ("bpf-ct-timeout-regular-any", "CTMapEntriesTimeoutAny"),
    ("bpf-ct-timeout-regular-tcp", "CTMapEntriesTimeoutTCP"),
    ("bpf-ct-timeout-regular-tcp-fin", "CTMapEntriesTimeoutFIN"),
    ("bpf-ct-timeout-regular-tcp-syn", "CTMapEntriesTimeoutSYN"),
    ("bpf-ct-timeout-service-any", "CTMapEntriesTimeoutSVCAny"),
    ("bpf-ct-timeout-service-tcp", "CTMapEntriesTimeoutSVCTCP"),
    ("bpf-ct-timeout-service-tcp-grace", "CTMapEntriesTimeoutSVCTCPGrace"),
    ("bpf-distributed-lru", "BPFDistributedLRU"),
    ("bpf-events-drop-enabled", "BPFEventsDropEnabled"),
    ("bpf-events-policy-verdict-enabled", "BPFEventsPolicyVerdictEnabled"),
    ("bpf-events-trace-enabled", "BPFEventsTraceEnabled"),
    ("bpf-fragments-map-max", "FragmentsMapEntries"),
    ("bpf-map-dynamic-size-ratio", "BPFMapsDynamicSizeRatio"),
    ("bpf-nat-global-max", "NATMapEntriesGlobal"),
    ("bpf-neigh-global-max", "NeighMapEntriesGlobal"),
    ("bpf-root", "BPFRoot"),
    ("cgroup-root", "CGroupRoot"),
    ("cluster-health-port", "ClusterHealthPort"),
    ("cluster-id", "ClusterID"),
    ("cluster-name", "ClusterName"),
    ("config", "ConfigFile"),
    ("config-dir", "ConfigDir"),
    ("container-ip-local-reserved-ports", "ContainerIPLocalReservedPorts"),
    ("datapath-mode", "DatapathMode"),
    ("debug", "Debug"),
    ("debug-verbose", "DebugVerbose"),
    ("devices", "Devices"),
    ("enable-bpf-clock-probe", "EnableBPFClockProbe"),
    ("enable-extended-ip-protocols", "EnableExtendedIPProtocols"),
    ("enable-health-checking", "EnableHealthChecking"),
    ("enable-icmp-rules", "EnableICMPRules"),
    ("enable-ipv4", "EnableIPv4"),
    ("enable-ipv4-fragment-tracking", "EnableIPv4FragmentsTracking"),
    ("enable-ipv6", "EnableIPv6"),
    ("enable-ipv6-fragment-tracking", "EnableIPv6FragmentsTracking"),
    ("enable-policy", "EnablePolicy"),
    ("enable-sctp", "EnableSCTP"),
    ("enable-source-ip-verification", "EnableSourceIPVerification"),
    ("force-device-detection", "ForceDeviceRequired"),
    ("install-uplink-routes-for-delegated-ipam", "InstallUplinkRoutesForDelegatedIPAM"),
    ("ipam", "IPAM"),
    ("ipv4-node", "IPv4NodeAddr"),
    ("ipv4-range", "IPv4Range"),
    ("ipv6-cluster-alloc-cidr", "IPv6ClusterAllocCIDR"),
    ("ipv6-node", "IPv6NodeAddr"),
    ("ipv6-range", "IPv6Range"),
    ("keep-config", "KeepConfig"),
    ("local-max-addr-scope", "AddressScopeMax"),
    ("log-driver", "LogDriver"),
    ("log-opt", "LogOpt"),
    ("max-connected-clusters", "MaxConnectedClusters"),
    ("monitor-aggregation", "MonitorAggregation"),
    ("monitor-aggregation-interval", "MonitorAggregationInterval"),
    ("policy-accounting", "PolicyAccounting"),
    ("policy-audit-mode", "PolicyAuditMode"),
    ("preallocate-bpf-maps", "PreAllocateMaps"),
    ("procfs", "ProcFs"),
    ("socket-path", "SocketPath"),
    ("state-dir", "RunDir"),
];

/// The settings in force. Options that no cell of this agent declares are not in force.
pub(crate) fn daemon_configuration(settings: &Settings, created: &str) -> BTreeMap<String, Value> {
    let mut map: BTreeMap<String, Value> = NAMES
        .iter()
        .filter_map(|(key, name)| Some(((*name).to_owned(), value(name, settings.get(key)?))))
        .collect();
    if let Some(run) = settings.get("state-dir") {
        map.insert("StateDir".to_owned(), json!(Path::new(&run.value).join("state")));
    }
    map.insert("CreationTime".to_owned(), json!(created));
    map
}

/// A setting in the JSON type that Go gives it: durations are nanoseconds.
fn value(name: &str, setting: &Setting) -> Value {
    let text = setting.value.as_str();
    let kind = match name {
        // Options that are words here and become numbers and maps when they are read.
        "AddressScopeMax" => Kind::Int(64),
        "LogOpt" => Kind::Map,
        _ => setting.kind,
    };
    let parsed = match kind {
        Kind::Bool => text.parse().ok().map(Value::Bool),
        Kind::Int(_) => text.parse::<i64>().ok().map(Value::from),
        Kind::Uint(_) => text.parse::<u64>().ok().map(Value::from),
        Kind::Float => text.parse::<f64>().ok().map(Value::from),
        Kind::Duration => {
            parse_duration(text).ok().map(|d| json!(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
        }
        Kind::Strings => Some(json!(text.split(',').filter(|item| !item.is_empty()).collect::<Vec<_>>())),
        Kind::Map => Some(map(text)),
        Kind::Text | Kind::Parsed(_) => None,
    };
    parsed.unwrap_or_else(|| Value::from(text))
}

fn map(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| {
        text.split(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (k.to_owned(), json!(v)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name is one that the original prints.
    #[test]
    fn names_are_those_of_the_original() {
        let sample = include_str!("../../api/models/tests/samples/GET_config.json");
        let sample: Value = serde_json::from_str(sample).unwrap();
        let known = sample["status"]["daemonConfigurationMap"].as_object().unwrap();
        for (key, name) in NAMES {
            assert!(known.contains_key(name), "{key} is not {name}");
        }
        assert!(NAMES.is_sorted());
    }
}
