//! Parses the rules of proxies in an element of `toPorts`.

use std::collections::BTreeSet;

use super::cursor::{Field, Object, Problems, quoted};
use super::dns::dns_rule;
use super::{Context, Section, go_regex};
use crate::model::{Direction, Kind, Port, PortSpec};
use crate::proxy::{HeaderMatch, HttpRule, L7Rules, Listener, ProxyRules, SecretRef, TlsContext};

/// Fields of `toPorts` with rules for a proxy.
pub(super) const FIELDS: [&str; 5] = ["rules", "listener", "serverNames", "terminatingTLS", "originatingTLS"];

const TCP: u8 = 6;
/// The lowest priority of a listener.
const MAX_PRIORITY: u64 = 100;
/// The namespace of secrets that a policy of the whole cluster names without one.
const DEFAULT_NAMESPACE: &str = "default";
const MISMATCHES: [&str; 4] = ["LOG", "ADD", "DELETE", "REPLACE"];

/// The subject of the rule of an element.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// Endpoints.
    Endpoints,
    /// Nodes: proxies are not in the path of most of their traffic.
    Nodes,
}

/// Reads the rules for the proxy of an element with these ports; `None` if it has none.
pub(super) fn proxy_rules(
    element: &Object<'_>,
    ports: &[PortSpec],
    section: Section,
    about: About,
    context: &Context<'_>,
    problems: &mut Problems,
) -> Option<ProxyRules> {
    let rules = ProxyRules {
        l7: element.field("rules").map_or(L7Rules::None, |field| l7_rules(&field, context, problems)),
        listener: element.field("listener").and_then(|field| listener(&field, context, problems)),
        terminating_tls: element.field("terminatingTLS").and_then(|field| tls(&field, context, problems)),
        originating_tls: element.field("originatingTLS").and_then(|field| tls(&field, context, problems)),
        server_names: server_names(element, problems),
    };
    rules.parser()?;
    let used = |name: &str| element.path_of(name);
    let mut refuse = |name: &str, reason: &str, remedy| problems.add(&used(name), reason, remedy);
    let first = FIELDS.into_iter().find(|name| element.field(name).is_some()).unwrap_or("rules");
    if !context.settings.l7_proxy {
        refuse(first, "rules for a proxy, and the proxy is off", "switch enable-l7-proxy on");
    }
    let ingress = section.direction() == Direction::Ingress;
    let dns = matches!(rules.l7, L7Rules::Dns(_));
    if about == About::Nodes && (ingress || !dns) {
        let remedy = "policies of nodes have DNS rules on egress only";
        refuse(first, "rules for a proxy in a policy of nodes", remedy);
    }
    if ingress && rules.listener.is_some() {
        refuse("listener", "given in an ingress section", "listeners exist on egress only");
    }
    if rules.listener.is_some() && rules.l7 != L7Rules::None {
        refuse("listener", "given beside rules", "the listener has rules of its own");
    }
    if !rules.server_names.is_empty() && rules.l7 != L7Rules::None && rules.terminating_tls.is_none() {
        refuse(
            "serverNames",
            "given beside rules without terminatingTLS",
            "add terminatingTLS or remove the rules",
        );
    }
    if dns {
        if ingress {
            refuse("rules", "DNS rules in an ingress section", "DNS rules exist on egress only");
        }
        if ports.is_empty() {
            refuse("ports", "missing", "DNS rules need a port, such as 53");
        }
        let is_range = |spec: &PortSpec| match &spec.port {
            Port::Range(first, last) => last > first,
            Port::Named { end, .. } => end.is_some(),
            Port::All => false,
        };
        if ports.iter().any(is_range) {
            refuse("ports", "a range beside DNS rules", "name each port");
        }
    } else if rules.listener.is_none() && ports.iter().any(|spec| spec.protocol != TCP) {
        refuse("ports", "a protocol other than TCP beside rules for a proxy", "write protocol TCP");
    }
    if rules.l7 != L7Rules::None && ports.iter().any(|spec| spec.port == Port::All) {
        refuse("ports", "port 0 beside rules of layer 7", "name each port");
    }
    Some(rules)
}

fn l7_rules(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> L7Rules {
    let Some(object) = field.object(problems) else { return L7Rules::None };
    object.check_names(problems, &["http", "dns"], &[]);
    let (http, dns) = (object.elements("http", problems), object.elements("dns", problems));
    if !http.is_empty() && !dns.is_empty() {
        problems.add(&field.path, "http and dns in one element", "make each an element of its own");
    }
    let http_rules: BTreeSet<HttpRule> =
        http.iter().filter_map(|field| http_rule(field, context, problems)).collect();
    let dns_rules = dns.iter().filter_map(|field| dns_rule(field, problems)).collect();
    match (http.is_empty(), dns.is_empty()) {
        (false, _) => L7Rules::Http(http_rules),
        (true, false) => L7Rules::Dns(dns_rules),
        (true, true) => L7Rules::None,
    }
}

fn http_rule(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<HttpRule> {
    let object = field.object(problems)?;
    object.check_names(problems, &["path", "method", "host", "headers", "headerMatches"], &[]);
    let mut expression = |name| {
        let text = object.text(name, problems);
        // A host is matched by the proxy after its pattern is translated: `*` alone is valid there.
        if let Err(error) = go_regex::validate(text)
            && !(name == "host" && is_host_pattern(text))
        {
            let reason = format!("{}: not a regular expression: {error}", quoted(&text.into()));
            problems.add(&object.path_of(name), reason, "write it in RE2 syntax");
        }
        text.to_owned()
    };
    let (path, method, host) = (expression("path"), expression("method"), expression("host"));
    let headers = object.elements("headers", problems);
    let headers = headers.iter().filter_map(|field| field.text(problems)).map(str::to_owned).collect();
    let matches = object.elements("headerMatches", problems);
    let header_matches = matches.iter().filter_map(|field| header_match(field, context, problems)).collect();
    Some(HttpRule { method, path, host, headers, header_matches })
}

fn is_host_pattern(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.*".contains(&b))
}

fn header_match(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<HeaderMatch> {
    let object = field.object(problems)?;
    object.check_names(problems, &["mismatch", "name", "secret", "value"], &[]);
    let (name, mismatch) = (object.text("name", problems), object.text("mismatch", problems));
    if name.is_empty() {
        problems.add(&object.path_of("name"), "missing", "name a header");
    }
    if !mismatch.is_empty() && !MISMATCHES.contains(&mismatch) {
        let reason = format!("{}: not an action", quoted(&mismatch.into()));
        problems.add(&object.path_of("mismatch"), reason, "LOG, ADD, DELETE or REPLACE");
    }
    let secret = object.field("secret").and_then(|field| secret(&field, context, problems));
    let value = object.text("value", problems).to_owned();
    Some(HeaderMatch { name: name.to_owned(), mismatch: mismatch.to_owned(), value, secret })
}

fn secret(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<SecretRef> {
    let object = field.object(problems)?;
    object.check_names(problems, &["name", "namespace"], &[]);
    let name = object.text("name", problems).to_owned();
    if name.is_empty() {
        problems.add(&object.path_of("name"), "missing", "name a secret");
        return None;
    }
    let namespace = match (object.text("namespace", problems), context.namespace) {
        ("", "") => DEFAULT_NAMESPACE,
        ("", of_policy) => of_policy,
        (namespace, _) => namespace,
    };
    Some(SecretRef { namespace: namespace.to_owned(), name })
}

fn tls(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<TlsContext> {
    let object = field.object(problems)?;
    object.check_names(problems, &["secret", "trustedCA", "certificate", "privateKey"], &[]);
    let mut text = |name| object.text(name, problems).to_owned();
    let (trusted_ca, certificate, private_key) = (text("trustedCA"), text("certificate"), text("privateKey"));
    let Some(field) = object.field("secret") else {
        problems.add(&object.path_of("secret"), "missing", "name the secret with the certificates");
        return None;
    };
    Some(TlsContext { secret: secret(&field, context, problems)?, trusted_ca, certificate, private_key })
}

fn server_names(element: &Object<'_>, problems: &mut Problems) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for field in element.elements("serverNames", problems) {
        let Some(name) = field.text(problems) else { continue };
        if name.is_empty() || name.len() > 255 || !is_host_pattern(name) {
            let reason = format!("{}: not a server's name", quoted(field.value));
            problems.add(&field.path, reason, "a DNS name, which may contain *");
            continue;
        }
        names.insert(name.to_owned());
    }
    names
}

fn listener(field: &Field<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<Listener> {
    let before = problems.count();
    let object = field.object(problems)?;
    object.check_names(problems, &["envoyConfig", "name", "priority"], &[]);
    let name = object.text("name", problems);
    if name.is_empty() {
        problems.add(&object.path_of("name"), "missing", "name a listener of the Envoy configuration");
    }
    let priority = object.field("priority").map_or(Some(0), |field| {
        let priority = field.value.as_u64().filter(|priority| (1..=MAX_PRIORITY).contains(priority));
        if priority.is_none() {
            problems.add(
                &field.path,
                format!("{}: not a priority", quoted(field.value)),
                "a number from 1 to 100",
            );
        }
        priority
    });
    let Some(config) = object.field("envoyConfig").and_then(|field| field.object(problems)) else {
        if object.field("envoyConfig").is_none() {
            problems.add(&object.path_of("envoyConfig"), "missing", "name the Envoy configuration");
        }
        return None;
    };
    config.check_names(problems, &["kind", "name"], &[]);
    let config_name = config.text("name", problems);
    if config_name.is_empty() {
        problems.add(&config.path_of("name"), "missing", "name the Envoy configuration");
    }
    let is_namespaced = context.kind == Kind::CiliumNetworkPolicy;
    let namespace = match (config.text("kind", problems), is_namespaced) {
        ("CiliumEnvoyConfig" | "", true) => context.namespace,
        ("CiliumClusterwideEnvoyConfig", _) | ("", false) => "",
        ("CiliumEnvoyConfig", false) => {
            let remedy = "use a CiliumClusterwideEnvoyConfig";
            problems.add(&config.path_of("kind"), "is in a namespace, and the policy is not", remedy);
            return None;
        }
        (other, _) => {
            let reason = format!("{}: not a kind of Envoy configuration", quoted(&other.into()));
            let remedy = "CiliumEnvoyConfig or CiliumClusterwideEnvoyConfig";
            problems.add(&config.path_of("kind"), reason, remedy);
            return None;
        }
    };
    let name = format!("{namespace}/{config_name}/{name}").into();
    (problems.count() == before).then_some(Listener { name, priority: priority? as u8 })
}
