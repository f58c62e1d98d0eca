//! Labels in the order in which selectors read them.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::label::{Label, Labels};

/// Labels sorted by key; labels of one key keep their order of insertion. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LabelArray(Arc<[Label]>);

impl LabelArray {
    /// Returns the labels, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Label> {
        self.0.iter()
    }

    /// Returns all labels with the key, in order.
    pub fn of_key(&self, key: &str) -> &[Label] {
        let start = self.0.partition_point(|label| label.key.as_str() < key);
        let end = start + self.0[start..].partition_point(|label| label.key == key);
        &self.0[start..end]
    }

    /// Whether there is a label of this source and key.
    pub fn has(&self, source: &str, key: &str) -> bool {
        self.of_key(key).iter().any(|label| label.source == source)
    }

    /// Returns the labels as texts, in order.
    pub fn texts(&self) -> Vec<String> {
        self.iter().map(Label::to_string).collect()
    }
}

impl FromIterator<Label> for LabelArray {
    fn from_iter<T: IntoIterator<Item = Label>>(labels: T) -> LabelArray {
        let mut labels: Vec<Label> = labels.into_iter().collect();
        labels.sort_by(|a, b| a.key.cmp(&b.key));
        LabelArray(labels.into())
    }
}

impl From<&Labels> for LabelArray {
    fn from(labels: &Labels) -> LabelArray {
        labels.0.values().cloned().collect()
    }
}

/// Serializes as a list of texts.
impl Serialize for LabelArray {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.texts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_one_key_keep_their_order() {
        let labels: LabelArray = ["k8s:b=1", "node:a=2", "k8s:a=1"].into_iter().map(Label::parse).collect();
        assert_eq!(labels.texts(), ["node:a=2", "k8s:a=1", "k8s:b=1"]);
        assert_eq!(labels.of_key("a").len(), 2);
        assert!(labels.has("k8s", "a") && !labels.has("node", "b") && labels.of_key("c").is_empty());
    }
}
