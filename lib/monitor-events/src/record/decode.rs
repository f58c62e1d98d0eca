//! The struct of a stream to a record. Absent fields are zero, others are ignored.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use labels::Label;

use super::{
    Contents, DnsRecord, GenericRecord, Headers, HttpRecord, ObservationPoint, Party, Record, RecordKind,
    RecordVerdict,
};
use crate::decode::DecodeError;
use crate::gob::{Struct, Value};

/// Returns the record of a struct.
///
/// # Errors
/// A word is none of those that records have.
pub(crate) fn record(fields: Struct) -> Result<Record, DecodeError> {
    let mut fields = Fields(fields);
    let word = |field: &'static str| DecodeError::Record { field };
    let mut node = fields.object("NodeAddressInfo").unwrap_or_default();
    Ok(Record {
        kind: RecordKind::parse(&fields.text("Type")).ok_or(word("Type"))?,
        timestamp: fields.text("Timestamp"),
        node: [node.text("IPv4"), node.text("IPv6")],
        point: ObservationPoint::parse(&fields.text("ObservationPoint")).ok_or(word("ObservationPoint"))?,
        source: party(fields.object("SourceEndpoint").unwrap_or_default()),
        destination: party(fields.object("DestinationEndpoint").unwrap_or_default()),
        is_ipv6: fields.uint("IPVersion") == 1,
        verdict: RecordVerdict::parse(&fields.text("Verdict")).ok_or(word("Verdict"))?,
        info: fields.text("Info"),
        metadata: fields.texts("Metadata"),
        protocol: fields.number("TransportProtocol"),
        contents: contents(&mut fields),
    })
}

fn contents(fields: &mut Fields) -> Contents {
    if let Some(mut http) = fields.object("HTTP") {
        return Contents::Http(HttpRecord {
            code: http.number("Code"),
            method: http.text("Method"),
            url: http.text("URL"),
            protocol: http.text("Protocol"),
            headers: http.headers("Headers"),
            missing_headers: http.headers("MissingHeaders"),
            rejected_headers: http.headers("RejectedHeaders"),
        });
    }
    if let Some(mut dns) = fields.object("DNS") {
        return Contents::Dns(DnsRecord {
            query: dns.text("Query"),
            ips: dns.list("IPs").iter().filter_map(address).collect(),
            ttl: dns.number("TTL"),
            cnames: dns.texts("CNAMEs"),
            source: dns.text("ObservationSource"),
            rcode: dns.number("RCode"),
            qtypes: dns.numbers("QTypes"),
            answer_types: dns.numbers("AnswerTypes"),
        });
    }
    match fields.object("L7") {
        Some(mut generic) => Contents::Generic(GenericRecord {
            protocol: generic.text("Proto"),
            fields: generic.map("Fields").map(|(name, value)| (name, text(value))).collect(),
        }),
        None => Contents::Unknown,
    }
}

fn party(mut fields: Fields) -> Party {
    let label = |value: Value| match value {
        Value::Struct(label) => {
            let mut label = Fields(label);
            Some(Label { key: label.text("Key"), value: label.text("Value"), source: label.text("Source") })
        }
        _ => None,
    };
    let address = [fields.text("IPv4"), fields.text("IPv6")];
    Party {
        id: fields.uint("ID"),
        address: address.iter().find_map(|text| text.parse().ok()),
        port: fields.number("Port"),
        identity: fields.uint("Identity"),
        labels: fields.list("Labels").into_iter().filter_map(label).collect(),
    }
}

/// Returns the address in the bytes of Go's `netip.Addr`; a zone behind it is ignored.
fn address(value: &Value) -> Option<IpAddr> {
    let Value::Bytes(bytes) = value else { return None };
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[..]).ok()?).into()),
        16.. => Some(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..16]).ok()?).into()),
        _ => None,
    }
}

fn text(value: Value) -> String {
    match value {
        Value::Text(text) => text,
        Value::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    }
}

fn uint(value: &Value) -> u64 {
    match value {
        Value::Uint(value) => *value,
        Value::Int(value) => u64::try_from(*value).unwrap_or_default(),
        _ => 0,
    }
}

/// The fields of a struct, taken by name.
#[derive(Default)]
struct Fields(Struct);

impl Fields {
    fn text(&mut self, name: &str) -> String {
        self.0.remove(name).map(text).unwrap_or_default()
    }

    fn uint(&mut self, name: &str) -> u64 {
        self.0.get(name).map(uint).unwrap_or_default()
    }

    /// Returns a number; 0 if it is larger than its type.
    fn number<T: TryFrom<u64> + Default>(&mut self, name: &str) -> T {
        T::try_from(self.uint(name)).unwrap_or_default()
    }

    fn object(&mut self, name: &str) -> Option<Fields> {
        match self.0.remove(name) {
            Some(Value::Struct(fields)) => Some(Fields(fields)),
            _ => None,
        }
    }

    fn list(&mut self, name: &str) -> Vec<Value> {
        match self.0.remove(name) {
            Some(Value::List(list)) => list,
            _ => Vec::new(),
        }
    }

    fn texts(&mut self, name: &str) -> Vec<String> {
        self.list(name).into_iter().map(text).collect()
    }

    fn numbers(&mut self, name: &str) -> Vec<u16> {
        self.list(name).iter().filter_map(|value| u16::try_from(uint(value)).ok()).collect()
    }

    fn map(&mut self, name: &str) -> impl Iterator<Item = (String, Value)> + use<> {
        let pairs = match self.0.remove(name) {
            Some(Value::Map(pairs)) => pairs,
            _ => Vec::new(),
        };
        pairs.into_iter().map(|(name, value)| (text(name), value))
    }

    fn headers(&mut self, name: &str) -> Headers {
        let values = |value| match value {
            Value::List(values) => values.into_iter().map(text).collect(),
            _ => Vec::new(),
        };
        self.map(name).map(|(name, value)| (name, values(value))).collect()
    }
}
