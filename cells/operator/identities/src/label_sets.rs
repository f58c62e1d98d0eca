//! The label set of each pod.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use identity_core::{label_key, pod_labels};
use k8s_types::Key;
use k8s_types::core::Namespace;
use labels::{Filter, LabelArray};
use operator_objects::{Phase, Pod};

/// A label set, as the key of the table.
pub(crate) type SetKey = Arc<str>;

/// Label sets with their pods.
#[derive(Debug)]
pub(crate) struct LabelSets {
    filter: Filter,
    cluster: String,
    pods: HashMap<Key, SetKey>,
    sets: HashMap<SetKey, (LabelArray, usize)>,
}

impl LabelSets {
    pub(crate) fn new(filter: Filter, cluster: String) -> LabelSets {
        LabelSets { filter, cluster, pods: HashMap::new(), sets: HashMap::new() }
    }

    /// Takes a pod over as it is now, with its namespace. Returns the label sets whose number of pods has changed. Without a
    /// namespace a pod keeps the labels that it has, as its agent does.
    pub(crate) fn update(&mut self, pod: &Pod, namespace: Option<&Namespace>) -> BTreeSet<SetKey> {
        let key = Key::new(pod.namespace.clone(), pod.name.clone());
        if pod.host.is_some() || pod.phase == Phase::Ended {
            return self.remove(&key);
        }
        let Some(namespace) = namespace else { return BTreeSet::new() };
        let (all, _) = pod_labels(&pod.object(), Some(namespace), &self.cluster);
        let labels = LabelArray::from(&self.filter.split(&all).0);
        if labels.is_empty() {
            // Its endpoint is reserved:init.
            return self.remove(&key);
        }
        let set: SetKey = label_key(&labels).into();
        if self.pods.get(&key) == Some(&set) {
            return BTreeSet::new();
        }
        let mut changed = self.remove(&key);
        let set = self.sets.get_key_value(&set).map_or(set, |(known, _)| known.clone());
        self.sets.entry(set.clone()).or_insert((labels, 0)).1 += 1;
        self.pods.insert(key, set.clone());
        changed.insert(set);
        changed
    }

    /// Takes the deletion of a pod over.
    pub(crate) fn remove(&mut self, pod: &Key) -> BTreeSet<SetKey> {
        let Some(set) = self.pods.remove(pod) else { return BTreeSet::new() };
        if let Some((_, pods)) = self.sets.get_mut(&set) {
            *pods -= 1;
            if *pods == 0 {
                self.sets.remove(&set);
            }
        }
        BTreeSet::from([set])
    }

    /// Returns the labels of a set and the number of its pods.
    pub(crate) fn get(&self, set: &str) -> Option<(&LabelArray, usize)> {
        self.sets.get(set).map(|(labels, pods)| (labels, *pods))
    }

    /// Returns the numbers of label sets and of pods.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.sets.len(), self.pods.len())
    }
}

#[cfg(test)]
mod tests {
    use k8s_types::core;
    use operator_objects::HostPod;

    use super::*;

    fn pod(name: &str, app: &str) -> Pod {
        let mut pod = core::Pod::default();
        (pod.metadata.namespace, pod.metadata.name) = ("shop".into(), name.into());
        pod.metadata.labels = [("app", app), ("pod-template-hash", name)].into_iter().collect();
        pod.into()
    }

    #[test]
    fn pods_are_counted_by_the_labels_that_make_up_identities() {
        let mut sets = LabelSets::new(Filter::default(), "default".to_owned());
        let mut namespace = Namespace::default();
        assert_eq!(sets.update(&pod("a", "web"), None).len(), 0, "its namespace is not known");
        let changed = sets.update(&pod("a", "web"), Some(&namespace));
        let web = changed.first().unwrap().clone();
        assert_eq!(
            &*web,
            "k8s:app=web;k8s:io.cilium.k8s.policy.cluster=default;k8s:io.kubernetes.pod.namespace=shop"
        );
        assert_eq!(sets.update(&pod("b", "web"), Some(&namespace)), changed);
        assert_eq!(sets.update(&pod("b", "web"), Some(&namespace)).len(), 0);
        assert_eq!((sets.get(&web).unwrap().1, sets.counts()), (2, (1, 2)));

        // Another label, one of the namespace, the host's network and the end of a pod change its set.
        let moved = sets.update(&pod("b", "db"), Some(&namespace));
        assert!(moved.len() == 2 && moved.contains(&web), "{moved:?}");
        namespace.metadata.labels = [("team", "a")].into_iter().collect();
        assert_eq!(sets.update(&pod("a", "web"), Some(&namespace)).len(), 2);
        assert_eq!(sets.get(&web), None);
        let mut host = pod("b", "db");
        host.host = Some(Box::new(HostPod { node_name: "n1".into(), is_ready: true }));
        assert_eq!(sets.update(&host, Some(&namespace)).len(), 1);
        let mut ended = pod("a", "web");
        ended.phase = Phase::Ended;
        assert_eq!(sets.update(&ended, Some(&namespace)).len(), 1);
        assert_eq!(sets.counts(), (0, 0));
    }
}
