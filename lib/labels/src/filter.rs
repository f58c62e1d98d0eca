//! The filter of identity-relevant labels: prefixes of their keys, and the default ones of workloads.

use regex::Regex;

use crate::keys::ANY;
use crate::label::{Label, Labels, PORTS, RESERVED};

/// The default prefixes, added to the user's: they exclude labels that change with every rollout or do not describe the
/// workload. Regular expressions that match at the beginning of keys.
const DEFAULTS: [&str; 20] = [
    "reserved:.*",
    r"io\.kubernetes\.pod\.namespace",
    r"io\.cilium\.k8s\.namespace\.labels",
    r"io\.cilium\.k8s\.policy\.cluster",
    r"io\.cilium\.k8s\.policy\.serviceaccount",
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

/// Separates labels of the identity from those for information only.
#[derive(Debug, Clone)]
pub struct Filter {
    rules: Vec<Rule>,
    /// Whether the user has included prefixes: all others are excluded then, apart from the agent's own.
    named: bool,
}

#[derive(Debug, Clone)]
struct Rule {
    exclude: bool,
    /// Empty for every source.
    source: String,
    pattern: Pattern,
}

#[derive(Debug, Clone)]
enum Pattern {
    /// The pattern that matches at the beginning of a key.
    Expression(Regex),
    /// The prefix of a key, of a file.
    Text(String),
}

/// A prefix that is no regular expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{prefix:?} is no regular expression for the beginning of a label's key: {problem}")]
pub struct BadPrefix {
    /// The prefix.
    pub prefix: String,
    /// The error.
    pub problem: String,
}

impl Default for Filter {
    fn default() -> Filter {
        let rules = DEFAULTS.into_iter().filter_map(|prefix| Rule::parse(prefix).ok()).collect();
        Filter { rules, named: false }
    }
}

impl Filter {
    /// Returns the defaults with the user's prefixes, `[SOURCE:][!]PATTERN` each; a text may have several,
    /// separated by spaces, as in ConfigMaps of Cilium.
    ///
    /// ```
    /// let filter = labels::Filter::new(["k8s:app k8s:role k8s:!app-hash"])?;
    /// let labels = labels::Labels::parse(["k8s:app=web", "k8s:app-hash=7", "k8s:version=7", "reserved:host"]);
    /// let (identity, info) = filter.split(&labels);
    /// assert_eq!(identity.texts(), ["k8s:app=web", "reserved:host"]);
    /// assert_eq!(info.texts(), ["k8s:app-hash=7", "k8s:version=7"]);
    /// # Ok::<(), labels::BadPrefix>(())
    /// ```
    pub fn new<'a>(prefixes: impl IntoIterator<Item = &'a str>) -> Result<Filter, BadPrefix> {
        Filter::default().with(prefixes)
    }

    /// Returns a filter without prefixes, which includes all labels.
    pub fn all() -> Filter {
        Filter { rules: Vec::new(), named: false }
    }

    /// Adds a prefix of keys as plain text, for labels of one source.
    #[must_use]
    pub fn with_text(mut self, source: String, prefix: String, exclude: bool) -> Filter {
        self.named |= !exclude;
        self.rules.push(Rule { exclude, source, pattern: Pattern::Text(prefix) });
        self
    }

    /// Adds prefixes in the form of [`new`](Filter::new).
    pub fn with<'a>(mut self, prefixes: impl IntoIterator<Item = &'a str>) -> Result<Filter, BadPrefix> {
        for prefix in prefixes.into_iter().flat_map(str::split_whitespace) {
            let rule = Rule::parse(prefix)?;
            self.named |= !rule.exclude;
            self.rules.push(rule);
        }
        Ok(self)
    }

    /// Splits labels into those of the identity and those for information only.
    pub fn split(&self, labels: &Labels) -> (Labels, Labels) {
        let (identity, info): (Vec<Label>, Vec<Label>) =
            labels.0.values().cloned().partition(|label| self.counts(label));
        (identity.into_iter().collect(), info.into_iter().collect())
    }

    /// Whether the label is part of the identity: the longest match of an inclusion is compared with the shortest of an
    /// exclusion, as in Cilium. The agent's own labels always are: pods with different named ports need separate policy
    /// rows.
    fn counts(&self, label: &Label) -> bool {
        let lengths = |exclude| {
            let rules = self.rules.iter().filter(move |rule| rule.exclude == exclude);
            rules.filter_map(|rule| rule.matches(label)).filter(|length| *length > 0)
        };
        let (included, excluded) = (lengths(false).max(), lengths(true).min());
        [RESERVED, PORTS].contains(&label.source.as_str())
            || included > excluded
            || (!self.named && excluded.is_none())
    }
}

impl Rule {
    /// Parses a prefix; `!` may precede the pattern or the whole.
    fn parse(prefix: &str) -> Result<Rule, BadPrefix> {
        let before = prefix.strip_prefix('!');
        let rest = before.unwrap_or(prefix);
        let (source, rest) = rest.split_once(':').unwrap_or(("", rest));
        let (exclude, pattern) = match rest.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (before.is_some(), rest),
        };
        let bad = |problem: String| BadPrefix { prefix: prefix.to_owned(), problem };
        if pattern.is_empty() {
            return Err(bad("it is empty".to_owned()));
        }
        let pattern = Regex::new(&format!("^(?:{pattern})")).map_err(|error| bad(error.to_string()))?;
        let source = if source == ANY { "" } else { source };
        Ok(Rule { exclude, source: source.to_owned(), pattern: Pattern::Expression(pattern) })
    }

    /// Returns how many bytes of the label's key match.
    fn matches(&self, label: &Label) -> Option<usize> {
        if !self.source.is_empty() && self.source != label.source {
            return None;
        }
        match &self.pattern {
            Pattern::Expression(pattern) => pattern.find(&label.key).map(|found| found.len()),
            Pattern::Text(prefix) => label.key.starts_with(prefix.as_str()).then_some(prefix.len()),
        }
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
        let expected =
            ["app.kubernetes.io/name", "init", "io.cilium.k8s.policy.cluster", "io.kubernetes.pod.namespace"];
        assert_eq!(keys(&only, &ALL), expected);
        assert_eq!(keys(&only, &["k8s:role-of=x", "container:role=x", "k8s:tier=1"]), ["role-of", "tier"]);
        assert_eq!(
            keys(&only, &["gen:io.cilium.k8s.named-ports=http.TCP.80"]),
            ["io.cilium.k8s.named-ports"]
        );
        let without = Filter::new(["!app\\.kubernetes\\.io/version", "!k8s:app$"]).unwrap();
        assert_eq!(
            keys(&without, &["k8s:app=x", "k8s:app.kubernetes.io/version=1", "k8s:apps=x", "k8s:other=1"]),
            ["apps", "other"]
        );
        let error = Filter::new(["k8s:app("]).unwrap_err();
        assert!(error.to_string().starts_with("\"k8s:app(\" is no regular expression"), "{error}");
        assert!(Filter::new(["!"]).is_err());
    }

    /// The exclusion mark `!` follows the source, as in Cilium, or precedes it.
    #[test]
    fn the_exclusion_mark_may_precede_source_or_pattern() {
        let labels = ["k8s:job-name=1", "container:job-name=1", "k8s:name=x"];
        for prefix in ["k8s:!job-name", "!k8s:job-name"] {
            let filter = Filter::new([prefix]).unwrap();
            assert!(!filter.named, "{prefix}");
            let info = filter.split(&Labels::parse(["k8s:job-name=1"])).1;
            assert_eq!(info.texts(), ["k8s:job-name=1"], "{prefix}");
            assert_eq!(keys(&filter, &labels[1..]), ["job-name", "name"], "{prefix}");
        }
        for prefix in ["any:!job-name", ":!job-name", "!job-name"] {
            assert_eq!(keys(&Filter::new([prefix]).unwrap(), &labels), ["name"], "{prefix}");
        }
    }

    /// The shortest exclusion counts: a longer exclusion makes no exception from it.
    #[test]
    fn the_longest_inclusion_is_compared_with_the_shortest_exclusion() {
        let filter = Filter::new(["!team", "!team-of-the-day", "team-of"]).unwrap();
        let labels = ["k8s:team=1", "k8s:team-of=2", "k8s:team-of-the-day=3", "k8s:tea=4"];
        assert_eq!(keys(&filter, &labels), ["team-of", "team-of-the-day"]);
        assert_eq!(
            keys(&Filter::new(["!x*"]).unwrap(), &["k8s:a=1", "k8s:x=1"]),
            ["a"],
            "nothing is no match"
        );
    }

    #[test]
    fn without_prefixes_all_labels_count() {
        assert_eq!(keys(&Filter::all(), &ALL).len(), ALL.len());
        let zones = Filter::all().with(["node:topology\\.kubernetes\\.io/"]).unwrap();
        let labels =
            ["node:topology.kubernetes.io/zone=a", "node:kubernetes.io/hostname=n", "reserved:remote-node"];
        assert_eq!(keys(&zones, &labels), ["remote-node", "topology.kubernetes.io/zone"]);
    }
}
