//! The options.

use regex::Regex;

use crate::Error;

/// Options about the CiliumNode. Changes take effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Kubernetes")]
pub struct CiliumNodeConfig {
    /// Create and update the CiliumNode of this node
    #[flag(default = true)]
    pub auto_create_cilium_node_resource: bool,
    /// Regular expressions of names of Node labels that the CiliumNode does not get
    pub exclude_node_label_patterns: Vec<String>,
}

impl CiliumNodeConfig {
    /// Parses the patterns of labels.
    pub(crate) fn excluded_labels(&self) -> Result<Vec<Regex>, Error> {
        let parse = |pattern: &String| {
            Regex::new(pattern).map_err(|source| Error::Pattern { pattern: pattern.clone(), source })
        };
        self.exclude_node_label_patterns.iter().map(parse).collect()
    }
}
