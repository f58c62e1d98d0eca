//! The event of a record: its type byte, then a stream of its own with all types and one value.

use std::net::IpAddr;
use std::sync::OnceLock;

use labels::Label;

use super::{Contents, DnsRecord, Headers, Party, Record};
use crate::gob::{framed, put_int, put_uint};

/// Ids of basic types.
const INT: i64 = 2;
const UINT: i64 = 3;
const TEXT: i64 = 6;
/// Ids of the types of [`TYPES`], which any reader takes as long as they are not basic ones.
const RECORD: i64 = 66;
const NODE: i64 = 67;
const PARTY: i64 = 68;
const LABELS: i64 = 69;
const LABEL: i64 = 70;
const TEXTS: i64 = 71;
const HTTP: i64 = 72;
const URL: i64 = 73;
const HEADERS: i64 = 74;
const DNS: i64 = 75;
const ADDRESSES: i64 = 76;
const ADDRESS: i64 = 77;
const NUMBERS: i64 = 78;
const GENERIC: i64 = 79;
const FIELDS: i64 = 80;

/// A type as Go's encoder defines it.
enum Type {
    Slice(i64),
    Struct(&'static [(&'static str, i64)]),
    Map(i64, i64),
    /// One that writes itself as bytes.
    Binary,
}

/// The types of a record by Cilium's names. Fields that Cilium never sets are left out, as a decoder goes by names.
const TYPES: [(i64, &str, Type); 15] = [
    (
        RECORD,
        "LogRecord",
        Type::Struct(&[
            ("Type", TEXT),
            ("Timestamp", TEXT),
            ("NodeAddressInfo", NODE),
            ("ObservationPoint", TEXT),
            ("SourceEndpoint", PARTY),
            ("DestinationEndpoint", PARTY),
            ("IPVersion", UINT),
            ("Verdict", TEXT),
            ("Info", TEXT),
            ("Metadata", TEXTS),
            ("TransportProtocol", UINT),
            ("HTTP", HTTP),
            ("DNS", DNS),
            ("L7", GENERIC),
        ]),
    ),
    (NODE, "NodeAddressInfo", Type::Struct(&[("IPv4", TEXT), ("IPv6", TEXT)])),
    (
        PARTY,
        "EndpointInfo",
        Type::Struct(&[
            ("ID", UINT),
            ("IPv4", TEXT),
            ("IPv6", TEXT),
            ("Port", UINT),
            ("Identity", UINT),
            ("Labels", LABELS),
        ]),
    ),
    (LABELS, "LabelArray", Type::Slice(LABEL)),
    (LABEL, "Label", Type::Struct(&[("Key", TEXT), ("Value", TEXT), ("Source", TEXT)])),
    (TEXTS, "[]string", Type::Slice(TEXT)),
    (
        HTTP,
        "LogRecordHTTP",
        Type::Struct(&[
            ("Code", INT),
            ("Method", TEXT),
            ("URL", URL),
            ("Protocol", TEXT),
            ("Headers", HEADERS),
            ("MissingHeaders", HEADERS),
            ("RejectedHeaders", HEADERS),
        ]),
    ),
    (URL, "URL", Type::Binary),
    (HEADERS, "Header", Type::Map(TEXT, TEXTS)),
    (
        DNS,
        "LogRecordDNS",
        Type::Struct(&[
            ("Query", TEXT),
            ("IPs", ADDRESSES),
            ("TTL", UINT),
            ("CNAMEs", TEXTS),
            ("ObservationSource", TEXT),
            ("RCode", INT),
            ("QTypes", NUMBERS),
            ("AnswerTypes", NUMBERS),
        ]),
    ),
    (ADDRESSES, "[]netip.Addr", Type::Slice(ADDRESS)),
    (ADDRESS, "Addr", Type::Binary),
    (NUMBERS, "[]uint16", Type::Slice(UINT)),
    (GENERIC, "LogRecordL7", Type::Struct(&[("Proto", TEXT), ("Fields", FIELDS)])),
    (FIELDS, "map[string]string", Type::Map(TEXT, TEXT)),
];

/// Returns the event of a record.
#[must_use]
pub fn access_log(record: &Record) -> Vec<u8> {
    let mut value = Vec::with_capacity(512);
    put_int(&mut value, RECORD);
    Writer::write(&mut value, |fields| write_record(fields, record));
    let mut out = vec![crate::ACCESS_LOG];
    out.extend_from_slice(definitions());
    out.extend_from_slice(&framed(&value));
    out
}

/// Returns the definitions of all types.
fn definitions() -> &'static [u8] {
    static DEFINITIONS: OnceLock<Vec<u8>> = OnceLock::new();
    DEFINITIONS.get_or_init(|| TYPES.iter().flat_map(|(id, name, of)| definition(*id, name, of)).collect())
}

fn definition(id: i64, name: &str, of: &Type) -> Vec<u8> {
    let mut out = Vec::new();
    put_int(&mut out, -id);
    let common = |fields: &mut Writer<'_>| {
        fields.text(1, name);
        fields.int(2, id);
    };
    Writer::write(&mut out, |wire| match of {
        Type::Slice(element) => wire.nested(2, |slice| {
            slice.nested(1, common);
            slice.int(2, *element);
        }),
        Type::Struct(all) => wire.nested(3, |structure| {
            structure.nested(1, common);
            structure.list(2, all, |out, (name, id)| {
                Writer::write(out, |field| {
                    field.text(1, name);
                    field.int(2, *id);
                });
            });
        }),
        Type::Map(key, element) => wire.nested(4, |map| {
            map.nested(1, common);
            map.int(2, *key);
            map.int(3, *element);
        }),
        Type::Binary => wire.nested(6, |binary| binary.nested(1, common)),
    });
    framed(&out)
}

fn write_record(fields: &mut Writer<'_>, record: &Record) {
    fields.text(1, record.kind.text());
    fields.text(2, &record.timestamp);
    fields.nested(3, |node| {
        node.text(1, &record.node[0]);
        node.text(2, &record.node[1]);
    });
    fields.text(4, record.point.text());
    fields.nested(5, |fields| write_party(fields, &record.source));
    fields.nested(6, |fields| write_party(fields, &record.destination));
    fields.uint(7, record.is_ipv6.into());
    fields.text(8, record.verdict.text());
    fields.text(9, &record.info);
    fields.list(10, &record.metadata, |out, text| put_text(out, text));
    fields.uint(11, record.protocol.into());
    match &record.contents {
        Contents::Unknown => {}
        Contents::Http(http) => fields.nested(12, |fields| {
            fields.int(1, http.code.into());
            fields.text(2, &http.method);
            fields.text(3, &http.url);
            fields.text(4, &http.protocol);
            for (number, headers) in (5..).zip([&http.headers, &http.missing_headers, &http.rejected_headers])
            {
                write_headers(fields, number, headers);
            }
        }),
        Contents::Dns(dns) => fields.nested(13, |fields| write_dns(fields, dns)),
        Contents::Generic(generic) => fields.nested(14, |fields| {
            fields.text(1, &generic.protocol);
            let all: Vec<_> = generic.fields.iter().collect();
            fields.list(2, &all, |out, (name, value)| {
                put_text(out, name);
                put_text(out, value);
            });
        }),
    }
}

fn write_party(fields: &mut Writer<'_>, party: &Party) {
    fields.uint(1, party.id);
    match party.address {
        Some(IpAddr::V4(address)) => fields.text(2, &address.to_string()),
        Some(IpAddr::V6(address)) => fields.text(3, &address.to_string()),
        None => {}
    }
    fields.uint(4, party.port.into());
    fields.uint(5, party.identity);
    fields.list(6, &party.labels, |out, Label { key, value, source }| {
        Writer::write(out, |label| {
            label.text(1, key);
            label.text(2, value);
            label.text(3, source);
        });
    });
}

fn write_headers(fields: &mut Writer<'_>, number: u64, headers: &Headers) {
    let all: Vec<_> = headers.iter().collect();
    fields.list(number, &all, |out, (name, values)| {
        put_text(out, name);
        put_uint(out, values.len() as u64);
        values.iter().for_each(|value| put_text(out, value));
    });
}

fn write_dns(fields: &mut Writer<'_>, dns: &DnsRecord) {
    fields.text(1, &dns.query);
    fields.list(2, &dns.ips, |out, address| match address {
        IpAddr::V4(address) => put_bytes(out, &address.octets()),
        IpAddr::V6(address) => put_bytes(out, &address.octets()),
    });
    fields.uint(3, dns.ttl.into());
    fields.list(4, &dns.cnames, |out, name| put_text(out, name));
    fields.text(5, &dns.source);
    fields.int(6, dns.rcode.into());
    fields.list(7, &dns.qtypes, |out, number| put_uint(out, (*number).into()));
    fields.list(8, &dns.answer_types, |out, number| put_uint(out, (*number).into()));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_uint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// Writes the fields of a struct in order; those that are zero or empty are left out, as Go's encoder does.
struct Writer<'o> {
    out: &'o mut Vec<u8>,
    last: u64,
}

impl Writer<'_> {
    /// Writes a struct.
    fn write(out: &mut Vec<u8>, fields: impl FnOnce(&mut Writer<'_>)) {
        fields(&mut Writer { out, last: 0 });
        out.push(0);
    }

    /// Begins the field with this number.
    fn field(&mut self, number: u64) -> &mut Vec<u8> {
        put_uint(self.out, number - self.last);
        self.last = number;
        self.out
    }

    fn text(&mut self, number: u64, text: &str) {
        if !text.is_empty() {
            put_text(self.field(number), text);
        }
    }

    fn uint(&mut self, number: u64, value: u64) {
        if value != 0 {
            put_uint(self.field(number), value);
        }
    }

    fn int(&mut self, number: u64, value: i64) {
        if value != 0 {
            put_int(self.field(number), value);
        }
    }

    /// Writes a struct in a field, even an empty one.
    fn nested(&mut self, number: u64, fields: impl FnOnce(&mut Writer<'_>)) {
        Writer::write(self.field(number), fields);
    }

    fn list<T>(&mut self, number: u64, elements: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
        if !elements.is_empty() {
            let out = self.field(number);
            put_uint(out, elements.len() as u64);
            elements.iter().for_each(|element| put(out, element));
        }
    }
}
