//! The secrets that policies name.

use std::collections::{BTreeMap, BTreeSet};

use k8s_types::Key;
use policy_engine::{L7Rules, Policy, SecretRef};

/// A policy: whether it is one of the whole cluster, and its name.
pub(crate) type PolicyKey = (bool, Key);

/// Returns the secrets that a policy names.
pub(crate) fn secrets(policy: &Policy) -> BTreeSet<SecretRef> {
    let rules = policy.entries.iter().flat_map(|entry| &entry.redirects).map(|redirect| &redirect.rules);
    let mut secrets = BTreeSet::new();
    for rules in rules {
        let contexts = [&rules.terminating_tls, &rules.originating_tls];
        secrets.extend(contexts.into_iter().flatten().map(|context| context.secret.clone()));
        if let L7Rules::Http(requests) = &rules.l7 {
            let headers = requests.iter().flat_map(|request| &request.header_matches);
            secrets.extend(headers.filter_map(|header| header.secret.clone()));
        }
    }
    secrets
}

/// The secrets of all policies, counted.
#[derive(Debug, Default)]
pub(crate) struct References {
    policies: BTreeMap<PolicyKey, BTreeSet<SecretRef>>,
    counts: BTreeMap<SecretRef, usize>,
}

/// Secrets that the first policy names, and those that no policy names any more.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Difference {
    pub(crate) added: Vec<SecretRef>,
    pub(crate) removed: Vec<SecretRef>,
}

impl References {
    /// Replaces the secrets of a policy; none for one that is deleted.
    pub(crate) fn set(&mut self, policy: PolicyKey, secrets: BTreeSet<SecretRef>) -> Difference {
        let before = match secrets.is_empty() {
            true => self.policies.remove(&policy).unwrap_or_default(),
            false => self.policies.insert(policy, secrets.clone()).unwrap_or_default(),
        };
        let mut difference = Difference::default();
        for secret in secrets.difference(&before) {
            let count = self.counts.entry(secret.clone()).or_default();
            *count += 1;
            if *count == 1 {
                difference.added.push(secret.clone());
            }
        }
        for secret in before.difference(&secrets) {
            let Some(count) = self.counts.get_mut(secret) else { continue };
            *count -= 1;
            if *count == 0 {
                self.counts.remove(secret);
                difference.removed.push(secret.clone());
            }
        }
        difference
    }
}

#[cfg(test)]
mod tests {
    use policy_engine::{Kind, Settings, parse};
    use serde_json::json;

    use super::*;

    fn secret(namespace: &str, name: &str) -> SecretRef {
        SecretRef { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn secrets_of_tls_and_headers_are_found_in_both_directions() {
        let port = json!([{"port": "443", "protocol": "TCP"}]);
        let headers = json!([{"headerMatches": [
            {"name": "x-token", "mismatch": "REPLACE", "secret": {"name": "token"}}, {"name": "x", "value": "y"},
        ]}]);
        let manifest = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "endpointSelector": {},
                "egress": [{"toPorts": [{
                    "ports": port, "terminatingTLS": {"secret": {"name": "own", "namespace": "certificates"}},
                    "originatingTLS": {"secret": {"name": "trusted"}}, "rules": {"http": headers},
                }]}],
                "ingress": [{"toPorts": [{"ports": port, "rules": {"http": headers}}]}],
            },
        });
        let policy = parse(Kind::CiliumNetworkPolicy, &manifest, &Settings::default()).unwrap();
        let expected = [secret("certificates", "own"), secret("shop", "token"), secret("shop", "trusted")];
        assert_eq!(secrets(&policy), expected.into());
    }

    #[test]
    fn a_secret_is_needed_until_the_last_policy_is_gone() {
        let mut references = References::default();
        let policy = |name: &str| (false, Key::new("shop", name));
        let (a, b) = (secret("shop", "a"), secret("shop", "b"));
        let both = [a.clone(), b.clone()];
        assert_eq!(references.set(policy("x"), both.clone().into()).added, both);
        assert_eq!(references.set(policy("y"), [a.clone()].into()), Difference::default());
        assert_eq!(references.set(policy("x"), [b.clone()].into()), Difference::default());
        assert_eq!(references.set(policy("y"), BTreeSet::new()).removed, [a]);
        assert_eq!(references.set(policy("x"), BTreeSet::new()).removed, [b]);
        assert!(references.policies.is_empty() && references.counts.is_empty());
    }
}
