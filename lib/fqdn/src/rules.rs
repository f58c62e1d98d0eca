//! The DNS rules of a port: which names may be asked for, and their form in records.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use regex::{Regex, RegexBuilder};
use serde_json::{Value, json};

use crate::pattern::Pattern;

/// The expression of rules that allow every name.
const EVERYTHING: &str = "(?:)";
/// The expression that records have for rules that allow nothing.
const NOTHING: &str = "^-$";
/// The maximum size of a compiled expression of a record, in bytes: thousands of names. A larger one allows nothing.
const MAX_EXPRESSION_SIZE: usize = 16 << 20;

/// The names that may be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rules {
    /// All, even with escaped bytes.
    Every,
    /// Names that one of the patterns matches.
    Names(Vec<Pattern>),
}

impl Rules {
    /// Returns the rules of pairs of a name and a pattern, of which either may be empty. One that matches every name
    /// makes the others irrelevant.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Rules {
        let texts = pairs.into_iter().flat_map(|(name, pattern)| [name, pattern]);
        let mut patterns: Vec<Pattern> = texts.filter(|text| !text.is_empty()).map(Pattern::parse).collect();
        if patterns.iter().any(Pattern::is_every) {
            return Rules::Every;
        }
        patterns.sort();
        patterns.dedup();
        Rules::Names(patterns)
    }

    /// Whether a canonical name may be asked for.
    pub fn allow(&self, name: &str) -> bool {
        match self {
            Rules::Every => true,
            Rules::Names(patterns) => patterns.iter().any(|pattern| pattern.matches(name)),
        }
    }

    /// Returns the regular expression that stands for the rules in records.
    pub fn expression(&self) -> String {
        match self {
            Rules::Every => EVERYTHING.to_owned(),
            Rules::Names(patterns) if patterns.is_empty() => NOTHING.to_owned(),
            Rules::Names(patterns) => {
                let bodies: Vec<String> = patterns.iter().map(Pattern::body).collect();
                format!("^(?:{})$", bodies.join("|"))
            }
        }
    }
}

/// Returns the key of a port in records.
///
/// ```
/// assert_eq!(fqdn::port_key(17, 53), 17_891_381);
/// ```
pub fn port_key(protocol: u8, port: u16) -> u32 {
    (1 << 24) | u32::from(protocol) << 16 | u32::from(port)
}

/// The rules for some servers of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRules {
    /// The servers; `None` for any.
    pub servers: Option<Vec<IpNetwork>>,
    /// The names.
    pub names: Rules,
}

/// A rule of the previous run: names that may be asked for at some servers. It has no identities, so it can be checked
/// before they are known.
#[derive(Debug, Clone)]
struct Restored {
    /// The servers; `None` for any.
    servers: Option<Vec<IpNetwork>>,
    /// The names.
    names: Regex,
}

/// The rules of an endpoint from the previous run, by [`port_key`].
#[derive(Debug, Clone, Default)]
pub struct RestoredRules(BTreeMap<u32, Vec<Restored>>);

impl RestoredRules {
    /// Reads the field `DNSRulesV2` of a record. Rules that cannot be read allow nothing.
    pub fn from_record(field: &Value) -> RestoredRules {
        let ports = field.as_object().into_iter().flatten();
        let rules = |value: &Value| value.as_array().into_iter().flatten().filter_map(read_rule).collect();
        RestoredRules(ports.filter_map(|(key, value)| Some((key.parse().ok()?, rules(value)))).collect())
    }

    /// Returns the field of a record with the rules of each port.
    pub fn to_record(rules: &BTreeMap<u32, Vec<ServerRules>>) -> Value {
        let rule = |ServerRules { servers, names }: &ServerRules| {
            let text = |server: &IpNetwork| match server.ip() {
                ip if server.prefix() == if ip.is_ipv4() { 32 } else { 128 } => ip.to_string(),
                _ => server.to_string(),
            };
            let set = |servers: &Vec<IpNetwork>| {
                Value::Object(servers.iter().map(|server| (text(server), json!({}))).collect())
            };
            json!({"Re": names.expression(), "IPs": servers.as_ref().map(set)})
        };
        let port = |(key, rules): (&u32, &Vec<_>)| (key.to_string(), rules.iter().map(rule).collect());
        Value::Object(rules.iter().map(port).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a canonical name may be asked for at a server.
    pub fn allow(&self, protocol: u8, port: u16, server: IpAddr, name: &str) -> bool {
        let rules = self.0.get(&port_key(protocol, port));
        rules.into_iter().flatten().any(|rule| {
            let servers = rule.servers.as_ref();
            let is_server = servers.is_none_or(|list| list.iter().any(|prefix| prefix.contains(server)));
            is_server && rule.names.is_match(name)
        })
    }
}

fn read_rule(value: &Value) -> Option<Restored> {
    let expression = value.get("Re")?.as_str()?;
    let names = RegexBuilder::new(expression).size_limit(MAX_EXPRESSION_SIZE).build().ok()?;
    let servers = match value.get("IPs") {
        None | Some(Value::Null) => None,
        // An empty set is that of a selector without identities: Cilium takes it for any server.
        Some(set) => Some(set.as_object()?.keys().filter_map(|text| text.parse().ok()).collect()),
    };
    Some(Restored { servers, names })
}
