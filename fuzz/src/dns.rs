//! DNS messages of pods and of servers, over UDP and TCP.
//!
//! A parser of its own, which knows only names and the fixed fields of records, reads the same messages: the proxy must
//! forward, learn and answer no more than it permits.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use dns_proxy::testing::{Traffic, answer, answer_stream, observer};
use dns_proxy::{Client, Directory, DnsProxyConfig, Observer, Question};
use fqdn::{Lookup, Pattern};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use metrics::Metrics;
use monitor::{Monitor, Subscription};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use crate::input::parts;

const HEADER: usize = 12;
const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;
const OPT: u16 = 41;
/// The class of the Internet.
const IN: u16 = 1;
/// The header of a record after its owner.
const FIXED: usize = 10;
/// More pointers than a name of 255 bytes can have.
const MAX_POINTERS: usize = 128;
/// The maximum number of bytes of an answer of the proxy itself: header, question, pseudo record of EDNS.
const MAX_OWN_ANSWER: usize = HEADER + 255 + 4 + 11;

/// The decisions of policy, by name, and the lookups that were taken.
#[derive(Default)]
struct Node {
    decisions: Mutex<Vec<(String, bool)>>,
    learned: Mutex<Vec<(u16, Lookup)>>,
}

impl Directory for Node {
    fn client(&self, _source: IpAddr) -> Option<Client> {
        Some(Client { endpoint: 7, identity: 1000, is_host: false })
    }

    fn allows(&self, question: Question<'_>) -> bool {
        let is_allowed = Pattern::parse("*.allowed").matches(question.name);
        self.decisions.lock().push((question.name.to_owned(), is_allowed));
        is_allowed
    }

    fn may_see_client(&self, _server: IpAddr) -> bool {
        false
    }

    fn learn(&self, endpoint: u16, lookup: Lookup) -> BoxFuture<'static, ()> {
        self.learned.lock().push((endpoint, lookup));
        async {}.boxed()
    }
}

/// A proxy's surroundings, built once for a thread. The monitor has a subscription: answers are made into records.
struct Stage {
    runtime: Runtime,
    node: Arc<Node>,
    observer: Observer,
    _subscription: Subscription,
}

impl Stage {
    fn new() -> Stage {
        let (node, monitor) = (Arc::new(Node::default()), Arc::new(Monitor::new(1)));
        let subscription = monitor.subscribe();
        let observer = observer(node.clone(), &Metrics::default(), monitor);
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        Stage { runtime, node, observer, _subscription: subscription }
    }

    /// Returns the decisions and lookups since the last call.
    fn take(&self) -> (Vec<(String, bool)>, Vec<Lookup>) {
        let learned = std::mem::take(&mut *self.node.learned.lock());
        assert!(learned.iter().all(|(endpoint, _)| *endpoint == 7), "{learned:?} of another endpoint");
        let lookups = learned.into_iter().map(|(_, lookup)| lookup).collect();
        (std::mem::take(&mut *self.node.decisions.lock()), lookups)
    }
}

thread_local! {
    static STAGE: Stage = Stage::new();
}

/// A query, two messages of its server, and streams that follow these over TCP: of queries, of messages.
pub(crate) fn run(data: &[u8]) {
    let [query, first, second, queries, messages] = parts(data);
    STAGE.with(|stage| {
        // A run that has panicked has left something.
        stage.take();
        let (observer, config) = (|| stage.observer.clone(), DnsProxyConfig::default);
        for messages in [vec![first, second], vec![&adopt_id(first, query), &adopt_id(second, query)]] {
            let traffic = stage.runtime.block_on(answer(observer(), config(), query, &messages));
            assert!(traffic.replies.len() <= 1, "one answer to a query");
            for reply in &traffic.replies {
                assert!(reply.len() <= udp_limit(query), "{} bytes over UDP", reply.len());
            }
            check(stage, &traffic, &[query], &messages);
        }
        let queries = [&framed(query), queries].concat();
        let messages = [&framed(first), &framed(second), messages].concat();
        let traffic = stage.runtime.block_on(answer_stream(observer(), config(), &queries, &messages));
        check(stage, &traffic, &frames(&queries), &frames(&messages));
    });
}

/// Checks what has become of queries, with the messages that servers have sent.
fn check(stage: &Stage, traffic: &Traffic, queries: &[&[u8]], messages: &[&[u8]]) {
    let (decisions, lookups) = stage.take();
    let allowed = decisions.iter().filter(|(_, is_allowed)| *is_allowed).count();
    assert!(traffic.forwarded.len() <= allowed, "{} forwarded of {allowed}", traffic.forwarded.len());
    assert!(traffic.replies.len() <= queries.len());
    // Ids may be others: two queries of a connection may have the same one.
    let origin = |message: &[u8]| queries.iter().find(|query| query.get(2..) == message.get(2..));
    for forwarded in &traffic.forwarded {
        let query = origin(forwarded).unwrap_or_else(|| panic!("{forwarded:?} is no query of the pod"));
        let question = Asked::read(query).unwrap_or_else(|| panic!("{query:?} has no question"));
        assert!(question.is_allowed(), "{question:?} is forwarded");
    }
    for reply in &traffic.replies {
        assert!(reply.len() >= HEADER && reply[2] & 0x80 != 0, "{reply:?} is an answer");
        assert!(
            queries.iter().any(|query| query.get(..2) == reply.get(..2)),
            "{reply:?} has an id of its own"
        );
        let is_passed = messages.iter().any(|message| message.get(2..) == reply.get(2..));
        let is_own = reply.len() <= MAX_OWN_ANSWER && reply[6..10] == [0, 0, 0, 0];
        let is_compressed = messages.iter().any(|message| message.len() > reply.len());
        assert!(is_passed || is_own || reply[6..8] == [0; 2] || is_compressed, "{reply:?} is of no server");
        if allowed == 0 {
            assert!(reply[6..8] == [0; 2] && reply.len() <= MAX_OWN_ANSWER, "{reply:?} has records");
        }
    }
    assert!(lookups.len() <= traffic.forwarded.len(), "{} lookups", lookups.len());
    for lookup in &lookups {
        let is_founded = traffic.forwarded.iter().any(|query| {
            let question = Asked::read(query).unwrap();
            question.text() == *lookup.name
                && messages.iter().any(|message| question.permits(message, lookup))
        });
        assert!(is_founded, "{lookup:?} is in no answer");
    }
}

/// Returns a message with the id of a query.
fn adopt_id(message: &[u8], query: &[u8]) -> Vec<u8> {
    let mut adopted = message.to_vec();
    adopted.iter_mut().zip(query).take(2).for_each(|(byte, id)| *byte = *id);
    adopted
}

/// Returns a message with its length.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap();
    [&length.to_be_bytes(), message].concat()
}

/// Returns the whole messages of a stream.
fn frames(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let Some((length, rest)) = stream.split_at_checked(2) {
        let Some((frame, rest)) = rest.split_at_checked(number(length, 0).unwrap().into()) else { break };
        frames.push(frame);
        stream = rest;
    }
    frames
}

fn number(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?))
}

/// The labels of a name, in lower case.
type Name = Vec<Vec<u8>>;

/// Returns the name at an offset, and where it ends.
fn name(message: &[u8], mut at: usize) -> Option<(Name, usize)> {
    let (mut labels, mut end) = (Vec::new(), None);
    for _ in 0..MAX_POINTERS + 255 {
        match *message.get(at)? {
            0 => return Some((labels, end.unwrap_or(at + 1))),
            length @ 1..=63 => {
                let label = message.get(at + 1..at + 1 + usize::from(length))?;
                labels.push(label.to_ascii_lowercase());
                at += 1 + label.len();
            }
            0xC0.. => {
                end.get_or_insert(at + 2);
                at = usize::from(number(message, at)? & 0x3FFF);
            }
            _ => return None,
        }
    }
    None
}

/// A record, its data not decoded.
struct Record<'a> {
    owner: Name,
    kind: u16,
    class: u16,
    ttl: u32,
    data: &'a [u8],
    offset: usize,
}

/// Returns the records up to the first one that is damaged.
fn records(message: &[u8]) -> Vec<Record<'_>> {
    let count = |at| usize::from(number(message, at).unwrap_or_default());
    let (mut records, questions) = (Vec::new(), count(4));
    let mut at = HEADER;
    for _ in 0..questions {
        let Some((_, end)) = name(message, at) else { return records };
        at = end + 4;
    }
    let mut next = || {
        let (owner, begin) = name(message, at)?;
        let fixed = message.get(begin..begin + FIXED)?;
        let field = |at| number(fixed, at);
        let offset = begin + FIXED;
        let data = message.get(offset..offset + usize::from(field(8)?))?;
        at = offset + data.len();
        let ttl = u32::from(field(4)?) << 16 | u32::from(field(6)?);
        Some(Record { owner, kind: field(0)?, class: field(2)?, ttl, data, offset })
    };
    records.extend(std::iter::from_fn(&mut next).take(count(6) + count(8) + count(10)));
    records
}

/// Returns the size up to which the sender of a query takes answers over UDP.
fn udp_limit(query: &[u8]) -> usize {
    let announced = records(query).into_iter().filter(|record| record.kind == OPT).map(|record| record.class);
    announced.max().unwrap_or_default().max(512).into()
}

/// The question of a message.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    name: Name,
    kind: u16,
    class: u16,
}

impl Asked {
    fn read(message: &[u8]) -> Option<Asked> {
        let (name, end) = name(message, HEADER)?;
        Some(Asked { name, kind: number(message, end)?, class: number(message, end + 2)? })
    }

    /// Whether the rule `*.allowed` allows the name.
    fn is_allowed(&self) -> bool {
        let is_usual = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        matches!(&self.name[..], [first, last] if first.iter().all(is_usual) && last == b"allowed")
    }

    /// Returns the name of a question that is allowed.
    fn text(&self) -> String {
        self.name.iter().map(|label| String::from_utf8_lossy(label) + ".").collect()
    }

    /// Whether a message answers the question with all addresses of a lookup, for at least its time: of records whose
    /// owner is the name or one of its aliases.
    fn permits(&self, message: &[u8], lookup: &Lookup) -> bool {
        if message.get(2).is_none_or(|flags| flags & 0x80 == 0) || Asked::read(message).as_ref() != Some(self)
        {
            return false;
        }
        let mut records = records(message);
        records.truncate(number(message, 6).unwrap_or_default().into());
        records.retain(|record| record.class == IN);
        let (mut names, mut shortest) = (HashSet::from([self.name.clone()]), u32::MAX);
        let mut addresses = HashSet::new();
        loop {
            let count = names.len();
            for record in records.iter().filter(|record| names.contains(&record.owner)).collect::<Vec<_>>() {
                let address: Option<IpAddr> = match record.kind {
                    A => record.data.try_into().ok().map(|octets: [u8; 4]| octets.into()),
                    AAAA => record
                        .data
                        .try_into()
                        .ok()
                        .map(|octets: [u8; 16]| Ipv6Addr::from(octets).to_canonical()),
                    CNAME => {
                        names.extend(name(message, record.offset).map(|(target, _)| target));
                        None
                    }
                    _ => continue,
                };
                addresses.extend(address);
                shortest = shortest.min(if record.ttl >> 31 == 0 { record.ttl } else { 0 });
            }
            if names.len() == count {
                break;
            }
        }
        let is_peer =
            |address: &IpAddr| !(address.is_loopback() || address.is_multicast() || address.is_unspecified());
        !lookup.addresses.is_empty()
            && lookup.ttl <= shortest
            && lookup.addresses.iter().all(|address| addresses.contains(address) && is_peer(address))
            && lookup.addresses.iter().collect::<HashSet<_>>().len() == lookup.addresses.len()
    }
}
