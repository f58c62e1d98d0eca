//! Records of queries and answers for monitors, in the form of Cilium's access log.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use jiff::Timestamp;
use monitor::Monitor;
use monitor_events::record::{
    Contents, DNS_PROXY, DnsRecord, ObservationPoint, Party, Record, RecordKind, RecordVerdict, access_log,
};

use crate::directory::{Client, Directory, Transport};
use crate::message::{Answer, Request};

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
}

impl Exchange<'_> {
    /// Publishes that policy allows or denies the query.
    pub(crate) fn decided(&self, is_allowed: bool) {
        let (verdict, info) = match is_allowed {
            true => (RecordVerdict::Forwarded, ALLOWED),
            false => (RecordVerdict::Denied, DENIED),
        };
        self.publish(RecordKind::Request, verdict, || (info.to_owned(), DnsRecord::default()));
    }

    /// Publishes that the query has no answer.
    pub(crate) fn failed(&self, error: &dyn std::error::Error) {
        let info = || (format!("Error: {error}"), DnsRecord::default());
        self.publish(RecordKind::Request, RecordVerdict::Error, info);
    }

    /// Publishes the answer.
    pub(crate) fn answered(&self, message: &[u8], answer: &Answer) {
        self.publish(RecordKind::Response, RecordVerdict::Forwarded, || {
            let (mut types, mut aliases) = self.request.listed(message);
            types.truncate(MAX_ENTRIES);
            let mut bytes = 0;
            aliases.retain(|alias| {
                bytes += alias.len();
                bytes <= MAX_ALIAS_BYTES
            });
            let dns = DnsRecord {
                ips: answer.addresses.iter().take(MAX_ENTRIES).copied().collect(),
                ttl: answer.ttl,
                cnames: aliases,
                rcode: code(answer.code),
                answer_types: types,
                ..DnsRecord::default()
            };
            (ALLOWED.to_owned(), dns)
        });
    }

    /// Publishes a record with the reason and contents that `make` returns; calls it only for a subscription.
    fn publish(&self, kind: RecordKind, verdict: RecordVerdict, make: impl FnOnce() -> (String, DnsRecord)) {
        self.records.monitor.publish(|| {
            let (info, dns) = make();
            let [client, server] = self.parties.get_or_init(|| self.parties()).clone();
            let (source, destination) = match kind {
                RecordKind::Response => (server, client),
                RecordKind::Request | RecordKind::Sample => (client, server),
            };
            let node = self.records.directory.node();
            access_log(&Record {
                kind,
                timestamp: Timestamp::now().to_string(),
                node: node.map(|address| address.map(|address| address.to_string()).unwrap_or_default()),
                point: ObservationPoint::Egress,
                source,
                destination,
                is_ipv6: self.addresses[0].is_ipv6(),
                verdict,
                info,
                metadata: self.records.monitor.labels().to_vec(),
                protocol: self.transport.number(),
                contents: Contents::Dns(DnsRecord {
                    query: self.request.name.clone(),
                    source: DNS_PROXY.to_owned(),
                    qtypes: vec![self.request.question.query_type().into()],
                    ..dns
                }),
            })
        });
    }

    fn parties(&self) -> [Party; 2] {
        let directory = &self.records.directory;
        let [client, server] = self.addresses;
        let party = |address: SocketAddr, id: u16, identity: u32| Party {
            id: id.into(),
            address: Some(address.ip()),
            port: address.port(),
            identity: identity.into(),
            labels: directory.labels(identity),
        };
        let of_server = directory.server(server.ip());
        [
            party(client, self.client.endpoint, self.client.identity),
            party(server, of_server.endpoint, of_server.identity),
        ]
    }
}

/// Returns the number of a code in the header of an answer.
fn code(code: ResponseCode) -> u16 {
    code.low().into()
}
