//! The table `node-health` as the health API reports it.

use std::time::{Duration, SystemTime};

use api_models::{
    ConnectivityStatus, HealthEndpointStatus, HealthStatusResponse, HostStatus, List, NodeStatus, PathStatus,
    SelfStatus, rfc3339,
};

use crate::prober::run::CycleReport;
use crate::row::{CheckResult, NodeHealth, Path};

/// Returns the connectivity to all nodes that were probed. Before the first result there are none and no interval, as
/// in Cilium.
pub(crate) fn status<'r>(
    local: String,
    rows: impl Iterator<Item = &'r NodeHealth>,
    cycle: CycleReport,
) -> HealthStatusResponse {
    let nodes: Vec<NodeStatus> = rows.filter(|row| row.is_probed()).map(node).collect();
    let interval = if nodes.is_empty() { Duration::ZERO } else { cycle.length };
    HealthStatusResponse {
        local: Some(SelfStatus { name: local }),
        nodes: if nodes.is_empty() { List(None) } else { nodes.into() },
        probe_interval: go_duration::format(interval),
        timestamp: rfc3339(cycle.start),
    }
}

fn node(row: &NodeHealth) -> NodeStatus {
    let (primary, secondary) = paths(&row.endpoint);
    let endpoint = primary.clone();
    let health_endpoint =
        Some(HealthEndpointStatus { primary_address: primary, secondary_addresses: secondary });
    let (primary, secondary) = paths(&row.host);
    let host = Some(HostStatus { primary_address: primary, secondary_addresses: secondary });
    NodeStatus { endpoint, health_endpoint, host, name: row.name.to_string() }
}

fn paths(paths: &[Path]) -> (Option<PathStatus>, List<PathStatus>) {
    let mut paths = paths.iter().map(|path| {
        let check =
            |check: &Option<CheckResult>| check.as_ref().map(|check| connectivity(check, path.last_probed));
        PathStatus { http: check(&path.http), icmp: check(&path.icmp), ip: path.ip.to_string() }
    });
    (paths.next(), paths.collect())
}

fn connectivity(check: &CheckResult, at: Option<SystemTime>) -> ConnectivityStatus {
    let last_probed = at.map(rfc3339).unwrap_or_default();
    match check {
        Ok(latency) => {
            let latency = i64::try_from(latency.as_nanos()).unwrap_or(i64::MAX);
            ConnectivityStatus { last_probed, latency, status: String::new() }
        }
        Err(failure) => ConnectivityStatus { last_probed, latency: 0, status: failure.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::row::Failure;

    fn cycle() -> CycleReport {
        let start = UNIX_EPOCH + Duration::from_secs(1_795_263_032);
        CycleReport { start, length: crate::config::cycle(Duration::from_secs(60), 2) }
    }

    #[test]
    fn before_the_first_result_the_answer_is_that_of_cilium() {
        let sample = include_str!("../../tests/samples/health_status.json").trim_end();
        let row = NodeHealth {
            name: "peer1".into(),
            local: true,
            host: vec![Path::new([192, 0, 2, 1].into())],
            endpoint: vec![],
        };
        let status = status("peer1".to_owned(), [row].iter(), cycle());
        assert_eq!(serde_json::to_string(&status).unwrap(), sample);
    }

    #[test]
    fn results_have_a_latency_or_an_error() {
        let at = Some(cycle().start);
        let path = |ip: &str, icmp, http| Path { ip: ip.parse().unwrap(), last_probed: at, icmp, http };
        let ok = || Some(Ok(Duration::from_micros(300)));
        let timed_out = || Some(Err(Failure::TimedOut));
        let row = NodeHealth {
            name: "c1/n7".into(),
            local: false,
            host: vec![path("192.0.2.7", ok(), timed_out()), path("2001:db8::7", timed_out(), ok())],
            endpoint: vec![path("10.0.0.7", None, ok())],
        };
        let status = status("n1".to_owned(), [row].iter(), cycle());
        let ok = r#"{"lastProbed":"2026-11-21T12:10:32Z","latency":300000}"#;
        let failed = r#"{"lastProbed":"2026-11-21T12:10:32Z","status":"Connection timed out"}"#;
        let endpoint = format!(r#"{{"http":{ok},"ip":"10.0.0.7"}}"#);
        let expected = format!(
            r#"{{"local":{{"name":"n1"}},"nodes":[{{"endpoint":{endpoint},"health-endpoint":{{"primary-address":{endpoint},"secondary-addresses":[]}},"host":{{"primary-address":{{"http":{failed},"icmp":{ok},"ip":"192.0.2.7"}},"secondary-addresses":[{{"http":{ok},"icmp":{failed},"ip":"2001:db8::7"}}]}},"name":"c1/n7"}}],"probeInterval":"1m5.91673732s","timestamp":"2026-11-21T12:10:32Z"}}"#
        );
        assert_eq!(serde_json::to_string(&status).unwrap(), expected);
    }
}
