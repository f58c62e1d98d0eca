//! Records of queries and answers for monitors, in the form of Cilium's access log.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::sync::Arc;

use fqdn::Lookup;
use hickory_proto::op::ResponseCode;
use jiff::Timestamp;
use monitor::Monitor;
use monitor_events::record::{
    Contents, DNS_PROXY, DnsRecord, ObservationPoint, Party, Record, RecordKind, RecordVerdict,
    STANDALONE_DNS_PROXY, access_log,
};

use crate::directory::{Client, Directory, Transport};
use crate::message::Request;
use crate::metrics::Timings;
use crate::observation::{Details, Event, Observation};

/// The maximum number of addresses and types in a record: a workload with a server of its own must not fill the queues
/// of monitors with answers of 64 KiB.
const MAX_ENTRIES: usize = 64;
/// The maximum length of all aliases of a record.
const MAX_ALIAS_BYTES: usize = 2048;

const ALLOWED: &str = "Allowed by policy";
const DENIED: &str = "Denied by policy";

/// Publishes records. Without a subscription to the monitor, nothing is looked up.
#[derive(Clone)]
pub(crate) struct Records {
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) directory: Arc<dyn Directory>,
}

/// A query of an endpoint; all its records have the same ends.
pub(crate) struct Exchange<'a> {
    records: &'a Records,
    client: Client,
    transport: Transport,
    request: &'a Request,
    addresses: [SocketAddr; 2],
    /// The client and the server as the first record has them: the endpoint may be gone when the answer comes.
    parties: OnceCell<[Party; 2]>,
}

impl Records {
    /// Returns the records of a query from the client's address to the server's.
    pub(crate) fn exchange<'a>(
        &'a self,
        client: Client,
        transport: Transport,
        request: &'a Request,
        addresses: [SocketAddr; 2],
    ) -> Exchange<'a> {
        Exchange { records: self, client, transport, request, addresses, parties: OnceCell::new() }
    }

    /// Publishes the record of an event that a standalone proxy has reported.
    pub(crate) fn publish(&self, client: Client, observation: &Observation) {
        self.monitor.publish(|| {
            let parties = self.parties(client, [observation.client, observation.server]);
            access_log(&self.record(parties, observation, STANDALONE_DNS_PROXY))
        });
    }

    fn parties(&self, client: Client, addresses: [SocketAddr; 2]) -> [Party; 2] {
        let [source, server] = addresses;
        let party = |address: SocketAddr, id: u16, identity: u32| Party {
            id: id.into(),
            address: Some(address.ip()),
            port: address.port(),
            identity: identity.into(),
            labels: self.directory.labels(identity),
        };
        let of_server = self.directory.server(server.ip());
        [
            party(source, client.endpoint, client.identity),
            party(server, of_server.endpoint, of_server.identity),
        ]
    }

    fn record(&self, [client, server]: [Party; 2], observation: &Observation, proxy: &str) -> Record {
        let Observation { transport, name, qtypes, event, .. } = observation;
        let request = |verdict, info| (RecordKind::Request, verdict, info, DnsRecord::default());
        let (kind, verdict, info, dns) = match event {
            Event::Allowed => request(RecordVerdict::Forwarded, ALLOWED.to_owned()),
            Event::Denied => request(RecordVerdict::Denied, DENIED.to_owned()),
            Event::Failed { error, .. } => request(RecordVerdict::Error, format!("Error: {error}")),
            Event::Answered(details) => {
                let answer = answer(details);
                (RecordKind::Response, RecordVerdict::Forwarded, ALLOWED.to_owned(), answer)
            }
        };
        let (source, destination) = match kind {
            RecordKind::Response => (server, client),
            RecordKind::Request | RecordKind::Sample => (client, server),
        };
        let node = self.directory.node();
        Record {
            kind,
            timestamp: Timestamp::now().to_string(),
            node: node.map(|address| address.map(|address| address.to_string()).unwrap_or_default()),
            point: ObservationPoint::Egress,
            source,
            destination,
            is_ipv6: observation.client.is_ipv6(),
            verdict,
            info,
            metadata: self.monitor.labels().to_vec(),
            protocol: transport.number(),
            contents: Contents::Dns(DnsRecord {
                query: name.clone(),
                source: proxy.to_owned(),
                qtypes: qtypes.clone(),
                ..dns
            }),
        }
    }
}

impl Exchange<'_> {
    /// Publishes that policy allows or denies the query.
    pub(crate) fn decided(&self, is_allowed: bool, timings: &Timings) {
        self.publish(timings, || if is_allowed { Event::Allowed } else { Event::Denied });
    }

    /// Publishes that the query has no answer.
    pub(crate) fn failed(&self, error: &dyn std::error::Error, is_timeout: bool, timings: &Timings) {
        self.publish(timings, || Event::Failed { error: error.to_string(), is_timeout });
    }

    /// Publishes the answer.
    pub(crate) fn answered(&self, message: &[u8], code: ResponseCode, lookup: &Lookup, timings: &Timings) {
        self.publish(timings, || {
            let (types, aliases) = self.request.listed(message);
            let addresses = lookup.addresses.clone();
            Event::Answered(Details { code: code.low().into(), addresses, ttl: lookup.ttl, aliases, types })
        });
    }

    /// Publishes the event that `make` returns; calls it only for a subscription, or an agent that publishes it.
    fn publish(&self, timings: &Timings, make: impl Fn() -> Event) {
        let [client, server] = self.addresses;
        let observation = || Observation {
            client,
            server,
            transport: self.transport,
            name: self.request.name.clone(),
            qtypes: vec![self.request.question.query_type().into()],
            event: make(),
            timings: *timings,
        };
        let records = self.records;
        records.monitor.publish(|| {
            let parties = self.parties.get_or_init(|| records.parties(self.client, self.addresses)).clone();
            access_log(&records.record(parties, &observation(), DNS_PROXY))
        });
        records.directory.observe(&observation);
    }
}

/// Returns the contents of an answer, within limits.
fn answer(details: &Details) -> DnsRecord {
    let mut bytes = 0;
    let is_listed = |alias: &&String| {
        bytes += alias.len();
        bytes <= MAX_ALIAS_BYTES
    };
    DnsRecord {
        ips: details.addresses.iter().take(MAX_ENTRIES).copied().collect(),
        ttl: details.ttl,
        cnames: details.aliases.iter().filter(is_listed).cloned().collect(),
        rcode: details.code,
        answer_types: details.types.iter().take(MAX_ENTRIES).copied().collect(),
        ..DnsRecord::default()
    }
}
