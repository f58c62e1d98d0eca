//! Records of requests, from Envoy's messages.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use envoy_api::Message as _;
use envoy_api::cilium::log_entry::L7;
use envoy_api::cilium::{EntryType, HttpLogEntry, HttpProtocol, KeyValue, LogEntry};

/// A receiver of the requests that Envoy logs.
pub trait AccessLog: Send + Sync {
    /// Takes a record. Must not block.
    fn record(&self, record: AccessRecord);
}

/// The meaning of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A request that was forwarded.
    Request,
    /// The response to one.
    Response,
    /// A request that policy denies.
    Denied,
}

/// A request, or a response to one, at the proxy of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRecord {
    /// The time of the message.
    pub time: SystemTime,
    /// Its kind.
    pub kind: RecordKind,
    /// Whether the traffic is to the endpoint whose policy was enforced, or from it.
    pub is_ingress: bool,
    /// The address of that endpoint.
    pub endpoint: Option<IpAddr>,
    /// The port of the listener.
    pub proxy_port: u16,
    /// The name of the rule that has decided; may be empty.
    pub rule: String,
    /// The sender of this message: of a response, the server.
    pub source: LogPeer,
    /// The receiver of this message.
    pub destination: LogPeer,
    /// The content.
    pub l7: Option<L7Record>,
}

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPeer {
    /// Its identity.
    pub identity: u32,
    /// Its address.
    pub address: Option<SocketAddr>,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum L7Record {
    /// Of HTTP.
    Http(HttpRecord),
    /// Of another protocol.
    Generic {
        /// The protocol.
        protocol: String,
        /// Its fields.
        fields: BTreeMap<String, String>,
    },
}

/// A request of HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRecord {
    /// The protocol: `HTTP/1.1`.
    pub protocol: &'static str,
    /// The method.
    pub method: String,
    /// The scheme.
    pub scheme: String,
    /// The host.
    pub host: String,
    /// The path.
    pub path: String,
    /// The status of the response; 0 for requests.
    pub status: u32,
    /// The headers.
    pub headers: Vec<Header>,
    /// The headers that rules require and the request lacked.
    pub missing_headers: Vec<Header>,
    /// The headers of the request that rules have rejected.
    pub rejected_headers: Vec<Header>,
}

/// A header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

impl From<KeyValue> for Header {
    fn from(KeyValue { key: name, value }: KeyValue) -> Header {
        Header { name, value }
    }
}

impl From<HttpLogEntry> for HttpRecord {
    fn from(entry: HttpLogEntry) -> HttpRecord {
        let headers = |list: Vec<KeyValue>| list.into_iter().map(Header::from).collect();
        HttpRecord {
            protocol: match entry.http_protocol() {
                HttpProtocol::Http10 => "HTTP/1.0",
                HttpProtocol::Http11 => "HTTP/1.1",
                HttpProtocol::Http2 => "HTTP/2",
            },
            method: entry.method,
            scheme: entry.scheme,
            host: entry.host,
            path: entry.path,
            status: entry.status,
            headers: headers(entry.headers),
            missing_headers: headers(entry.missing_headers),
            rejected_headers: headers(entry.rejected_headers),
        }
    }
}

/// Returns the record of a message.
///
/// # Errors
/// If it is not a `cilium.LogEntry`.
pub(crate) fn parse(message: &[u8]) -> Result<AccessRecord, envoy_api::DecodeError> {
    let entry = LogEntry::decode(message)?;
    let kind = match entry.entry_type() {
        EntryType::Request => RecordKind::Request,
        EntryType::Response => RecordKind::Response,
        EntryType::Denied => RecordKind::Denied,
    };
    let client = LogPeer { identity: entry.source_security_id, address: entry.source_address.parse().ok() };
    let server =
        LogPeer { identity: entry.destination_security_id, address: entry.destination_address.parse().ok() };
    // Envoy names the ends of the connection, whichever of them sends this message.
    let (source, destination) = match kind {
        RecordKind::Response => (server, client),
        RecordKind::Request | RecordKind::Denied => (client, server),
    };
    Ok(AccessRecord {
        time: SystemTime::UNIX_EPOCH + Duration::from_nanos(entry.timestamp),
        kind,
        is_ingress: entry.is_ingress,
        endpoint: entry.policy_name.parse().ok(),
        proxy_port: entry.proxy_id.try_into().unwrap_or_default(),
        rule: entry.cilium_rule_ref,
        source,
        destination,
        l7: entry.l7.map(|l7| match l7 {
            L7::Http(entry) => L7Record::Http(entry.into()),
            L7::GenericL7(entry) => L7Record::Generic { protocol: entry.proto, fields: entry.fields },
        }),
    })
}

#[cfg(test)]
mod tests {
    use envoy_api::cilium::L7LogEntry;

    use super::*;

    fn entry(kind: EntryType) -> LogEntry {
        let header = KeyValue { key: "x-key".to_owned(), value: "1".to_owned() };
        LogEntry {
            timestamp: 1_000_000_007,
            entry_type: kind.into(),
            policy_name: "10.0.0.7".to_owned(),
            cilium_rule_ref: "rule".to_owned(),
            source_security_id: 1000,
            source_address: "10.0.0.7:40000".to_owned(),
            destination_security_id: 2000,
            destination_address: "[fd00::9]:80".to_owned(),
            is_ingress: true,
            proxy_id: 10_000,
            l7: Some(L7::Http(HttpLogEntry {
                http_protocol: HttpProtocol::Http11.into(),
                method: "GET".to_owned(),
                path: "/a".to_owned(),
                status: 200,
                missing_headers: vec![header],
                ..HttpLogEntry::default()
            })),
        }
    }

    #[test]
    fn responses_are_from_the_server_to_the_client() {
        let parsed = |kind| parse(&entry(kind).encode_to_vec()).unwrap();
        let request = parsed(EntryType::Request);
        assert_eq!(
            (request.kind, request.source.identity, request.destination.identity),
            (RecordKind::Request, 1000, 2000)
        );
        assert_eq!((request.proxy_port, request.endpoint), (10_000, Some("10.0.0.7".parse().unwrap())));
        assert_eq!(request.time, SystemTime::UNIX_EPOCH + Duration::from_nanos(1_000_000_007));
        let Some(L7Record::Http(http)) = &request.l7 else { panic!("{request:?}") };
        assert_eq!(
            (http.protocol, http.status, http.missing_headers[0].name.as_str()),
            ("HTTP/1.1", 200, "x-key")
        );
        let response = parsed(EntryType::Response);
        assert_eq!((response.source, response.destination), (request.destination, request.source));
        assert_eq!(response.source.address, Some("[fd00::9]:80".parse().unwrap()));
        let denied = parsed(EntryType::Denied);
        assert_eq!((denied.kind, denied.source), (RecordKind::Denied, request.source));
    }

    #[test]
    fn messages_of_any_content_are_parsed_or_refused() {
        assert!(parse(&[0xff; 9]).is_err());
        let empty = parse(&[]).unwrap();
        assert_eq!((empty.endpoint, empty.source.address, empty.l7), (None, None, None));
        let fields = BTreeMap::from([("key".to_owned(), "value".to_owned())]);
        let generic = L7LogEntry { proto: "redis".to_owned(), fields: fields.clone() };
        let message = LogEntry { proxy_id: 70_000, l7: Some(L7::GenericL7(generic)), ..LogEntry::default() };
        let parsed = parse(&message.encode_to_vec()).unwrap();
        assert_eq!(parsed.l7, Some(L7Record::Generic { protocol: "redis".to_owned(), fields }));
        assert_eq!(parsed.proxy_port, 0, "not a port");
    }
}
