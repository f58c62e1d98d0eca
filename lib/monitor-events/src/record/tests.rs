//! Records and their bytes.

use super::*;
use crate::{Event, decode};

/// A query of a pod to a server outside of the cluster.
pub(crate) fn query() -> Record {
    Record {
        kind: RecordKind::Request,
        timestamp: "2026-11-21T12:05:29.000000001Z".to_owned(),
        node: ["192.0.2.1".to_owned(), String::new()],
        point: ObservationPoint::Egress,
        source: Party {
            id: 7,
            address: Some([10, 0, 0, 7].into()),
            port: 40_000,
            identity: 1000,
            labels: vec![Label::parse("k8s:app=web"), Label::parse("k8s:io.kubernetes.pod.namespace=shop")],
        },
        destination: Party {
            address: Some([8, 8, 8, 8].into()),
            port: 53,
            identity: 2,
            labels: vec![Label::reserved("world")],
            ..Party::default()
        },
        is_ipv6: false,
        verdict: RecordVerdict::Forwarded,
        info: "Allowed by policy".to_owned(),
        metadata: Vec::new(),
        protocol: 17,
        contents: Contents::Dns(DnsRecord {
            query: "a.test.".to_owned(),
            source: DNS_PROXY.to_owned(),
            qtypes: vec![1],
            ..DnsRecord::default()
        }),
    }
}

/// The answer to it.
pub(crate) fn answer() -> Record {
    let Record { source, destination, .. } = query();
    Record {
        kind: RecordKind::Response,
        source: destination,
        destination: source,
        contents: Contents::Dns(DnsRecord {
            query: "a.test.".to_owned(),
            ips: vec![[198, 51, 100, 7].into(), "2001:db8::7".parse().unwrap()],
            ttl: 30,
            cnames: vec!["b.test.".to_owned()],
            source: DNS_PROXY.to_owned(),
            rcode: 0,
            qtypes: vec![28],
            answer_types: vec![5, 28],
        }),
        ..query()
    }
}

/// A denied HTTP request over IPv6.
pub(crate) fn http() -> Record {
    let headers = |name: &str| Headers::from([(name.to_owned(), vec!["1".to_owned(), "2".to_owned()])]);
    let mut record = Record {
        point: ObservationPoint::Ingress,
        verdict: RecordVerdict::Denied,
        is_ipv6: true,
        protocol: 6,
        metadata: vec!["rack=1".to_owned()],
        contents: Contents::Http(HttpRecord {
            code: 403,
            method: "GET".to_owned(),
            url: "http://shop.test/a?b=c".to_owned(),
            protocol: "HTTP/1.1".to_owned(),
            headers: headers("X-A"),
            missing_headers: headers("X-B"),
            rejected_headers: headers("X-C"),
        }),
        ..query()
    };
    record.source.address = Some("fd00::7".parse().unwrap());
    record
}

#[test]
fn records_are_read_as_they_were_written() {
    let generic = GenericRecord {
        protocol: "redis".to_owned(),
        fields: BTreeMap::from([("command".to_owned(), "GET".to_owned())]),
    };
    let others = [Contents::Generic(generic), Contents::Unknown];
    let others = others.map(|contents| Record { contents, ..query() });
    for record in [query(), answer(), http()].into_iter().chain(others) {
        let event = access_log(&record);
        assert_eq!(decode(&event), Ok(Event::Record(Box::new(record))));
        // Any end of it is an error: no field is read beyond the bytes.
        for end in 1..event.len() {
            assert!(decode(&event[..end]).is_err(), "{end}");
        }
    }
}

#[test]
fn a_record_without_its_words_is_an_error() {
    let event = access_log(&query());
    let at = event.windows(7).position(|bytes| bytes == b"Request").unwrap();
    let mut other = event.clone();
    other[at] = b'r';
    assert_eq!(decode(&other), Err(crate::DecodeError::Record { field: "Type" }));
}

#[test]
fn a_type_that_encodes_itself_is_defined_as_go_does() {
    // -77, self-encoding by bytes, common with name and id.
    let definition = b"\x10\xff\x99\x06\x01\x01\x04Addr\x01\xff\x9a\x00\x00\x00";
    let event = access_log(&query());
    assert!(event.windows(definition.len()).any(|bytes| bytes == definition));
}
