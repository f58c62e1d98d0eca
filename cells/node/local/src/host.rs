//! Facts of the machine: its name and the id of this boot.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use crate::Error;

/// Environment variable with the name of the Kubernetes node (downward API).
const NODE_NAME: &str = "K8S_NODE_NAME";

/// The node's name in Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// Reads `K8S_NODE_NAME`, else the host's name.
    pub fn of_this_node() -> Result<NodeName, Error> {
        node_name().map(|name| NodeName(name.into()))
    }

    /// Creates a node name, for tests.
    pub fn new(name: &str) -> NodeName {
        NodeName(name.into())
    }
}

impl Deref for NodeName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Reads `K8S_NODE_NAME`, else the host's name.
pub(crate) fn node_name() -> Result<String, Error> {
    match env::var(NODE_NAME) {
        Ok(name) if !name.is_empty() => Ok(name),
        _ => read(Path::new("/proc/sys/kernel/hostname")),
    }
}

/// Reads the kernel's id of this boot.
pub(crate) fn boot_id() -> Result<String, Error> {
    read(Path::new("/proc/sys/kernel/random/boot_id"))
}

fn read(path: &Path) -> Result<String, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(Error::File { path: PathBuf::from(path), source }),
    }
}
