//! Which labels make up an identity: `--labels`, and the prefixes that count without it.

use labels::{Label, Labels};
use regex::Regex;

/// What counts beside the user's own prefixes, and what does not: labels that change with every rollout or say nothing
/// of the workload. Regular expressions, held against the beginning of keys.
const DEFAULTS: [&str; 18] = [
    "reserved:.*",
    r"io\.kubernetes\.pod\.namespace",
    r"io\.cilium\.k8s\.namespace\.labels",
    r"app\.kubernetes\.io",
    r"!io\.kubernetes",
    r"!kubernetes\.io",
    r"!statefulset\.kubernetes\.io/pod-name",
    r"!apps\.kubernetes\.io/pod-index",
    r"!batch\.kubernetes\.io/job-completion-index",
    r"!batch\.kubernetes\.io/controller-uid",
    r"!.*beta\.kubernetes\.io",
    r"!k8s\.io",
    "!pod-template-generation",
    "!pod-template-hash",
    "!controller-revision-hash",
    "!annotation.*",
    "!controller-uid",
    "!etcd_node",
];

/// Tells labels of the identity from those for information only.
#[derive(Debug, Clone)]
pub struct Filter {
    rules: Vec<Rule>,
    /// Whether the user has named what counts: nothing else does then, but what always counts.
    named: bool,
}

#[derive(Debug, Clone)]
struct Rule {
    exclude: bool,
    /// Empty for every source.
    source: String,
    pattern: Regex,
}

/// A prefix of `--labels` that is no regular expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("option labels: {prefix:?} is no regular expression for the beginning of a label's key: {problem}")]
pub struct BadPrefix {
    /// The prefix.
    pub prefix: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Default for Filter {
    fn default() -> Filter {
        let rules = DEFAULTS.into_iter().filter_map(|prefix| Rule::parse(prefix).ok()).collect();
        Filter { rules, named: false }
    }
}

impl Filter {
    /// The defaults with the user's prefixes, `[!][SOURCE:]PATTERN` each; several may stand in one text with spaces
    /// between, as in ConfigMaps of the original.
    ///
    /// ```
    /// let filter = endpoints::Filter::new(["k8s:app k8s:role"])?;
    /// let labels = labels::Labels::parse(["k8s:app=web", "k8s:version=7", "reserved:host"]);
    /// let (identity, info) = filter.split(&labels);
    /// assert_eq!((identity.texts(), info.texts()), (vec!["k8s:app=web".into(), "reserved:host".into()], vec!["k8s:version=7".into()]));
    /// # Ok::<(), endpoints::BadPrefix>(())
    /// ```
    pub fn new<'a>(prefixes: impl IntoIterator<Item = &'a str>) -> Result<Filter, BadPrefix> {
        let mut filter = Filter::default();
        for prefix in prefixes.into_iter().flat_map(str::split_whitespace) {
            let rule = Rule::parse(prefix)?;
            filter.named |= !rule.exclude;
            filter.rules.push(rule);
        }
        Ok(filter)
    }

    /// Splits labels into those of the identity and those for information only.
    pub fn split(&self, labels: &Labels) -> (Labels, Labels) {
        let (identity, info): (Vec<Label>, Vec<Label>) =
            labels.0.values().cloned().partition(|label| self.counts(label));
        (identity.into_iter().collect(), info.into_iter().collect())
    }

    /// The rule that matches most of the key decides.
    fn counts(&self, label: &Label) -> bool {
        let longest = |exclude| {
            let rules = self.rules.iter().filter(|rule| rule.exclude == exclude);
            rules.filter_map(|rule| rule.matches(label)).max().unwrap_or(0)
        };
        let (included, excluded) = (longest(false), longest(true));
        included > excluded || (!self.named && excluded == 0)
    }
}

impl Rule {
    fn parse(prefix: &str) -> Result<Rule, BadPrefix> {
        let (exclude, rest) = match prefix.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, prefix),
        };
        let (source, pattern) = rest.split_once(':').unwrap_or(("", rest));
        let bad = |problem: String| BadPrefix { prefix: prefix.to_owned(), problem };
        if pattern.is_empty() {
            return Err(bad("it is empty".to_owned()));
        }
        let pattern = Regex::new(&format!("^(?:{pattern})")).map_err(|error| bad(error.to_string()))?;
        Ok(Rule { exclude, source: source.to_owned(), pattern })
    }

    /// How much of the label's key it matches.
    fn matches(&self, label: &Label) -> Option<usize> {
        let of_source = self.source.is_empty() || self.source == label.source;
        of_source.then(|| self.pattern.find(&label.key).map(|found| found.len())).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(filter: &Filter, labels: &[&str]) -> Vec<String> {
        filter.split(&Labels::parse(labels.iter().copied())).0.0.into_keys().collect()
    }

    const ALL: [&str; 8] = [
        "k8s:app=web",
        "k8s:app.kubernetes.io/name=web",
        "k8s:io.kubernetes.pod.namespace=default",
        "k8s:pod-template-hash=abc",
        "k8s:io.kubernetes.container.hash=1",
        "k8s:topology.beta.kubernetes.io/zone=a",
        "k8s:io.cilium.k8s.policy.cluster=default",
        "reserved:init",
    ];

    #[test]
    fn rollout_labels_are_no_part_of_the_identity() {
        let filter = Filter::default();
        assert_eq!(filter.rules.len(), DEFAULTS.len(), "every default is a regular expression");
        let expected = [
            "app",
            "app.kubernetes.io/name",
            "init",
            "io.cilium.k8s.policy.cluster",
            "io.kubernetes.pod.namespace",
        ];
        assert_eq!(keys(&filter, &ALL), expected);
    }

    #[test]
    fn what_the_user_names_is_all_that_counts() {
        let only = Filter::new(["k8s:role", "k8s:tier"]).unwrap();
        let expected = ["app.kubernetes.io/name", "init", "io.kubernetes.pod.namespace"];
        assert_eq!(keys(&only, &ALL), expected);
        assert_eq!(keys(&only, &["k8s:role-of=x", "any:role=x", "k8s:tier=1"]), ["role-of", "tier"]);
        let without = Filter::new(["!app\\.kubernetes\\.io/version", "!k8s:app$"]).unwrap();
        assert_eq!(
            keys(&without, &["k8s:app=x", "k8s:app.kubernetes.io/version=1", "k8s:apps=x", "k8s:other=1"]),
            ["apps", "other"]
        );
        let error = Filter::new(["k8s:app("]).unwrap_err();
        assert!(
            error.to_string().starts_with("option labels: \"k8s:app(\" is no regular expression"),
            "{error}"
        );
        assert!(Filter::new(["!"]).is_err());
    }
}
