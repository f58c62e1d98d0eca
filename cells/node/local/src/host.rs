//! What the machine says of itself: its name and this boot's number.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use crate::Error;

/// The variable by which Kubernetes tells the agent the name of its node.
const NODE_NAME: &str = "K8S_NODE_NAME";

/// The node's name, as Kubernetes knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// `K8S_NODE_NAME`, else the host's name.
    pub fn of_this_node() -> Result<NodeName, Error> {
        node_name().map(|name| NodeName(name.into()))
    }

    /// A node of this name, for tests.
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

/// `K8S_NODE_NAME`, else the host's name.
pub(crate) fn node_name() -> Result<String, Error> {
    match env::var(NODE_NAME) {
        Ok(name) if !name.is_empty() => Ok(name),
        _ => read(Path::new("/proc/sys/kernel/hostname")),
    }
}

/// The kernel's number of this boot.
pub(crate) fn boot_id() -> Result<String, Error> {
    read(Path::new("/proc/sys/kernel/random/boot_id"))
}

fn read(path: &Path) -> Result<String, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(Error::File { path: PathBuf::from(path), source }),
    }
}
