//! Events of queries as messages: of the proxy for the agent, and back.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dns_proxy::{Details, Event, Observation, Timings, Transport};
use fqdn::canonical;

use crate::proto::{DnsResponseData, FqdnMapping, MetricsData, ProcessingStats};

/// The maximum length of the text of an error.
const MAX_ERROR: usize = 512;
/// The maximum number of types in a question.
const MAX_QTYPES: usize = 8;

/// Returns the message of an event at an endpoint with an identity.
pub(crate) fn message(observation: &Observation, identity: u32) -> FqdnMapping {
    let Observation { client, server, transport, name, qtypes, event, timings } = observation;
    let none = Details::default();
    let (details, error, is_timeout) = match event {
        Event::Answered(details) => (details, String::new(), false),
        Event::Failed { error, is_timeout } => (&none, error.clone(), *is_timeout),
        Event::Allowed | Event::Denied => (&none, String::new(), false),
    };
    let types = |types: &[u16]| types.iter().copied().map(u32::from).collect();
    let nanoseconds = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    FqdnMapping {
        fqdn: name.clone(),
        record_ip: details.addresses.iter().map(|address| address.to_string().into_bytes()).collect(),
        ttl: details.ttl,
        source_identity: identity,
        source_ip: client.ip().to_string().into_bytes(),
        response_code: details.code.into(),
        metrics_data: Some(MetricsData {
            processing_stats: Some(ProcessingStats {
                total_time_ns: nanoseconds(timings.total),
                processing_time_ns: nanoseconds(timings.total.saturating_sub(timings.upstream)),
                upstream_time_ns: nanoseconds(timings.upstream),
                semaphore_acquire_time_ns: nanoseconds(timings.semaphore),
                policy_check_time_ns: nanoseconds(timings.policy),
                dataplane_time_ns: nanoseconds(timings.datapath),
                ..ProcessingStats::default()
            }),
            dns_response_data: Some(DnsResponseData {
                is_response: matches!(event, Event::Answered(_)),
                cnames: details.aliases.clone(),
                qtypes: types(qtypes),
                answer_types: types(&details.types),
            }),
            source_port: client.port().into(),
            server_addr: server.to_string(),
            protocol: match transport {
                Transport::Udp => "udp".to_owned(),
                Transport::Tcp => "tcp".to_owned(),
            },
            allowed: *event != Event::Denied,
            error_message: error,
            is_timeout,
            ..MetricsData::default()
        }),
    }
}

/// Returns the event of a message from an address; `None` if it has none that is valid.
pub(crate) fn observation(
    mapping: &FqdnMapping,
    source: IpAddr,
    addresses: &[IpAddr],
) -> Option<Observation> {
    let data = mapping.metrics_data.as_ref()?;
    let details = data.dns_response_data.clone().unwrap_or_default();
    let stats = data.processing_stats.unwrap_or_default();
    let transport = match data.protocol.to_ascii_lowercase().as_str() {
        "udp" => Transport::Udp,
        "tcp" => Transport::Tcp,
        _ => return None,
    };
    let types = |types: &[u32]| types.iter().filter_map(|number| u16::try_from(*number).ok()).collect();
    let duration = |nanoseconds: i64| Duration::from_nanos(nanoseconds.try_into().unwrap_or_default());
    let event = match (data.error_message.as_str(), data.allowed, details.is_response) {
        ("", false, _) => Event::Denied,
        ("", true, false) => Event::Allowed,
        ("", true, true) => Event::Answered(Details {
            code: u16::try_from(mapping.response_code).ok()?,
            addresses: addresses.to_vec(),
            ttl: mapping.ttl,
            aliases: details.cnames,
            types: types(&details.answer_types),
        }),
        (error, ..) => {
            Event::Failed { error: error.chars().take(MAX_ERROR).collect(), is_timeout: data.is_timeout }
        }
    };
    let mut qtypes: Vec<u16> = types(&details.qtypes);
    qtypes.truncate(MAX_QTYPES);
    Some(Observation {
        client: SocketAddr::new(source, u16::try_from(data.source_port).ok()?),
        server: data.server_addr.parse().ok()?,
        transport,
        name: canonical(&mapping.fqdn),
        qtypes,
        event,
        timings: Timings {
            semaphore: duration(stats.semaphore_acquire_time_ns),
            policy: duration(stats.policy_check_time_ns),
            upstream: duration(stats.upstream_time_ns),
            datapath: duration(stats.dataplane_time_ns),
            total: duration(stats.total_time_ns),
        },
    })
}
