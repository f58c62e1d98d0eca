//! The options of endpoints.

use std::time::Duration;

use identity_core::FilterError;
use labels::Filter;

/// Options of endpoints. Changes take effect for endpoints created after the next start; `PATCH /config` changes source
/// verification for those created from then on.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Pods and CNI")]
pub struct EndpointsConfig {
    /// Interval of endpoint garbage collection: endpoints without interface in two sweeps are deleted
    #[flag(default = "5m", hidden, live)]
    pub endpoint_gc_interval: Duration,
    /// Drop packets of endpoints that carry a foreign source address
    #[flag(default = false, file_only)]
    pub enable_source_ip_verification: bool,
    /// How long a request waits for an identity of the cluster, at most the 30 s of a request
    #[flag(default = "2m")]
    pub identity_allocation_timeout: Duration,
    /// Maximum random delay before an identity is created for labels of a pod that have changed
    #[flag(default = "30s")]
    pub identity_max_jitter: Duration,
    /// When restoring state, keeps containers' configuration in place
    #[flag(default = false)]
    pub keep_config: bool,
    /// Prefixes of the labels that make up identities, SOURCE:PATTERN or SOURCE:!PATTERN each; added to the defaults
    #[flag(default = "")]
    pub labels: Vec<String>,
    /// JSON file of prefixes that replace the defaults
    #[flag(default = "")]
    pub label_prefix_file: String,
}

impl EndpointsConfig {
    /// Returns the filter of identity-relevant labels. Reads the file, if there is one.
    pub(crate) fn filter(&self) -> Result<Filter, FilterError> {
        identity_core::filter_of_options(&self.labels, &self.label_prefix_file)
    }
}
