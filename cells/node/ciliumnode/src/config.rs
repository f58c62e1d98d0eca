//! The options.

use std::collections::BTreeMap;

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
    /// Number of addresses that a node waits for at its start, with ipam=crd, azure or alibabacloud; 0 leaves the CiliumNode as it is
    #[flag(default = 0)]
    pub ipam_min_allocate: u32,
    /// Number of free addresses that the operator keeps allocated to the node, with these modes; 0 leaves the CiliumNode as it is
    #[flag(default = 0)]
    pub ipam_pre_allocate: u32,
    /// Largest number of addresses that the operator allocates to the node, with these modes; 0 leaves the CiliumNode as it is
    #[flag(default = 0)]
    pub ipam_max_allocate: u32,
    /// Tags of a static public address that the operator assigns to the node, with these modes
    pub ipam_static_ip_tags: BTreeMap<String, String>,
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
