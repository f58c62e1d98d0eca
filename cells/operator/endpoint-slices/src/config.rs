//! Options.

use serde::Deserialize;

use crate::Error;

/// Options of CiliumEndpointSlices. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Kubernetes", check = |config: &Self| config.check())]
pub struct EndpointSlicesConfig {
    /// Whether CiliumEndpointSlices are in use; otherwise all that there are are deleted once
    #[flag(default = false)]
    pub enable_cilium_endpoint_slice: bool,
    /// CiliumEndpoints of a CiliumEndpointSlice at most
    #[flag(default = 100)]
    pub ces_max_ciliumendpoints_per_ces: usize,
    /// Writes of CiliumEndpointSlices a second (limit, burst) in clusters of at least so many nodes, as a JSON list
    #[flag(default = r#"[{"nodes":0,"limit":10,"burst":20}]"#)]
    pub ces_rate_limits: String,
}

/// A rate of writes in clusters of at least so many nodes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateLimit {
    pub(crate) nodes: usize,
    /// Writes a second.
    pub(crate) limit: f64,
    pub(crate) burst: u64,
}

impl EndpointSlicesConfig {
    /// Returns the rates, by nodes.
    pub(crate) fn rate_limits(&self) -> Result<Vec<RateLimit>, Error> {
        let value = &self.ces_rate_limits;
        let refused = |reason: String| Error::RateLimits { value: value.clone(), reason };
        let mut limits: Vec<RateLimit> =
            serde_json::from_str(value).map_err(|error| refused(error.to_string()))?;
        limits.sort_by_key(|limit| limit.nodes);
        if limits.iter().any(|limit| !limit.limit.is_finite() || limit.limit <= 0.0 || limit.burst == 0) {
            return Err(refused("limit and burst are positive numbers".to_owned()));
        }
        if limits.first().is_none_or(|first| first.nodes != 0) {
            return Err(refused("an entry with nodes 0 is needed".to_owned()));
        }
        if limits.windows(2).any(|pair| pair[0].nodes == pair[1].nodes) {
            return Err(refused("two entries have the same number of nodes".to_owned()));
        }
        Ok(limits)
    }

    fn check(&self) -> Result<(), String> {
        if self.ces_max_ciliumendpoints_per_ces == 0 {
            return Err("ces-max-ciliumendpoints-per-ces: 0 is wrong: give at least 1".to_owned());
        }
        self.rate_limits().map(drop).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(value: &str) -> Result<Vec<RateLimit>, String> {
        let config = EndpointSlicesConfig {
            enable_cilium_endpoint_slice: true,
            ces_max_ciliumendpoints_per_ces: 100,
            ces_rate_limits: value.to_owned(),
        };
        config.rate_limits().map_err(|error| error.to_string())
    }

    #[test]
    fn limits_are_sorted_by_nodes_and_wrong_ones_are_named() {
        let chart = r#"[{"nodes":100,"limit":50,"burst":100},{"nodes":0,"limit":0.5,"burst":20}]"#;
        let expected = [
            RateLimit { nodes: 0, limit: 0.5, burst: 20 },
            RateLimit { nodes: 100, limit: 50.0, burst: 100 },
        ];
        assert_eq!(limits(chart).unwrap(), expected);
        for (value, reason) in [
            ("", "EOF"),
            ("[]", "an entry with nodes 0"),
            (r#"[{"nodes":5,"limit":1,"burst":1}]"#, "an entry with nodes 0"),
            (r#"[{"nodes":0,"limit":0,"burst":1}]"#, "positive"),
            (r#"[{"nodes":0,"limit":1,"burst":0}]"#, "positive"),
            (r#"[{"nodes":0,"limit":1,"burst":1,"brust":1}]"#, "brust"),
            (r#"[{"nodes":0,"limit":1,"burst":1},{"nodes":0,"limit":2,"burst":1}]"#, "same number of nodes"),
        ] {
            let error = limits(value).unwrap_err();
            assert!(error.starts_with("ces-rate-limits: ") && error.contains(reason), "{value}: {error}");
        }
    }
}
