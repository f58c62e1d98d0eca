//! Names of services.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// The name of a service: `namespace/name`, prefixed by `cluster/` for other clusters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName(Arc<str>);

impl ServiceName {
    /// Returns the name of a service of this cluster.
    pub fn new(namespace: &str, name: &str) -> ServiceName {
        ServiceName([namespace, "/", name].concat().into())
    }

    /// Returns the name of the service of this cluster by its object's key, `namespace/name`.
    pub(crate) fn of_key(key: &str) -> ServiceName {
        ServiceName(key.into())
    }

    /// Returns the name of the service for a host port of a pod; it is not a valid name in Kubernetes, so it cannot
    /// conflict.
    pub fn host_port(namespace: &str, pod: &str, port: u16, uid: &str) -> ServiceName {
        ServiceName(format!("{namespace}/{pod}:host-port:{port}:{uid}").into())
    }

    /// Returns the name of a service that belongs to this one; with a `:` in the suffix it is not a valid name in
    /// Kubernetes, so it cannot conflict.
    pub fn with_suffix(&self, suffix: &str) -> ServiceName {
        ServiceName(format!("{self}{suffix}").into())
    }

    /// Returns the whole text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name within its namespace.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// Returns its namespace.
    pub fn namespace(&self) -> &str {
        let before = self.0.rsplit_once('/').map_or("", |(before, _)| before);
        before.rsplit_once('/').map_or(before, |(_, namespace)| namespace)
    }

    /// Returns its cluster, if it is another one.
    pub fn cluster(&self) -> Option<&str> {
        let (before, _) = self.0.rsplit_once('/')?;
        before.rsplit_once('/').map(|(cluster, _)| cluster)
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for ServiceName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_names() {
        let name = ServiceName::new("ns", "web");
        assert_eq!((name.cluster(), name.namespace(), name.name()), (None, "ns", "web"));
        let name = ServiceName("east/ns/web".into());
        assert_eq!((name.cluster(), name.namespace(), name.name()), (Some("east"), "ns", "web"));
    }
}
