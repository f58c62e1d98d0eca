//! Parses and validates label selectors of manifests, and adds the implied namespace and cluster.

use std::collections::BTreeMap;

use k8s_types::names;
use k8s_types::selector::{OperatorError, Test};
use labels::{ANY, K8S, NAMESPACE_LABELS, POD_NAMESPACE, POLICY_CLUSTER, RESERVED};

use super::Context;
use super::cursor::{Field, Problems, quoted};
use crate::selector::{Requirement, Selector};

const OPERATORS: &str = "operators are In, NotIn, Exists and DoesNotExist";

/// A label selector as written in the manifest, with a source for each key.
#[derive(Default)]
pub(super) struct LabelSelector {
    /// `matchLabels`, by `source:key`.
    equals: BTreeMap<String, Requirement>,
    expressions: Vec<Requirement>,
}

impl LabelSelector {
    /// Reads `{matchLabels, matchExpressions}` with keys that may name a source.
    pub(super) fn read(field: &Field<'_>, problems: &mut Problems) -> Option<LabelSelector> {
        LabelSelector::read_keys(field, split_key, problems)
    }

    /// Reads a selector of Kubernetes: keys are those of labels of Kubernetes, without a source.
    pub(super) fn read_k8s(field: &Field<'_>, problems: &mut Problems) -> Option<LabelSelector> {
        LabelSelector::read_keys(field, k8s_key, problems)
    }

    fn read_keys(field: &Field<'_>, read_key: ReadKey, problems: &mut Problems) -> Option<LabelSelector> {
        let before = problems.count();
        let object = field.object(problems)?;
        object.check_names(problems, &["matchLabels", "matchExpressions"], &[]);
        let mut selector = LabelSelector::default();
        if let Some(labels) = object.field("matchLabels").and_then(|field| field.object(problems)) {
            for (key, value) in labels.fields() {
                selector.read_equals(read_key(key, &value.path, problems), &value, problems);
            }
        }
        let list = object.field("matchExpressions").and_then(|field| field.list(problems));
        for expression in list.unwrap_or_default() {
            selector.expressions.extend(read_expression(&expression, read_key, problems));
        }
        (problems.count() == before).then_some(selector)
    }

    fn read_equals(&mut self, key: Option<(String, String)>, field: &Field<'_>, problems: &mut Problems) {
        let value = read_value(field, problems);
        let (Some((source, key)), Some(value)) = (key, value) else { return };
        let requirement = Requirement { source, key, test: Test::Equals(value) };
        match self.equals.get(&requirement.name()) {
            Some(other) if *other != requirement => problems.add(
                &field.path,
                format!("{} is required to have two values", requirement.name()),
                "name the label once",
            ),
            _ => {
                self.equals.insert(requirement.name(), requirement);
            }
        }
    }

    /// Whether the test holds for `source` and `key` of any requirement.
    fn names(&self, test: impl Fn(&str, &str) -> bool) -> bool {
        self.equals.values().chain(&self.expressions).any(|r| test(&r.source, &r.key))
    }

    /// Whether the test holds for the key of any requirement on Kubernetes' labels or on labels of any source.
    fn names_k8s(&self, test: impl Fn(&str) -> bool) -> bool {
        self.names(|source, key| matches!(source, K8S | ANY) && test(key))
    }

    /// Whether a requirement is about the label `reserved:init`.
    pub(super) fn names_init(&self) -> bool {
        self.names(|source, key| source == RESERVED && key == "init")
    }

    /// Whether the pods' namespace is required to be another one, by the label that
    /// [`into_subject`](Self::into_subject) sets.
    pub(super) fn names_other_namespace(&self, namespace: &str) -> bool {
        let own = Requirement::equals(K8S, POD_NAMESPACE, namespace);
        !namespace.is_empty() && self.equals.get(&own.name()).is_some_and(|other| *other != own)
    }

    fn set(&mut self, key: &str, value: &str) {
        let requirement = Requirement::equals(K8S, key, value);
        self.equals.insert(requirement.name(), requirement);
    }

    /// Returns the selector of the endpoints that a policy applies to, restricted to the policy's namespace if it has
    /// one.
    pub(super) fn into_subject(mut self, namespace: &str) -> Selector {
        if !namespace.is_empty() {
            self.set(POD_NAMESPACE, namespace);
        }
        self.finish()
    }

    /// Returns the selector of the nodes that a policy applies to, as written.
    pub(super) fn into_node(self) -> Selector {
        self.finish()
    }

    /// Returns the selector of nodes as peers: other nodes than this one, of this cluster unless it names another.
    pub(super) fn into_node_peer(mut self, context: &Context<'_>) -> Selector {
        let (source, key) = (RESERVED.to_owned(), "remote-node".to_owned());
        self.expressions.push(Requirement { source, key, test: Test::Exists });
        if context.settings.default_local_cluster && !self.names_k8s(|key| key == POLICY_CLUSTER) {
            self.set(POLICY_CLUSTER, &context.settings.cluster);
        }
        self.finish()
    }

    /// Returns the selector of a peer. A selector without a requirement on the namespace or the cluster is restricted
    /// to those of the policy; cluster-wide policies select pods of every namespace. Reserved labels are left as
    /// written.
    pub(super) fn into_peer(mut self, context: &Context<'_>, subject_is_init: bool) -> Selector {
        if self.names(|source, _| source == RESERVED) {
            return self.finish();
        }
        if !self.names_k8s(|key| key == POD_NAMESPACE) {
            if context.namespace.is_empty() {
                if !subject_is_init {
                    let (source, key) = (K8S.to_owned(), POD_NAMESPACE.to_owned());
                    self.expressions.push(Requirement { source, key, test: Test::Exists });
                }
            } else if !self.names_k8s(|key| key.starts_with(NAMESPACE_LABELS)) {
                self.set(POD_NAMESPACE, context.namespace);
            }
        }
        self.in_cluster(context).finish()
    }

    /// Returns the selector of the pods that a NetworkPolicy names by their labels and, if given, by those of their
    /// namespaces; without these, in the policy's namespace.
    pub(super) fn into_pod_peer(self, namespaces: Option<LabelSelector>, context: &Context<'_>) -> Selector {
        let mut pods = self.in_cluster(context);
        match namespaces {
            None => {
                pods.set(POD_NAMESPACE, context.namespace);
                pods.finish()
            }
            Some(namespaces) => pods.in_namespaces(namespaces),
        }
    }

    /// Restricts it to this cluster, unless it names one.
    pub(super) fn in_cluster(mut self, context: &Context<'_>) -> LabelSelector {
        if context.settings.default_local_cluster && !self.names_k8s(|key| key == POLICY_CLUSTER) {
            self.set(POLICY_CLUSTER, &context.settings.cluster);
        }
        self
    }

    /// Returns the selector of pods with these labels in namespaces with those; without labels, in every namespace.
    pub(super) fn in_namespaces(mut self, namespaces: LabelSelector) -> Selector {
        if namespaces.equals.is_empty() && namespaces.expressions.is_empty() {
            let (source, key) = (K8S.to_owned(), POD_NAMESPACE.to_owned());
            self.expressions.insert(0, Requirement { source, key, test: Test::Exists });
            return self.finish();
        }
        let of_namespace = |r: Requirement| Requirement { key: format!("{NAMESPACE_LABELS}{}", r.key), ..r };
        let equals = namespaces.equals.into_values().map(of_namespace);
        self.equals.extend(equals.map(|requirement| (requirement.name(), requirement)));
        self.expressions.splice(0..0, namespaces.expressions.into_iter().map(of_namespace));
        self.finish()
    }

    /// Returns the requirements as written, those of `matchLabels` first.
    pub(super) fn into_requirements(self) -> impl Iterator<Item = Requirement> {
        self.equals.into_values().chain(self.expressions)
    }

    fn finish(self) -> Selector {
        Selector::Labels(self.into_requirements().collect())
    }
}

fn read_expression(field: &Field<'_>, read_key: ReadKey, problems: &mut Problems) -> Option<Requirement> {
    let object = field.object(problems)?;
    object.check_names(problems, &["key", "operator", "values"], &[]);
    let key = object.text("key", problems);
    let key = read_key(key, &object.path_of("key"), problems);
    let values: Option<Vec<String>> = match object.field("values") {
        None => Some(Vec::new()),
        Some(field) => field
            .list(problems)
            .map(|list| list.iter().map(|value| read_value(value, problems)).collect::<Vec<_>>())
            .and_then(|values| values.into_iter().collect()),
    };
    let operator = object.text("operator", problems);
    let path = object.path_of("values");
    if operator.is_empty() {
        problems.add(&object.path_of("operator"), "missing", OPERATORS);
        return None;
    }
    let test = Test::from_operator(operator, values?).map_err(|error| match error {
        OperatorError::NoValues => {
            problems.add(&path, format!("{operator} needs values"), "name one or more");
        }
        OperatorError::UnexpectedValues => {
            problems.add(&path, format!("{operator} takes no values"), "remove them, or use In or NotIn");
        }
        OperatorError::UnknownOperator => {
            let reason = format!("{}: not an operator", quoted(&operator.into()));
            problems.add(&object.path_of("operator"), reason, OPERATORS);
        }
    });
    let (source, key) = key?;
    Some(Requirement { source, key, test: test.ok()? })
}

/// Reads a label's key into source and key.
type ReadKey = fn(&str, &str, &mut Problems) -> Option<(String, String)>;

/// Reads the key of a label of Kubernetes.
fn k8s_key(text: &str, path: &str, problems: &mut Problems) -> Option<(String, String)> {
    valid_key(text, text, path, problems).then(|| (K8S.to_owned(), text.to_owned()))
}

/// Splits a label's key into source and key; without a source, it is `any`. A dot before the first colon makes the
/// whole text a key.
fn split_key(text: &str, path: &str, problems: &mut Problems) -> Option<(String, String)> {
    let (source, key) = match text.find([':', '.']) {
        Some(at) if text.as_bytes()[at] == b':' => (&text[..at], &text[at + 1..]),
        _ => (ANY, text),
    };
    if source.is_empty() || !source.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) {
        let reason = format!("{}: the source before the colon is no word", quoted(&text.into()));
        problems.add(path, reason, "write it as k8s:app or app");
        return None;
    }
    valid_key(key, text, path, problems).then(|| (source.to_owned(), key.to_owned()))
}

/// Whether a key is valid; reports `text`, the whole as written, if not.
fn valid_key(key: &str, text: &str, path: &str, problems: &mut Problems) -> bool {
    let is_valid = names::qualified_name(key).is_ok();
    if !is_valid {
        let reason = format!("{}: not a label's key", quoted(&text.into()));
        problems.add(
            path,
            reason,
            "at most 63 letters, digits, dashes, dots after an optional domain and slash",
        );
    }
    is_valid
}

fn read_value(field: &Field<'_>, problems: &mut Problems) -> Option<String> {
    let text = field.text(problems)?;
    if names::label_value(text).is_err() {
        let reason = format!("{}: not a label's value", quoted(field.value));
        problems.add(
            &field.path,
            reason,
            "at most 63 letters, digits, dashes, dots; a letter or digit at both ends",
        );
        return None;
    }
    Some(text.to_owned())
}
