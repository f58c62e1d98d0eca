//! Policies and identities.

use std::collections::BTreeMap;

use crate::{Labels, List};

crate::models! {
    /// Desired policy and policy realized in the datapath.
    EndpointPolicyStatus {
        "proxy-policy-revision" proxy_policy_revision: i64,
        "proxy-statistics" proxy_statistics: List<ProxyStatistics>,
        "realized" realized: Option<EndpointPolicy>,
        "spec" spec: Option<EndpointPolicy>,
    }

    /// A policy as computed for an endpoint.
    EndpointPolicy {
        "allowed-egress-identities" allowed_egress_identities: List<i64>,
        "allowed-ingress-identities" allowed_ingress_identities: List<i64>,
        "build" build: i64,
        "cidr-policy" cidr_policy: Option<CidrPolicy>,
        "denied-egress-identities" denied_egress_identities: List<i64>,
        "denied-ingress-identities" denied_ingress_identities: List<i64>,
        "id" id: i64,
        "l4" l4: Option<L4Policy>,
        "policy-enabled" policy_enabled: String,
        "policy-revision" policy_revision: i64,
    }

    /// A policy rule with its origin.
    PolicyRule {
        "derived-from-rules" derived_from_rules: List<Vec<String>>,
        "rule" rule: String,
        "rules-by-selector" rules_by_selector: BTreeMap<String, Vec<Vec<String>>>,
    }

    /// Rules on ports.
    L4Policy {
        "egress" egress: List<PolicyRule>,
        "ingress" ingress: List<PolicyRule>,
    }

    /// Rules on address ranges.
    CidrPolicy {
        "egress" egress: List<PolicyRule>,
        "ingress" ingress: List<PolicyRule>,
    }

    /// Counters of a proxied port.
    ProxyStatistics {
        "allocated-proxy-port" allocated_proxy_port: i64,
        "location" location: String,
        "port" port: i64,
        "protocol" protocol: String,
        "statistics" statistics: Option<RequestResponseStatistics>,
    }

    /// Requests and responses through a proxied port.
    RequestResponseStatistics {
        "requests" requests: Option<MessageForwardingStatistics>,
        "responses" responses: Option<MessageForwardingStatistics>,
    }

    /// Counters of messages by result.
    MessageForwardingStatistics {
        "denied" denied: i64,
        "error" error: i64,
        "forwarded" forwarded: i64,
        "received" received: i64,
    }

    /// The policy repository; the rules are JSON inside a string.
    Policy {
        "policy" policy: String,
        "revision" revision: i64,
    }

    /// A selector in the selector cache, and the identities that it selects.
    SelectorIdentityMapping {
        "identities" identities: List<i64>,
        "labels" labels: Vec<Vec<Label>>,
        "selector" selector: String,
        "users" users: i64,
    }

    /// A label, split into source, key and value.
    Label {
        "key" key: String,
        "source" source: String,
        "value" value: String,
    }

    /// A security identity and its labels.
    Identity {
        "id" id: i64,
        "labels" labels: Labels,
        "labelsSHA256" labels_sha256: String,
    }

    /// The number of endpoints that use an identity.
    IdentityEndpoints {
        "identity" identity: Option<Identity>,
        "refCount" ref_count: i64,
    }

    /// The DNS names that policies select.
    NameManager {
        "DNSPollNames" dns_poll_names: List<String>,
        "FQDNPolicySelectors" fqdn_policy_selectors: List<SelectorEntry>,
    }

    /// A DNS selector and its regular expression.
    SelectorEntry {
        "regexString" regex_string: String,
        "selectorString" selector_string: String,
    }
}
