//! Fixed identities, which exist before any is allocated.

use labels::{Label, LabelArray};

use crate::identity::Identity;

/// The reserved identities, by id.
const RESERVED: [(u32, &[&str]); 10] = [
    (1, &["host"]),
    (2, &["world"]),
    (3, &["unmanaged"]),
    (4, &["health"]),
    (5, &["init"]),
    (6, &["remote-node"]),
    (7, &["kube-apiserver", "remote-node"]),
    (8, &["ingress"]),
    (9, &["world-ipv4"]),
    (10, &["world-ipv6"]),
];

const DNS: [&str; 1] = ["k8s:k8s-app=kube-dns"];
const OPERATOR: [&str; 4] = [
    "k8s:app.kubernetes.io/name=cilium-operator",
    "k8s:app.kubernetes.io/part-of=cilium",
    "k8s:io.cilium/app=operator",
    "k8s:name=cilium-operator",
];
const METADATA_NAME: &str = "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name";

/// A component that every cluster has: its identities without and with the label of its namespace's name.
struct WellKnown {
    ids: [u32; 2],
    labels: &'static [&'static str],
    extra: Option<&'static str>,
    service_account: &'static str,
    /// Whether it is in the system's namespace, instead of that of the agent.
    system: bool,
}

const WELL_KNOWN: [WellKnown; 5] = [
    WellKnown { ids: [102, 110], labels: &DNS, extra: None, service_account: "kube-dns", system: true },
    WellKnown {
        ids: [103, 111],
        labels: &DNS,
        extra: Some("k8s:eks.amazonaws.com/component=kube-dns"),
        service_account: "kube-dns",
        system: true,
    },
    WellKnown { ids: [104, 112], labels: &DNS, extra: None, service_account: "coredns", system: true },
    WellKnown {
        ids: [105, 113],
        labels: &OPERATOR,
        extra: None,
        service_account: "cilium-operator",
        system: false,
    },
    WellKnown {
        ids: [106, 114],
        labels: &DNS,
        extra: Some("k8s:eks.amazonaws.com/component=coredns"),
        service_account: "coredns",
        system: true,
    },
];

/// Returns the rows of reserved identities.
pub(crate) fn reserved() -> impl Iterator<Item = Identity> {
    RESERVED
        .into_iter()
        .map(|(id, keys)| Identity::new(id, keys.iter().map(|key| Label::reserved(key)).collect()))
}

/// Returns the rows of well-known identities; `namespace` is the agent's own.
pub(crate) fn well_known(cluster: &str, namespace: &str) -> impl Iterator<Item = Identity> {
    let row = move |known: &WellKnown, named: bool| {
        let namespace = if known.system { "kube-system" } else { namespace };
        let k8s = |key: &str, value: &str| Label {
            key: key.to_owned(),
            value: value.to_owned(),
            source: labels::K8S.to_owned(),
        };
        let own = known.labels.iter().copied().chain(known.extra).map(Label::parse);
        let generated = [
            k8s(labels::POD_NAMESPACE, namespace),
            k8s(labels::POLICY_CLUSTER, cluster),
            k8s(labels::POLICY_SERVICE_ACCOUNT, known.service_account),
        ];
        let name = named.then(|| k8s(METADATA_NAME, namespace));
        let labels: LabelArray = own.chain(generated).chain(name).collect();
        Identity::new(known.ids[usize::from(named)], labels)
    };
    WELL_KNOWN.iter().flat_map(move |known| [row(known, false), row(known, true)])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// `GET /identity` of a real agent, without those it had allocated.
    const ORIGINAL: &str = include_str!("../tests/samples/reserved.json");

    #[test]
    fn ids_and_labels_are_those_of_cilium() {
        let expected: BTreeMap<u32, Vec<String>> = serde_json::from_str::<Vec<serde_json::Value>>(ORIGINAL)
            .unwrap()
            .into_iter()
            .map(|row| {
                let labels = serde_json::from_value(row["labels"].clone()).unwrap();
                (row["id"].as_u64().unwrap() as u32, labels)
            })
            .collect();
        let rows = reserved().chain(well_known("default", ""));
        let found: BTreeMap<u32, Vec<String>> = rows.map(|row| (row.id, row.labels.texts())).collect();
        assert_eq!(found, expected);
    }
}
