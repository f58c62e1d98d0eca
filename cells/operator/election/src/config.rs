//! Options.

use std::time::Duration;

use crate::election::Timing;

/// Options of the election. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Leader election", check = |config: &Self| config.check())]
pub struct ElectionConfig {
    /// How long others wait after the last renewal that they have seen before they take the lease
    #[flag(default = "15s")]
    pub leader_election_lease_duration: Duration,
    /// How long the leader tries to renew the lease before it ends
    #[flag(default = "10s")]
    pub leader_election_renew_deadline: Duration,
    /// Time between two attempts to get or renew the lease
    #[flag(default = "2s")]
    pub leader_election_retry_period: Duration,
    /// Limit of a request for the lease; 0 for half of the renew deadline, at least 1s
    #[flag(default = "0s")]
    pub leader_election_resource_lock_timeout: Duration,
    /// Namespace of the operator, where its lease is; empty for default
    #[flag(default = "")]
    pub k8s_namespace: String,
}

impl ElectionConfig {
    /// The conditions of client-go.
    fn check(&self) -> Result<(), String> {
        let (lease, deadline, retry) = (
            self.leader_election_lease_duration,
            self.leader_election_renew_deadline,
            self.leader_election_retry_period,
        );
        if lease < Duration::from_secs(1) || lease <= deadline {
            return Err(format!(
                "leader-election-lease-duration: {lease:?} is wrong: give at least 1s, and more than \
                 leader-election-renew-deadline ({deadline:?})"
            ));
        }
        if deadline.as_secs_f64() <= retry.as_secs_f64() * 1.2 || retry.is_zero() {
            return Err(format!(
                "leader-election-retry-period: {retry:?} is wrong: give more than 0s, and less than \
                 leader-election-renew-deadline ({deadline:?}) by a fifth"
            ));
        }
        Ok(())
    }

    /// The namespace of the lease.
    pub(crate) fn namespace(&self) -> &str {
        if self.k8s_namespace.is_empty() { k8s_types::DEFAULT_NAMESPACE } else { &self.k8s_namespace }
    }

    pub(crate) fn timing(&self) -> Timing {
        Timing {
            lease: self.leader_election_lease_duration,
            renew_deadline: self.leader_election_renew_deadline,
            retry: self.leader_election_retry_period,
        }
    }

    /// Limit of a request.
    pub(crate) fn request_timeout(&self) -> Duration {
        match self.leader_election_resource_lock_timeout {
            Duration::ZERO => (self.leader_election_renew_deadline / 2).max(Duration::from_secs(1)),
            limit => limit,
        }
    }
}
