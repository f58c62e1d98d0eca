//! Permissions of the agent and the operator at an API server, and the requests that they have made.

use std::collections::BTreeSet;

use cluster_stage::{Stage, User};

/// Something that a program asks for, as roles say it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// `watch`, `update`.
    pub verb: String,
    /// `pods`, `ciliumnodes/status`.
    pub resource: String,
    /// `cilium.io`; empty for Kubernetes' first group.
    pub group: String,
}

impl Right {
    /// Whether it is one of those by which objects are followed.
    #[must_use]
    pub fn follows(&self) -> bool {
        ["list", "watch"].contains(&self.verb.as_str())
    }
}

/// The permissions that roles of the chart, and `config/roles.yaml`, grant the user once they were applied.
///
/// # Panics
/// When the roles are not there.
#[must_use]
pub fn granted(stage: &Stage, user: User) -> BTreeSet<Right> {
    let [of_cluster, of_namespace] = match user {
        User::Operator => ["cilium-operator", "cilium-operator"],
        User::Agent | User::Admin => ["cilium", "cilium-config-agent"],
    };
    let mut roles = vec![
        stage.get(&["clusterrole", of_cluster]).unwrap(),
        stage.get(&["-n", "kube-system", "role", of_namespace]).unwrap(),
    ];
    // Of the namespaces of secrets, where there are any.
    let of_secrets = match user {
        User::Operator => "cilium-operator-tls-secrets",
        User::Agent | User::Admin => "cilium-envoy-secrets",
    };
    roles.extend(stage.get(&["-n", "cilium-secrets", "role", of_secrets]).ok());
    let mut rights = BTreeSet::new();
    for rule in roles.iter().flat_map(|role| role["rules"].as_array().unwrap()) {
        let names = |of: &str| -> Vec<String> {
            rule[of].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        for verb in names("verbs") {
            for resource in names("resources") {
                let right = |group| Right { verb: verb.clone(), resource: resource.clone(), group };
                rights.extend(names("apiGroups").into_iter().map(right));
            }
        }
    }
    rights
}

/// The user's requests by the audit log of a stage, and those that were refused for lack of a permission.
///
/// # Panics
/// When there is no audit log.
#[must_use]
pub fn asked(stage: &Stage, user: User) -> (BTreeSet<Right>, BTreeSet<Right>) {
    let (mut asked, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for request in stage.audit().unwrap() {
        let text = |pointer: &str| {
            request.pointer(pointer).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
        };
        if text("/user/username") != user.name() {
            continue;
        }
        let resource = match text("/objectRef/subresource") {
            part if part.is_empty() => text("/objectRef/resource"),
            part => format!("{}/{part}", text("/objectRef/resource")),
        };
        let right = Right { verb: text("/verb"), resource, group: text("/objectRef/apiGroup") };
        if request["responseStatus"]["code"] == 403 {
            refused.insert(right.clone());
        }
        // Paths that are no resources, as `/version`, are open to all clients.
        if !right.resource.is_empty() {
            asked.insert(right);
        }
    }
    (asked, refused)
}
