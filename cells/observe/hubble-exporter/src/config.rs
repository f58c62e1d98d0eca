//! The options, in Cilium's spelling. Changes take effect at the next start.

use std::time::Duration;

use crate::file::Limits;
use crate::spec::{BadSpec, Spec, filters_of_option};

/// Exporters of flows.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Hubble")]
pub struct ExporterConfig {
    /// File to which flows are written as lines of JSON, or stdout; none if empty
    #[flag(default = "")]
    pub hubble_export_file_path: String,
    /// Size in MB at which the file is renamed and a new one is begun; 0 for 100
    #[flag(default = 10)]
    pub hubble_export_file_max_size_mb: u32,
    /// Number of renamed files that are kept; 0 for all
    #[flag(default = 5)]
    pub hubble_export_file_max_backups: u32,
    /// Compress renamed files
    #[flag(default = false)]
    pub hubble_export_file_compress: bool,
    /// Filters of flows in JSON, one after another: flows that match one are exported; all without a filter
    #[flag(default = "")]
    pub hubble_export_allowlist: String,
    /// Filters of flows in JSON, one after another: flows that match one are not exported
    #[flag(default = "")]
    pub hubble_export_denylist: String,
    /// Fields of flows that are exported; all if empty
    #[flag(default = "")]
    pub hubble_export_fieldmask: Vec<String>,
    /// Fields of flows: those that are equal in them within an interval are exported as one, with their number
    #[flag(default = "")]
    pub hubble_export_fieldaggregate: Vec<String>,
    /// The interval; 0s for no aggregation
    #[flag(default = "0s")]
    pub hubble_export_aggregation_interval: Duration,
    /// YAML file with exporters, which is followed while the agent runs
    #[flag(default = "")]
    pub hubble_flowlogs_config_path: String,
}

/// The size in megabytes of a file without a limit of its own, as in lumberjack.
const UNLIMITED_SIZE_MB: u32 = 100;

impl ExporterConfig {
    /// Returns the exporter of the options; `None` without a file.
    ///
    /// # Errors
    /// A filter is no JSON of a filter.
    pub(crate) fn spec(&self) -> Result<Option<Spec>, BadSpec> {
        if self.hubble_export_file_path.is_empty() {
            return Ok(None);
        }
        let max_size_mb = match self.hubble_export_file_max_size_mb {
            0 => UNLIMITED_SIZE_MB,
            size => size,
        };
        Ok(Some(Spec {
            name: "options".to_owned(),
            path: self.hubble_export_file_path.clone(),
            allow: filters_of_option("hubble-export-allowlist", &self.hubble_export_allowlist)?,
            deny: filters_of_option("hubble-export-denylist", &self.hubble_export_denylist)?,
            fields: words(&self.hubble_export_fieldmask),
            aggregate: words(&self.hubble_export_fieldaggregate),
            interval: self.hubble_export_aggregation_interval,
            limits: Limits {
                max_size: u64::from(max_size_mb) << 20,
                max_backups: self.hubble_export_file_max_backups as usize,
                compress: self.hubble_export_file_compress,
            },
            end: None,
        }))
    }
}

/// Returns the words of a list: the chart joins them by spaces.
fn words(list: &[String]) -> Vec<String> {
    list.iter().flat_map(|item| item.split_whitespace()).map(str::to_owned).collect()
}
