//! Messages from their JSON form, with names of fields in both spellings (`source_pod`, `sourcePod`).

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::Value;

use crate::flow::{Flow, FlowFilter};

/// The messages and enums of the package `flow`.
struct Types {
    messages: &'static [(&'static str, &'static [Field])],
    enums: &'static [(&'static str, &'static [(&'static str, i32)])],
}

/// A field: its name in both spellings, its number, whether it is a list, its type.
type Field = ([&'static str; 2], u32, bool, Kind);

/// The type of a value.
enum Kind {
    Bool,
    Text,
    /// A number between these, also as a string.
    Number(i128, i128),
    /// A value by name or number.
    Enum(&'static str),
    /// A time in RFC 3339.
    Time,
    /// A value in a message of its own, so that it may be absent.
    Wrapper(&'static Kind),
    Message(&'static str),
}

const TYPES: Types = include!(concat!(env!("OUT_DIR"), "/types.rs"));

/// JSON that is not the form of a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", if path.is_empty() { "the object" } else { path })]
pub struct BadJson {
    /// The path of the value: `source_pod[1]`.
    pub path: String,
    /// The problem, and what would be right.
    pub problem: String,
}

/// Returns a flow from its JSON form.
///
/// # Errors
/// A field is unknown, or a value has another type.
pub fn flow_from_json(value: &Value) -> Result<Flow, BadJson> {
    message(".flow.Flow", value)
}

/// Returns a filter from its JSON form, as clients and configurations have it.
///
/// # Errors
/// A field is unknown, or a value has another type.
///
/// ```
/// let json = serde_json::json!({"sourcePod": ["shop/"], "verdict": ["DROPPED", 1]});
/// let filter = hubble_api::filter_from_json(&json)?;
/// assert_eq!((filter.source_pod, filter.verdict), (vec!["shop/".to_owned()], vec![2, 1]));
/// # Ok::<(), hubble_api::BadJson>(())
/// ```
pub fn filter_from_json(value: &Value) -> Result<FlowFilter, BadJson> {
    message(".flow.FlowFilter", value)
}

fn message<M: Message + Default>(name: &str, value: &Value) -> Result<M, BadJson> {
    let mut bytes = Vec::new();
    encode(name, value, &mut bytes, "")?;
    M::decode(&*bytes).map_err(|error| bad("", error.to_string()))
}

fn bad(path: &str, problem: impl Into<String>) -> BadJson {
    BadJson { path: path.to_owned(), problem: problem.into() }
}

/// Appends the fields of a message.
fn encode(name: &str, value: &Value, out: &mut Vec<u8>, path: &str) -> Result<(), BadJson> {
    let object = value.as_object().ok_or_else(|| bad(path, "must be an object"))?;
    let (_, fields) = TYPES
        .messages
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| bad(path, "has no JSON form"))?;
    for (key, value) in object {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let field = fields.iter().find(|(names, ..)| names.contains(&key.as_str()));
        let (_, number, is_list, kind) = field.ok_or_else(|| bad(&path, "is no field"))?;
        match value {
            Value::Null => {}
            Value::Array(items) if *is_list => {
                for (at, item) in items.iter().enumerate() {
                    kind.encode(*number, item, out, &format!("{path}[{at}]"))?;
                }
            }
            _ if *is_list => return Err(bad(&path, "must be a list")),
            value => kind.encode(*number, value, out, &path)?,
        }
    }
    Ok(())
}

impl Kind {
    /// Appends a field with a value of this type.
    fn encode(&self, number: u32, value: &Value, out: &mut Vec<u8>, path: &str) -> Result<(), BadJson> {
        let mut varint = |value: u64| {
            encode_key(number, WireType::Varint, out);
            encode_varint(value, out);
        };
        let inner = match self {
            Kind::Bool => {
                varint(value.as_bool().ok_or_else(|| bad(path, "must be true or false"))?.into());
                return Ok(());
            }
            Kind::Number(least, most) => {
                let value = integer(value).filter(|value| (least..=most).contains(&value));
                varint(value.ok_or_else(|| bad(path, format!("must be a number from {least} to {most}")))?
                    as u64);
                return Ok(());
            }
            Kind::Enum(name) => {
                varint(i64::from(named(name, value, path)?) as u64);
                return Ok(());
            }
            Kind::Text => value.as_str().ok_or_else(|| bad(path, "must be a string"))?.as_bytes().to_vec(),
            Kind::Time => {
                let time = value.as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
                let time = time.ok_or_else(|| bad(path, "must be a time as 2026-11-21T12:05:29Z"))?;
                let (seconds, nanos) = (time.as_second(), time.subsec_nanosecond());
                prost_types::Timestamp { seconds, nanos }.encode_to_vec()
            }
            Kind::Wrapper(kind) => {
                let mut inner = Vec::new();
                kind.encode(1, value, &mut inner, path)?;
                inner
            }
            Kind::Message(name) => {
                let mut inner = Vec::new();
                encode(name, value, &mut inner, path)?;
                inner
            }
        };
        encode_key(number, WireType::LengthDelimited, out);
        encode_varint(inner.len() as u64, out);
        out.extend(inner);
        Ok(())
    }
}

fn integer(value: &Value) -> Option<i128> {
    match value {
        Value::Number(number) => number.as_i128(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// Returns the number of an enum's value.
fn named(name: &str, value: &Value, path: &str) -> Result<i32, BadJson> {
    let values = TYPES.enums.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, values)| values);
    let number = match value {
        Value::String(text) => values.iter().find(|(known, _)| known == text).map(|(_, number)| *number),
        value => integer(value).and_then(|number| i32::try_from(number).ok()),
    };
    number.ok_or_else(|| {
        let some: Vec<_> = values.iter().take(8).map(|(name, _)| *name).collect();
        let dots = if values.len() > some.len() { ", ..." } else { "" };
        bad(
            path,
            format!(
                "must be a name of {}: {}{dots}",
                name.rsplit('.').next().unwrap_or(name),
                some.join(", ")
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::observer::GetFlowsResponse;
    use crate::observer::get_flows_response::ResponseTypes;

    #[test]
    fn a_flow_is_read_as_it_is_written() {
        let json = json!({
            "time": "2026-11-21T12:05:29.803Z", "uuid": "u", "verdict": "DROPPED", "drop_reason": 133,
            "IP": {"source": "10.0.0.1", "ipVersion": "IPv4", "encrypted": true},
            "l4": {"TCP": {"source_port": 1, "flags": {"SYN": true}}},
            "tunnel": {"protocol": "VXLAN", "vni": 7},
            "source": {"ID": 3, "labels": ["k8s:a=b", "k8s:c=d"], "workloads": [{"name": "w", "kind": "Job"}]},
            "event_type": {"type": -1}, "drop_reason_desc": "POLICY_DENIED", "is_reply": false,
            "cgroup_id": "18446744073709551615", "Summary": "x",
        });
        let flow = flow_from_json(&json).unwrap();
        let response =
            GetFlowsResponse { response_types: Some(ResponseTypes::Flow(flow)), ..Default::default() };
        let again: Value = serde_json::from_str(&crate::to_json(&response)).unwrap();
        assert_eq!(again["flow"], json);
    }

    #[test]
    fn a_filter_has_fields_in_both_spellings_and_faults_have_their_path() {
        let both = json!({"source_pod": ["a/"], "destinationPod": ["b/"], "reply": [true], "sourceIdentity": ["5"],
            "eventType": [{"type": 4, "matchSubType": true}], "experimental": {"celExpression": ["x"]}});
        let filter = filter_from_json(&both).unwrap();
        assert_eq!(
            (&*filter.source_pod, &*filter.destination_pod),
            (&["a/".to_owned()][..], &["b/".to_owned()][..])
        );
        assert_eq!((filter.source_identity, filter.reply), (vec![5], vec![true]));
        assert!(filter.event_type[0].match_sub_type && filter.experimental.is_some());
        for (json, path) in [
            (json!({"pod": ["a"]}), "pod: is no field"),
            (json!({"source_pod": "a"}), "source_pod: must be a list"),
            (json!({"source_pod": ["a", 1]}), "source_pod[1]: must be a string"),
            (json!({"source_identity": [-1]}), "source_identity[0]: must be a number from 0 to 4294967295"),
            (
                json!({"verdict": ["dropped"]}),
                "verdict[0]: must be a name of Verdict: VERDICT_UNKNOWN, FORWARDED",
            ),
            (json!({"event_type": [{"kind": 1}]}), "event_type[0].kind: is no field"),
            (json!([]), "the object: must be an object"),
        ] {
            let error = filter_from_json(&json).unwrap_err().to_string();
            assert!(error.starts_with(path), "{error}");
        }
    }
}
