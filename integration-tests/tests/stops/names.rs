//! Names in place of ids that may differ between runs, so that two runs can be compared.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value};

/// The meaning of ids, addresses and MACs of one moment.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Endpoints by number: their pods' names.
    pub(crate) endpoints: BTreeMap<u64, String>,
    /// Identities by number: their labels.
    pub(crate) identities: BTreeMap<u64, String>,
    /// Links by number.
    pub(crate) links: BTreeMap<u64, String>,
    /// Services by number: their frontends.
    pub(crate) services: BTreeMap<u64, String>,
    /// Texts that stand for something, the longest first.
    texts: Vec<(String, String)>,
}

impl Names {
    /// From the agent's tables and the kernel's links (`ip -j addr`).
    pub(crate) fn new(tables: &Value, links: &Value) -> Names {
        let mut names = Names::default();
        for row in rows(tables, "endpoints") {
            let record = &row["Record"];
            let pod = match record["K8sPodName"].as_str() {
                Some("") | None => "host",
                Some(pod) => pod,
            };
            let id = record["ID"].as_u64().unwrap_or(0);
            names.endpoints.insert(id, pod.to_owned());
            names.texts.extend([id.to_string(), format!("{id:05}")].map(|id| (id, format!("<{pod}>"))));
            for (field, what) in [("IPv4", "v4"), ("IPv6", "v6"), ("LXCMAC", "mac"), ("NodeMAC", "host mac")]
            {
                names.text(&record[field], format!("<{pod} {what}>"));
            }
        }
        for row in rows(tables, "identities") {
            let labels: Vec<&str> =
                row["Labels"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            // A part that all pods of these tests share identifies none of them.
            let own = labels.iter().filter(|label| !label.starts_with("k8s:io."));
            let own: Vec<&str> = own.copied().collect();
            names.identities.insert(row["Id"].as_u64().unwrap_or(0), own.join(","));
        }
        for link in links.as_array().into_iter().flatten() {
            let name = link["ifname"].as_str().unwrap_or_default();
            names.links.insert(link["ifindex"].as_u64().unwrap_or(0), name.to_owned());
            if !name.starts_with("lxc") && name != "lo" {
                names.text(&link["address"], format!("<{name} mac>"));
            }
            for address in link["addr_info"].as_array().into_iter().flatten() {
                if address["scope"] == "link" {
                    names.text(&address["local"], format!("<{name} link-local>"));
                }
            }
        }
        for row in rows(tables, "frontends") {
            names.services.insert(row["ID"].as_u64().unwrap_or(0), row["Address"].to_string());
        }
        for address in
            rows(tables, "local-node").iter().flat_map(|row| row["IPAddresses"].as_array().unwrap())
        {
            if address["Type"] == "CiliumInternalIP" {
                let ip = address["IP"].as_str().unwrap_or_default();
                names
                    .text(&address["IP"], format!("<router {}>", if ip.contains(':') { "v6" } else { "v4" }));
            }
        }
        names.texts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        names
    }

    fn text(&mut self, text: &Value, name: String) {
        if let Some(text) = text.as_str().filter(|text| !text.is_empty()) {
            self.texts.push((text.to_owned(), name));
        }
    }

    pub(crate) fn endpoint(&self, id: u64) -> String {
        named(&self.endpoints, id, "endpoint")
    }

    pub(crate) fn identity(&self, id: u64) -> String {
        named(&self.identities, id, "identity")
    }

    pub(crate) fn link(&self, index: u64) -> String {
        named(&self.links, index, "link")
    }

    pub(crate) fn service(&self, id: u64) -> String {
        named(&self.services, id, "service")
    }

    /// Returns a text with all known ids and addresses replaced by names.
    pub(crate) fn of(&self, text: &str) -> String {
        self.texts.iter().fold(text.to_owned(), |text, (from, to)| replace(&text, from, to))
    }

    /// A value of the agent's tables or files: named, and without what each run has otherwise.
    pub(crate) fn json(&self, key: &str, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let mut named = Map::new();
                for (key, value) in fields.iter().filter(|(key, _)| !VOLATILE.contains(&key.as_str())) {
                    named.insert(self.of(key), self.json(key, value));
                }
                Value::Object(named)
            }
            Value::Array(values) => {
                let mut named: Vec<Value> = values.iter().map(|value| self.json(key, value)).collect();
                if key == "identities" {
                    // Was sorted by number.
                    named.sort_by_key(Value::to_string);
                }
                Value::Array(named)
            }
            Value::String(text) => Value::String(self.of(text)),
            Value::Number(number) => match (key, number.as_u64()) {
                ("Endpoint", Some(id)) => self.endpoint(id).into(),
                ("Identity" | "AppliedIdentity" | "identities" | "id", Some(id)) => self.identity(id).into(),
                ("IfIndex" | "LinkIndex", Some(index)) => self.link(index).into(),
                _ => value.clone(),
            },
            other => other.clone(),
        }
    }
}

/// Times, counts of events, and ids that are only valid within one run.
const VOLATILE: [&str; 9] = [
    "updated-at",
    "updatedAt",
    "Reason",
    "Builds",
    "Announced",
    "Generation",
    "Revision",
    "UnhealthyUpdatedAt",
    "NetnsCookie",
];

/// Rows of a table in the dump.
pub(crate) fn rows<'a>(tables: &'a Value, table: &str) -> &'a [Value] {
    tables[table].as_array().map_or(&[], Vec::as_slice)
}

fn named(names: &BTreeMap<u64, String>, id: u64, kind: &str) -> String {
    match (names.get(&id), id) {
        (Some(name), _) => format!("<{name}>"),
        (None, 0) => "none".to_owned(),
        (None, _) => format!("unknown {kind} {id}"),
    }
}

/// Replaces `from` where it is a word of its own: not within another number or address, nor how long a prefix is.
fn replace(text: &str, from: &str, to: &str) -> String {
    let is_number = from.bytes().all(|byte| byte.is_ascii_digit());
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let (before, after) = (&rest[..at], &rest[at + from.len()..]);
        let within = |c: char| c.is_ascii_alphanumeric() || c == '.' || (c == ':' && from.contains(':'));
        let whole = !before.ends_with(within) && !after.starts_with(within);
        let of_address = is_number && (is_length(before) || is_part(&rest[at - address(before).len()..]));
        result.push_str(before);
        result.push_str(if whole && !of_address { to } else { from });
        rest = after;
    }
    result + rest
}

/// Returns the end of a text that may belong to an address.
fn address(text: &str) -> &str {
    &text[text.trim_end_matches(is_of_address).len()..]
}

fn is_of_address(c: char) -> bool {
    c.is_ascii_hexdigit() || matches!(c, ':' | '.' | '[' | ']')
}

/// Whether what follows this text is how many bits of an address count.
fn is_length(before: &str) -> bool {
    before.strip_suffix('/').is_some_and(|before| address(before).parse::<IpAddr>().is_ok())
}

/// Whether a text begins with an address, or one with a port.
fn is_part(text: &str) -> bool {
    let end = text.find(|c| !is_of_address(c)).unwrap_or(text.len());
    text[..end].parse::<IpAddr>().is_ok() || text[..end].parse::<SocketAddr>().is_ok()
}

#[test]
fn numbers_are_named_where_they_are_words() {
    for (text, named) in [
        ("112", "<host>"),
        ("/run/state/112/ep_config.json", "/run/state/<host>/ep_config.json"),
        ("cilium_policy_v2_00112", "cilium_policy_v2_00112"),
        ("fd00:10:244::/112 and 112", "fd00:10:244::/112 and <host>"),
        ("10.0.0.1:112/TCP", "10.0.0.1:112/TCP"),
        ("[fd00::1]:112", "[fd00::1]:112"),
        ("fd00::112", "fd00::112"),
        ("endpoint:112", "endpoint:<host>"),
    ] {
        assert_eq!(replace(text, "112", "<host>"), named);
    }
    assert_eq!(replace("fd00::1/112 fd00::12", "fd00::1", "<router v6>"), "<router v6>/112 fd00::12");
}
