//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::path::PathBuf;
use std::time::Duration;

/// The observer of flows.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Hubble")]
pub struct HubbleConfig {
    /// Keep flows of the node's packets and serve them to clients of Hubble: costs the copies of packet headers that programs make, and a ring of flows
    #[flag(default = false)]
    pub enable_hubble: bool,
    /// Unix socket on which flows are served
    #[flag(default = "/var/run/cilium/hubble.sock")]
    pub hubble_socket_path: PathBuf,
    /// Number of flows that are kept, of about 2.5 KB each: a power of two minus one, at most 65535
    #[flag(default = 4095)]
    pub hubble_event_buffer_capacity: u32,
    /// Number of events that wait to be decoded, about 250 bytes each; 0 for 1,024 per CPU
    #[flag(default = 0)]
    pub hubble_event_queue_size: u32,
    /// The shortest time between two reports of lost events to a client
    #[flag(default = "1s")]
    pub hubble_lost_event_send_interval: Duration,
    /// Kinds of events that are kept: agent, capture, debug, drop, l7, policy-verdict, trace, trace-sock; empty for all
    #[flag(default = "")]
    pub hubble_monitor_events: Vec<String>,
    /// Skip translations at sockets of processes that are in no pod; without, their flows have no source
    #[flag(default = true)]
    pub hubble_skip_unknown_cgroup_ids: bool,
    /// Name the rules of policies in flows of verdicts: costs a copy of an endpoint's policy for each change of its peers
    #[flag(default = true)]
    pub hubble_network_policy_correlation_enabled: bool,
}

/// Contents of requests that flows do not have.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Hubble")]
pub struct RedactConfig {
    /// Redact contents of requests in flows: values of headers, and by the options below
    #[flag(default = false)]
    pub hubble_redact_enabled: bool,
    /// Remove queries and fragments of URLs
    #[flag(default = false)]
    pub hubble_redact_http_urlquery: bool,
    /// Redact passwords in URLs; they are redacted without hubble-redact-enabled, too
    #[flag(default = true)]
    pub hubble_redact_http_userinfo: bool,
    /// HTTP headers that keep their values
    #[flag(default = "")]
    pub hubble_redact_http_headers_allow: Vec<String>,
    /// HTTP headers with redacted values, instead of all
    #[flag(default = "")]
    pub hubble_redact_http_headers_deny: Vec<String>,
}

/// An option that Hubble cannot start with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A capacity that Cilium does not have either.
    #[error(
        "hubble-event-buffer-capacity: {found} is not one less than a power of two, from 1 to 65535; give {nearest}"
    )]
    Capacity {
        /// The option.
        found: u32,
        /// A valid capacity near it.
        nearest: u32,
    },
    /// Clients would get a report per event.
    #[error("hubble-lost-event-send-interval: must be longer than 0s; the default is 1s")]
    Interval,
    /// Two lists that exclude each other.
    #[error(
        "hubble-redact-http-headers-allow and hubble-redact-http-headers-deny: give one of them, not both"
    )]
    Headers,
}

impl HubbleConfig {
    /// Checks the options; they count only with `enable-hubble`.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let found = self.hubble_event_buffer_capacity;
        if !(1..=65_535).contains(&found) || !(found + 1).is_power_of_two() {
            let nearest = found.clamp(2, 65_535).next_power_of_two() - 1;
            return Err(Error::Capacity { found, nearest });
        }
        if self.hubble_lost_event_send_interval.is_zero() {
            return Err(Error::Interval);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_one_less_than_a_power_of_two() {
        let check = |capacity| {
            let config = HubbleConfig {
                enable_hubble: true,
                hubble_socket_path: PathBuf::new(),
                hubble_event_buffer_capacity: capacity,
                hubble_event_queue_size: 0,
                hubble_lost_event_send_interval: Duration::from_secs(1),
                hubble_monitor_events: Vec::new(),
                hubble_skip_unknown_cgroup_ids: true,
                hubble_network_policy_correlation_enabled: true,
            };
            config.check()
        };
        for valid in [1, 3, 7, 4095, 65_535] {
            assert_eq!(check(valid), Ok(()));
        }
        for (found, nearest) in [(0, 1), (4000, 4095), (4096, 4095), (65_536, 65_535), (u32::MAX, 65_535)] {
            assert_eq!(check(found), Err(Error::Capacity { found, nearest }));
        }
    }
}
