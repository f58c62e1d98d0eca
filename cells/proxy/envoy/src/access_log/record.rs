//! Records of requests, from Envoy's messages.

use std::net::{IpAddr, SocketAddr};

use envoy_api::Message as _;
use envoy_api::cilium::log_entry::L7;
use envoy_api::cilium::{EntryType, HttpLogEntry, HttpProtocol, KeyValue, LogEntry};
use jiff::Timestamp;
use monitor_events::record::{
    Contents, GenericRecord, Headers, HttpRecord, ObservationPoint, Party, Record, RecordKind, RecordVerdict,
};

/// The number of TCP.
const TCP: u8 = 6;

/// A message of Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Logged {
    /// The address of the endpoint whose policy was enforced.
    pub(crate) endpoint: Option<IpAddr>,
    /// The request or response, without what tables know: ids, labels and the node.
    pub(crate) record: Record,
}

/// Returns the record of a message.
///
/// # Errors
/// If it is not a `cilium.LogEntry`.
pub(crate) fn parse(message: &[u8]) -> Result<Logged, envoy_api::DecodeError> {
    let entry = LogEntry::decode(message)?;
    let (kind, verdict) = match entry.entry_type() {
        EntryType::Request => (RecordKind::Request, RecordVerdict::Forwarded),
        EntryType::Response => (RecordKind::Response, RecordVerdict::Forwarded),
        EntryType::Denied => (RecordKind::Request, RecordVerdict::Denied),
    };
    let client = party(&entry.source_address, entry.source_security_id);
    let server = party(&entry.destination_address, entry.destination_security_id);
    let is_ipv6 = client.address.or(server.address).is_some_and(|address| address.is_ipv6());
    // Envoy names the ends of the connection, whichever of them sends this message.
    let (source, destination) = match kind {
        RecordKind::Response => (server, client),
        RecordKind::Request | RecordKind::Sample => (client, server),
    };
    let record = Record {
        kind,
        timestamp: Timestamp::from_nanosecond(entry.timestamp.into()).unwrap_or_default().to_string(),
        node: Default::default(),
        point: if entry.is_ingress { ObservationPoint::Ingress } else { ObservationPoint::Egress },
        source,
        destination,
        is_ipv6,
        verdict,
        info: entry.cilium_rule_ref,
        metadata: Vec::new(),
        protocol: TCP,
        contents: match entry.l7 {
            None => Contents::Unknown,
            Some(L7::Http(entry)) => Contents::Http(http(entry)),
            Some(L7::GenericL7(entry)) => {
                Contents::Generic(GenericRecord { protocol: entry.proto, fields: entry.fields })
            }
        },
    };
    Ok(Logged { endpoint: entry.policy_name.parse().ok(), record })
}

fn party(address: &str, identity: u32) -> Party {
    let address: Option<SocketAddr> = address.parse().ok();
    Party {
        address: address.map(|address| address.ip()),
        port: address.map_or(0, |address| address.port()),
        identity: identity.into(),
        ..Party::default()
    }
}

fn http(entry: HttpLogEntry) -> HttpRecord {
    let protocol = match entry.http_protocol() {
        HttpProtocol::Http10 => "HTTP/1.0",
        HttpProtocol::Http11 => "HTTP/1.1",
        HttpProtocol::Http2 => "HTTP/2",
    };
    HttpRecord {
        code: entry.status.try_into().unwrap_or_default(),
        url: match entry.scheme.is_empty() && entry.host.is_empty() {
            true => entry.path,
            false => format!("{}://{}{}", entry.scheme, entry.host, entry.path),
        },
        method: entry.method,
        protocol: protocol.to_owned(),
        headers: headers(entry.headers),
        missing_headers: headers(entry.missing_headers),
        rejected_headers: headers(entry.rejected_headers),
    }
}

fn headers(list: Vec<KeyValue>) -> Headers {
    let mut headers = Headers::new();
    for KeyValue { key, value } in list {
        headers.entry(key).or_default().push(value);
    }
    headers
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use envoy_api::cilium::L7LogEntry;

    use super::*;

    fn entry(kind: EntryType) -> LogEntry {
        let header = |value: &str| KeyValue { key: "x-key".to_owned(), value: value.to_owned() };
        LogEntry {
            timestamp: 1_000_000_007,
            entry_type: kind.into(),
            policy_name: "10.0.0.7".to_owned(),
            cilium_rule_ref: "rule".to_owned(),
            source_security_id: 1000,
            source_address: "10.0.0.7:40000".to_owned(),
            destination_security_id: 2000,
            destination_address: "10.0.0.9:80".to_owned(),
            is_ingress: true,
            proxy_id: 10_000,
            l7: Some(L7::Http(HttpLogEntry {
                http_protocol: HttpProtocol::Http11.into(),
                method: "GET".to_owned(),
                scheme: "http".to_owned(),
                host: "shop".to_owned(),
                path: "/a?b=c".to_owned(),
                status: 200,
                missing_headers: vec![header("1"), header("2")],
                ..HttpLogEntry::default()
            })),
        }
    }

    #[test]
    fn responses_are_from_the_server_to_the_client() {
        let parsed = |kind| parse(&entry(kind).encode_to_vec()).unwrap();
        let Logged { endpoint, record: request } = parsed(EntryType::Request);
        assert_eq!(endpoint, Some("10.0.0.7".parse().unwrap()));
        assert_eq!((request.source.identity, request.destination.identity), (1000, 2000));
        assert_eq!((request.source.port, request.destination.port, request.protocol), (40_000, 80, 6));
        assert_eq!(request.timestamp, "1970-01-01T00:00:01.000000007Z");
        assert_eq!((request.verdict, request.info.as_str()), (RecordVerdict::Forwarded, "rule"));
        let Contents::Http(http) = &request.contents else { panic!("{request:?}") };
        assert_eq!(
            (http.protocol.as_str(), http.code, http.url.as_str()),
            ("HTTP/1.1", 200, "http://shop/a?b=c")
        );
        assert_eq!(http.missing_headers["x-key"], ["1", "2"]);
        let response = parsed(EntryType::Response).record;
        assert_eq!((&response.source, &response.destination), (&request.destination, &request.source));
        let denied = parsed(EntryType::Denied).record;
        assert_eq!((denied.kind, denied.verdict), (RecordKind::Request, RecordVerdict::Denied));
        assert_eq!(denied.source, request.source);
    }

    #[test]
    fn messages_of_any_content_are_parsed_or_refused() {
        assert!(parse(&[0xff; 9]).is_err());
        let empty = parse(&[]).unwrap();
        assert_eq!((empty.endpoint, empty.record.source.address), (None, None));
        assert_eq!(empty.record.contents, Contents::Unknown);
        let fields = BTreeMap::from([("key".to_owned(), "value".to_owned())]);
        let generic = L7LogEntry { proto: "redis".to_owned(), fields: fields.clone() };
        let message =
            LogEntry { timestamp: u64::MAX, l7: Some(L7::GenericL7(generic)), ..LogEntry::default() };
        let parsed = parse(&message.encode_to_vec()).unwrap().record;
        assert_eq!(
            parsed.contents,
            Contents::Generic(GenericRecord { protocol: "redis".to_owned(), fields })
        );
        let message = LogEntry { destination_address: "[fd00::9]:80".to_owned(), ..LogEntry::default() };
        assert!(parse(&message.encode_to_vec()).unwrap().record.is_ipv6);
    }
}
