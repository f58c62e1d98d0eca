//! Records of proxies: a request or response that a proxy has decided on, in the form of Cilium's access log.
//!
//! `encode` writes the event of a record, `decode` reads the struct of its stream.

mod decode;
mod encode;

use std::collections::BTreeMap;
use std::net::IpAddr;

pub use encode::access_log;
use labels::Label;

pub(crate) use decode::record;

/// A request or response of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whether it is a request or a response.
    pub kind: RecordKind,
    /// The time, RFC 3339 in UTC with nanoseconds.
    pub timestamp: String,
    /// The addresses of the node, IPv4 and IPv6; empty if it has none.
    pub node: [String; 2],
    /// The side of the workload's connection.
    pub point: ObservationPoint,
    /// The sender: of a response, the server.
    pub source: Party,
    /// The receiver.
    pub destination: Party,
    /// Whether the addresses are of IPv6.
    pub is_ipv6: bool,
    /// The decision.
    pub verdict: RecordVerdict,
    /// The reason of the decision.
    pub info: String,
    /// The agent's labels (`agent-labels`).
    pub metadata: Vec<String>,
    /// The number of the transport protocol.
    pub protocol: u8,
    /// The request or response itself.
    pub contents: Contents,
}

/// A kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the record")]
pub enum RecordKind {
    Request,
    Response,
    Sample,
}

/// The side of a workload's connections that a proxy has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the record")]
pub enum ObservationPoint {
    Ingress,
    Egress,
}

/// A decision of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the record")]
pub enum RecordVerdict {
    Forwarded,
    Denied,
    Error,
    Redirected,
}

/// Defines the words of an enum in records.
macro_rules! words {
    ($name:ident: $($word:ident),*) => {
        impl $name {
            /// Returns the word.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$word => stringify!($word),)*
                }
            }

            fn parse(text: &str) -> Option<Self> {
                match text {
                    $(stringify!($word) => Some(Self::$word),)*
                    _ => None,
                }
            }
        }
    };
}

words!(RecordKind: Request, Response, Sample);
words!(ObservationPoint: Ingress, Egress);
words!(RecordVerdict: Forwarded, Denied, Error, Redirected);

/// The sender or receiver of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Party {
    /// The id of the endpoint; 0 for none of this node.
    pub id: u64,
    /// The address.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// The identity.
    pub identity: u64,
    /// The labels of the identity.
    pub labels: Vec<Label>,
}

/// The contents of a record, by protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Of no protocol that is known.
    Unknown,
    /// HTTP.
    Http(HttpRecord),
    /// DNS.
    Dns(DnsRecord),
    /// Another protocol, as names and values.
    Generic(GenericRecord),
}

/// Headers with their values.
pub type Headers = BTreeMap<String, Vec<String>>;

/// An HTTP request or response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpRecord {
    /// The status of a response; 0 for requests.
    pub code: u16,
    /// The method.
    pub method: String,
    /// The URL; empty if unknown.
    pub url: String,
    /// The version of the protocol, such as `HTTP/1.1`.
    pub protocol: String,
    /// The headers.
    pub headers: Headers,
    /// Headers that policy asks for and the request did not have.
    pub missing_headers: Headers,
    /// Headers that policy does not allow.
    pub rejected_headers: Headers,
}

/// A DNS query or answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsRecord {
    /// The name, with its final dot.
    pub query: String,
    /// The addresses of the answer.
    pub ips: Vec<IpAddr>,
    /// The lowest time to live of the answer's addresses and aliases; the largest number if it has none.
    pub ttl: u32,
    /// The aliases of the answer.
    pub cnames: Vec<String>,
    /// The proxy that has seen it: [`DNS_PROXY`] or [`STANDALONE_DNS_PROXY`].
    pub source: String,
    /// The code of the answer (RFC 6895).
    pub rcode: u16,
    /// The types of the question.
    pub qtypes: Vec<u16>,
    /// The types of the answer's records.
    pub answer_types: Vec<u16>,
}

/// A request or response of another protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenericRecord {
    /// The protocol.
    pub protocol: String,
    /// Names and values.
    pub fields: BTreeMap<String, String>,
}

/// The [`DnsRecord::source`] of the agent's own DNS proxy.
pub const DNS_PROXY: &str = "proxy";
/// The [`DnsRecord::source`] of a standalone DNS proxy.
pub const STANDALONE_DNS_PROXY: &str = "standalone-proxy";

impl Contents {
    /// Returns the name of the protocol as monitors print it.
    #[must_use]
    pub fn protocol(&self) -> &str {
        match self {
            Contents::Unknown => "unknown-l7",
            Contents::Http(_) => "http",
            Contents::Dns(_) => "dns",
            Contents::Generic(generic) => &generic.protocol,
        }
    }
}

/// Names of the types of DNS records by number (IANA).
const DNS_TYPES: [(u16, &str); 25] = [
    (1, "A"),
    (2, "NS"),
    (3, "MD"),
    (4, "MF"),
    (5, "CNAME"),
    (6, "SOA"),
    (7, "MB"),
    (8, "MG"),
    (9, "MR"),
    (10, "NULL"),
    (11, "WKS"),
    (12, "PTR"),
    (13, "HINFO"),
    (14, "MINFO"),
    (15, "MX"),
    (16, "TXT"),
    (28, "AAAA"),
    (33, "SRV"),
    (35, "NAPTR"),
    (41, "OPT"),
    (46, "RRSIG"),
    (48, "DNSKEY"),
    (64, "SVCB"),
    (65, "HTTPS"),
    (256, "URI"),
];

/// Returns the name of a type of DNS records; `Unknown` for others than those that Cilium names.
#[must_use]
pub fn dns_type(number: u16) -> &'static str {
    DNS_TYPES.iter().find(|(known, _)| *known == number).map_or("Unknown", |(_, name)| name)
}

#[cfg(test)]
pub(crate) mod tests;
