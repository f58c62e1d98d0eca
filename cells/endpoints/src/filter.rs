//! Which labels make up an identity: the default prefixes of `--labels`.

use labels::{Label, Labels, RESERVED};

/// Prefixes that count although a shorter one is excluded.
const INCLUDED: [&str; 3] =
    ["io.kubernetes.pod.namespace", "io.cilium.k8s.namespace.labels", "app.kubernetes.io"];

/// Prefixes of labels that change with every rollout or say nothing of the workload.
const EXCLUDED: [&str; 13] = [
    "io.kubernetes",
    "kubernetes.io",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/controller-uid",
    "k8s.io",
    "pod-template-generation",
    "pod-template-hash",
    "controller-revision-hash",
    "annotation",
    "controller-uid",
    "etcd_node",
];

/// Splits labels into those of the identity and those for information only.
pub(crate) fn split(labels: &Labels) -> (Labels, Labels) {
    let (identity, info): (Vec<Label>, Vec<Label>) = labels.0.values().cloned().partition(counts);
    (identity.into_iter().collect(), info.into_iter().collect())
}

fn counts(label: &Label) -> bool {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| label.key.starts_with(prefix));
    label.source == RESERVED
        || starts(&INCLUDED)
        || !(starts(&EXCLUDED) || label.key.contains("beta.kubernetes.io"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollout_labels_are_no_part_of_the_identity() {
        let labels = Labels::parse([
            "k8s:app=web",
            "k8s:app.kubernetes.io/name=web",
            "k8s:io.kubernetes.pod.namespace=default",
            "k8s:pod-template-hash=abc",
            "k8s:io.kubernetes.container.hash=1",
            "k8s:topology.beta.kubernetes.io/zone=a",
            "reserved:init",
        ]);
        let (identity, info) = split(&labels);
        let keys: Vec<&str> = identity.0.keys().map(String::as_str).collect();
        assert_eq!(keys, ["app", "app.kubernetes.io/name", "init", "io.kubernetes.pod.namespace"]);
        assert_eq!(info.0.len(), 3);
    }
}
