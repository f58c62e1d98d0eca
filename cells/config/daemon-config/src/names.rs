//! The settings in force under their names in Cilium's API and files.

use std::collections::BTreeMap;
use std::path::Path;

use bpf::Clock;
use hive::Settings;
use hive::config::{Kind, parse_duration};
use serde_json::{Value, json};

/// The members of `daemonConfigurationMap` and their options; the file's header describes the format.
const NAMES: &str = include_str!("names.tsv");

/// Returns the rows of [`NAMES`]: the member, its option or an empty text, and its conversion.
fn names() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    NAMES.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut columns = line.split('\t');
        let mut column = || columns.next().unwrap_or_default();
        (column(), column(), column())
    })
}

/// Returns the settings in force. Options that neither a cell of this agent declares nor the hive accepts are left out.
pub(crate) fn daemon_configuration(
    settings: &Settings,
    clock: Option<Clock>,
    created: &str,
) -> BTreeMap<String, Value> {
    let mut map = BTreeMap::new();
    for (name, key, shown) in names() {
        let value = match key {
            "" => serde_json::from_str(shown).ok(),
            key => settings.value(key).map(|(kind, text)| value(kind, &text, shown, settings)),
        };
        let Some(value) = value else { continue };
        match name.split_once('.') {
            None => drop(map.insert(name.to_owned(), value)),
            Some((object, member)) => {
                let object = map.entry(object.to_owned()).or_insert_with(|| json!({}));
                object[member] = value;
            }
        }
    }
    // In the format that Cilium's command `bpf ct list` expects.
    let (source, hz) = match clock {
        Some(Clock::Jiffies { hz, .. }) => (1, hz),
        _ => (0, 0),
    };
    map.insert("ClockSource".to_owned(), json!(source));
    map.insert("KernelHz".to_owned(), json!(hz));
    map.insert("CreationTime".to_owned(), json!(created));
    map
}

/// Returns a value as JSON, in the type that Go's encoder would choose: durations are nanoseconds.
fn value(kind: Kind, text: &str, shown: &str, settings: &Settings) -> Value {
    let kind = match shown {
        "null" if text.is_empty() || text == "{}" => return Value::Null,
        "tcp-flags" => return tcp_flags(text),
        "base" => return json!(text.split('/').next()),
        "int" => Kind::Int(64),
        "map" => Kind::Map,
        _ => kind,
    };
    if let Some(below) = shown.strip_prefix("join:") {
        return json!(Path::new(text).join(below));
    }
    if let Some(needed) = shown.strip_prefix("if:")
        && settings.value(needed).is_none_or(|(_, needed)| needed != "true")
    {
        return Value::Bool(false);
    }
    let parsed = match kind {
        Kind::Bool => text.parse().ok().map(Value::Bool),
        Kind::Int(_) => text.parse::<i64>().ok().map(Value::from),
        Kind::Uint(_) => text.parse::<u64>().ok().map(Value::from),
        Kind::Float => text.parse::<f64>().ok().map(Value::from),
        Kind::Duration => {
            parse_duration(text).ok().map(|d| json!(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
        }
        Kind::Strings => Some(json!(text.split(',').filter(|item| !item.is_empty()).collect::<Vec<_>>())),
        Kind::Map => Some(map(text)),
        Kind::Text | Kind::Parsed(_) => None,
    };
    parsed.unwrap_or_else(|| Value::from(text))
}

/// Returns the flag bits of a TCP header (RFC 9293) for names of flags; unknown names are ignored.
fn tcp_flags(text: &str) -> Value {
    const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];
    let bit =
        |name: &str| FLAGS.iter().position(|flag| *flag == name).map_or(0, |position| 1_u32 << position);
    json!(text.split(',').map(|name| bit(name.trim())).sum::<u32>())
}

fn map(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| {
        text.split(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (k.to_owned(), json!(v)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The names are exactly those that Cilium prints.
    #[test]
    fn names_are_those_of_cilium() {
        let sample = include_str!("../../../infra/api/models/tests/samples/GET_config.json");
        let sample: Value = serde_json::from_str(sample).unwrap();
        let known = sample["status"]["daemonConfigurationMap"].as_object().unwrap();
        let mut missing: BTreeSet<&str> = known.keys().map(String::as_str).collect();
        for (name, key, _) in names() {
            let (object, member) = name.split_once('.').unwrap_or((name, ""));
            let is_known =
                known.get(object).is_some_and(|value| member.is_empty() || value.get(member).is_some());
            assert!(is_known, "{key} is not {name}");
            missing.remove(object);
        }
        assert_eq!(missing, ["ClockSource", "CreationTime", "KernelHz"].into());
    }

    #[test]
    fn flags_are_bits() {
        assert_eq!(tcp_flags("syn,fin,rst"), json!(7));
        assert_eq!(tcp_flags(""), json!(0));
    }
}
