//! Records of proxies: the line, and the object.

use std::fmt::Write as _;

use serde::Serialize;

use super::Printer;
use super::json::object;
use super::names::printable;
use crate::record::{
    Contents, DNS_PROXY, DnsRecord, Headers, ObservationPoint, Party, Record, RecordKind, dns_type,
};

/// Formats the line of a record, which is the same in all forms of text.
pub(super) fn line(printer: &Printer, record: &Record) -> String {
    let identity = |party: &Party| printer.identity(u32::try_from(party.identity).unwrap_or_default());
    let labels = |party: &Party| party.labels.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let arrow = match record.point {
        ObservationPoint::Ingress => "<-",
        ObservationPoint::Egress => "->",
    };
    let (source, destination) = (&record.source, &record.destination);
    // Cilium names the sender first in either form.
    let [first, second] = match record.kind {
        RecordKind::Response => ["to", "from"],
        RecordKind::Request | RecordKind::Sample => ["from", "to"],
    };
    let mut line = format!(
        "{arrow} {} {} {first} {} ([{}]) {second} {} ([{}]), identity {}->{}, verdict {}",
        record.kind.text(),
        record.contents.protocol(),
        source.id,
        labels(source),
        destination.id,
        labels(destination),
        identity(source),
        identity(destination),
        record.verdict.text(),
    );
    match &record.contents {
        Contents::Unknown => {}
        Contents::Http(http) => _ = write!(line, " {} {} => {}", http.method, http.url, http.code),
        Contents::Dns(dns) => line.push_str(&dns_text(record.kind, dns)),
        Contents::Generic(generic) => {
            for (name, value) in &generic.fields {
                let _ = write!(line, " {name}:{value}");
            }
            let _ = write!(line, " => status:{}", record.verdict.text());
        }
    }
    printable(&line)
}

fn dns_text(kind: RecordKind, dns: &DnsRecord) -> String {
    let types: Vec<_> = dns.qtypes.iter().copied().map(dns_type).collect();
    let source = if dns.source == DNS_PROXY { "Proxy" } else { "Query" };
    let mut text = format!(" DNS {source}: {} {}", dns.query, types.join(","));
    if kind == RecordKind::Response {
        let _ = write!(text, " TTL: {} Answer: '{}'", dns.ttl, addresses(dns).join(","));
        if !dns.cnames.is_empty() {
            let _ = write!(text, " CNAMEs: {}", dns.cnames.join(","));
        }
    }
    text
}

fn addresses(dns: &DnsRecord) -> Vec<String> {
    dns.ips.iter().map(ToString::to_string).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RecordJson<'a> {
    r#type: &'static str,
    observation_point: &'static str,
    flow_type: &'static str,
    l7_proto: &'a str,
    #[serde(rename = "srcEpID")]
    src_id: u64,
    #[serde(rename = "srcEpLabels")]
    src_labels: Vec<String>,
    src_identity: u64,
    #[serde(rename = "dstEpID")]
    dst_id: u64,
    #[serde(rename = "dstEpLabels")]
    dst_labels: Vec<String>,
    dst_identity: u64,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<HttpJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dns: Option<DnsJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    l7: Option<GenericJson<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct HttpJson<'a> {
    code: u16,
    method: &'a str,
    #[serde(rename = "URL")]
    url: &'a str,
    protocol: &'a str,
    headers: &'a Headers,
    missing_headers: &'a Headers,
    rejected_headers: &'a Headers,
}

#[derive(Serialize)]
struct DnsJson<'a> {
    #[serde(rename = "Query", skip_serializing_if = "str::is_empty")]
    query: &'a str,
    #[serde(rename = "IPs", skip_serializing_if = "Vec::is_empty")]
    ips: Vec<String>,
    #[serde(rename = "TTL", skip_serializing_if = "is_zero")]
    ttl: u32,
    #[serde(rename = "CNAMEs", skip_serializing_if = "<[String]>::is_empty")]
    cnames: &'a [String],
    #[serde(rename = "ObservationSource", skip_serializing_if = "str::is_empty")]
    source: &'a str,
    #[serde(rename = "RCode", skip_serializing_if = "is_zero")]
    rcode: u32,
    #[serde(rename = "QTypes", skip_serializing_if = "<[u16]>::is_empty")]
    qtypes: &'a [u16],
    #[serde(rename = "AnswerTypes", skip_serializing_if = "<[u16]>::is_empty")]
    answer_types: &'a [u16],
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct GenericJson<'a> {
    proto: &'a str,
    fields: &'a std::collections::BTreeMap<String, String>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Formats the object of a record.
pub(super) fn json(record: &Record) -> Option<String> {
    let labels = |party: &Party| party.labels.iter().map(ToString::to_string).collect();
    let (mut http_json, mut dns_json, mut l7_json) = (None, None, None);
    match &record.contents {
        Contents::Unknown => {}
        Contents::Http(http) => {
            http_json = Some(HttpJson {
                code: http.code,
                method: &http.method,
                url: &http.url,
                protocol: &http.protocol,
                headers: &http.headers,
                missing_headers: &http.missing_headers,
                rejected_headers: &http.rejected_headers,
            });
        }
        Contents::Dns(dns) => {
            dns_json = Some(DnsJson {
                query: &dns.query,
                ips: addresses(dns),
                ttl: dns.ttl,
                cnames: &dns.cnames,
                source: &dns.source,
                rcode: dns.rcode.into(),
                qtypes: &dns.qtypes,
                answer_types: &dns.answer_types,
            });
        }
        Contents::Generic(generic) => {
            l7_json = Some(GenericJson { proto: &generic.protocol, fields: &generic.fields });
        }
    }
    object(&RecordJson {
        r#type: "logRecord",
        observation_point: record.point.text(),
        flow_type: record.kind.text(),
        l7_proto: record.contents.protocol(),
        src_id: record.source.id,
        src_labels: labels(&record.source),
        src_identity: record.source.identity,
        dst_id: record.destination.id,
        dst_labels: labels(&record.destination),
        dst_identity: record.destination.identity,
        verdict: record.verdict.text(),
        http: http_json,
        dns: dns_json,
        l7: l7_json,
    })
}
