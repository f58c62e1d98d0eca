//! Names of resources: qualified by the object that they are from, as in Cilium.

/// The object that resources are from; the namespace is empty for a clusterwide one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'o> {
    pub(crate) namespace: &'o str,
    pub(crate) name: &'o str,
}

impl Origin<'_> {
    /// Returns the name of a resource of the object: of a listener, a route, a virtual host. One that begins with the
    /// namespace is qualified already.
    pub(crate) fn own(self, name: &str) -> String {
        let Origin { namespace, name: object } = self;
        let is_qualified = name.strip_prefix(namespace).is_some_and(|rest| rest.starts_with('/'));
        match name.is_empty() || is_qualified {
            true => name.to_owned(),
            false => format!("{namespace}/{object}/{name}"),
        }
    }

    /// Returns the name of a resource that may be of another object: of a cluster, a secret.
    pub(crate) fn shared(self, name: &str) -> String {
        if name.contains('/') { name.to_owned() } else { self.own(name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_qualified_once() {
        let of_web = Origin { namespace: "web", name: "gate" };
        assert_eq!(of_web.own("front"), "web/gate/front");
        assert_eq!(of_web.own("web/gate/front"), "web/gate/front");
        assert_eq!(of_web.own("webfront"), "web/gate/webfront");
        assert_eq!(of_web.own("other/front"), "web/gate/other/front");
        assert_eq!(of_web.own(""), "");
        assert_eq!(of_web.shared("other/store"), "other/store");
        assert_eq!(of_web.shared("store"), "web/gate/store");
        let clusterwide = Origin { namespace: "", name: "gate" };
        assert_eq!(clusterwide.own("front"), "/gate/front");
        assert_eq!(clusterwide.own("/gate/front"), "/gate/front");
        assert_eq!(clusterwide.own("web/front"), "/gate/web/front");
    }
}
