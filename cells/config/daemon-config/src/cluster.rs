//! The configuration in cluster objects, compared with the running one.

use std::fmt;
use std::sync::Arc;

use config_sources::{ClusterConfig, SourcesConfig};
use hive::config::{Drift, Source, Supplied};
use hive::prelude::*;
use hive::{LiveConfig, Settings};
use statedb::{Table, Watch};

/// The effective configuration of all cluster objects.
pub(crate) struct Cluster {
    table: Arc<Table<ClusterConfig>>,
    followed: bool,
}

pub(crate) fn new_cluster(
    config: Config<SourcesConfig>,
    settings: Arc<Settings>,
    table: Arc<Table<ClusterConfig>>,
) -> Arc<Cluster> {
    // The default object may belong to another agent: follow objects only if they are configured explicitly.
    let named = settings.get("config-sources").is_some_and(|setting| setting.source != Source::Default);
    let followed = named && config.apply_dynamic_config && config.enable_dynamic_config;
    Arc::new(Cluster { table, followed })
}

impl Cluster {
    /// Whether live options follow the objects.
    pub(crate) fn is_followed(&self) -> bool {
        self.followed
    }

    /// Whether there are no objects, once all sources are complete.
    pub(crate) fn is_nothing(&self) -> bool {
        let snapshot = self.table.snapshot();
        self.table.initialized(&snapshot) && self.table.is_empty(&snapshot)
    }

    /// Returns the effective value of each option, once all objects are known, and a watch of it.
    pub(crate) fn values(&self) -> (Vec<Supplied>, Watch) {
        let snapshot = self.table.snapshot();
        let (initialized, watch) = self.table.initialized_watch(&snapshot);
        if !initialized {
            return (vec![], watch);
        }
        let (_, watch) = self.table.all_watch(&snapshot);
        let supplied = |row: &ClusterConfig| Supplied::new(&row.key, &row.value, &row.object);
        (ClusterConfig::effective(&self.table, &snapshot).into_iter().map(supplied).collect(), watch)
    }
}

/// An option with a value in an object that differs from the running one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterDrift {
    pub(crate) drift: Drift,
    /// The object.
    pub(crate) object: String,
}

impl ClusterDrift {
    /// Returns the values that differ from the running ones.
    pub(crate) fn of(values: &[Supplied], live: &LiveConfig) -> Vec<ClusterDrift> {
        let drift = |value: &Supplied| {
            let drift = live.drift(&value.key, &value.value)?;
            Some(ClusterDrift { drift, object: value.source.clone() })
        };
        values.iter().filter_map(drift).collect()
    }
}

/// A line of the page that reports drift.
impl fmt::Display for ClusterDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClusterDrift { drift: Drift { key, wanted, running, .. }, object } = self;
        let running =
            running.as_ref().map(|running| format!("running with {running:?}, ")).unwrap_or_default();
        write!(
            f,
            "{key}: {running}{object} says {wanted:?}: not followed, see config-sources and apply-dynamic-config"
        )
    }
}
