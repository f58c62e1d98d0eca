//! Field masks: copies of flows with selected fields.

use std::collections::BTreeMap;

use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field};

use crate::flow::Flow;

/// A message of the package `flow`: its name, and name, number and message of each field.
type Fields = (&'static str, &'static [(&'static str, u32, &'static str)]);

const MESSAGES: &[Fields] = include!(concat!(env!("OUT_DIR"), "/fields.rs"));

/// The message that paths begin in.
const ROOT: &str = ".flow.Flow";

/// A path that names no field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid fieldmask: {path:?} is no field of a flow")]
pub struct BadMask {
    /// The path.
    pub path: String,
}

/// Paths of fields, such as `IP` or `source.identity`. A path selects all that is below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldMask {
    /// Selected fields by number. A field without selected fields below it is selected as a whole.
    fields: BTreeMap<u32, FieldMask>,
}

impl FieldMask {
    /// Returns the mask of these paths.
    ///
    /// # Errors
    /// A path names no field.
    pub fn new<P: AsRef<str>>(paths: impl IntoIterator<Item = P>) -> Result<Self, BadMask> {
        let mut mask = Self::default();
        for path in paths {
            let path = path.as_ref();
            mask.insert(ROOT, path).ok_or_else(|| BadMask { path: path.to_owned() })?;
        }
        Ok(mask)
    }

    /// Adds a path below a message.
    fn insert(&mut self, message: &str, path: &str) -> Option<()> {
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        let (_, fields) = MESSAGES.iter().find(|(known, _)| *known == message)?;
        let (_, number, inner) = fields.iter().find(|(known, ..)| *known == name)?;
        match (rest, self.fields.get_mut(number)) {
            (None, _) => {
                self.fields.insert(*number, Self::default());
            }
            // The whole field is selected already; the rest must be valid nevertheless.
            (Some(rest), Some(whole)) if whole.fields.is_empty() => Self::default().insert(inner, rest)?,
            (Some(rest), Some(part)) => part.insert(inner, rest)?,
            (Some(rest), None) => {
                let mut part = Self::default();
                part.insert(inner, rest)?;
                self.fields.insert(*number, part);
            }
        }
        Some(())
    }

    /// Returns the selected fields of a flow; all of them without paths. A selected part of an absent message is absent.
    /// The time is that of encoding and decoding the flow.
    #[must_use]
    pub fn apply(&self, flow: &Flow) -> Flow {
        if self.fields.is_empty() {
            return flow.clone();
        }
        let mut out = Vec::new();
        let copied = self.copy(&flow.encode_to_vec(), &mut out);
        // The bytes are those of a valid flow: neither fails.
        copied.and_then(|()| Flow::decode(&*out)).unwrap_or_default()
    }

    /// Copies the selected fields of an encoded message.
    fn copy(&self, mut message: &[u8], out: &mut Vec<u8>) -> Result<(), prost::DecodeError> {
        while !message.is_empty() {
            let begin = message;
            let (number, wire_type) = decode_key(&mut message)?;
            let value = message;
            skip_field(wire_type, number, &mut message, DecodeContext::default())?;
            match self.fields.get(&number) {
                None => {}
                Some(whole) if whole.fields.is_empty() => {
                    out.extend_from_slice(&begin[..begin.len() - message.len()]);
                }
                Some(part) => {
                    let mut inner = &value[..value.len() - message.len()];
                    prost::encoding::decode_varint(&mut inner)?;
                    let mut selected = Vec::new();
                    part.copy(inner, &mut selected)?;
                    encode_key(number, WireType::LengthDelimited, out);
                    encode_varint(selected.len() as u64, out);
                    out.extend(selected);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Endpoint, Ip, Layer4, Tcp, Udp, Verdict, layer4};

    fn flow() -> Flow {
        let tcp = Tcp { source_port: 1, destination_port: 80, flags: None };
        Flow {
            verdict: Verdict::Dropped.into(),
            ip: Some(Ip { source: "10.0.0.1".into(), destination: "10.0.0.2".into(), ..Ip::default() }),
            l4: Some(Layer4 { protocol: Some(layer4::Protocol::Tcp(tcp)) }),
            source: Some(Endpoint {
                id: 7,
                identity: 9,
                labels: vec!["k8s:a=b".into()],
                ..Endpoint::default()
            }),
            summary: "TCP".into(),
            ..Flow::default()
        }
    }

    #[test]
    fn a_mask_selects_fields_messages_and_parts_of_them() {
        let mask = FieldMask::new([
            "source.identity",
            "IP",
            "IP.source",
            "l4.TCP.source_port",
            "destination.ID",
            "Summary",
        ]);
        let expected = Flow {
            ip: flow().ip,
            l4: Some(Layer4 {
                protocol: Some(layer4::Protocol::Tcp(Tcp { source_port: 1, ..Tcp::default() })),
            }),
            source: Some(Endpoint { identity: 9, ..Endpoint::default() }),
            summary: "TCP".into(),
            ..Flow::default()
        };
        let mask = mask.unwrap();
        assert_eq!(mask.apply(&flow()), expected);
        assert_eq!(FieldMask::default().apply(&flow()), flow());
        // Another protocol leaves nothing of this one.
        let udp = Udp { source_port: 5, destination_port: 53 };
        let other =
            Flow { l4: Some(Layer4 { protocol: Some(layer4::Protocol::Udp(udp)) }), ..Flow::default() };
        assert_eq!(mask.apply(&other).l4, Some(Layer4 { protocol: None }));
    }

    #[test]
    fn a_path_without_a_field_is_an_error() {
        for path in ["", "ip", "source.", "source.identity.x", "source.labels.x", "IP.x", "time.seconds"] {
            assert_eq!(
                FieldMask::new(["source", "IP", path]),
                Err(BadMask { path: path.to_owned() }),
                "{path}"
            );
        }
    }
}
