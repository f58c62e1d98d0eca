//! DNS messages as far as the proxy has to know them: the question, the addresses of an answer. All else passes
//! byte for byte.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

/// The length of a header.
const HEADER: usize = 12;
/// The largest message over UDP without EDNS (RFC 1035, 4.2.1).
const MIN_UDP_SIZE: u16 = 512;
/// The size that answers of the proxy itself announce, which passes every usual link in one packet.
const OWN_UDP_SIZE: u16 = 1232;
/// Type of the pseudo record of EDNS (RFC 6891).
const OPT: u16 = 41;
const QUERY: u8 = 0;
const NOTIFY: u8 = 4;
/// The maximum number of pointers of a name: more cannot be of use in 255 bytes.
const MAX_POINTERS: usize = 126;
const RESPONSE_FLAG: u16 = 1 << 15;
const TRUNCATED_FLAG: u8 = 1 << 1;

/// A request that can be forwarded.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) id: u16,
    /// The name in presentation form: lower case, a dot at the end, bytes that names of policies cannot have escaped.
    pub(crate) name: String,
    pub(crate) question: Query,
    /// The largest answer over UDP that the client takes.
    pub(crate) udp_size: u16,
    has_edns: bool,
    recursion_desired: bool,
}

/// A message that is not forwarded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// No answer: it is one itself, or has no header.
    Silently,
    /// With an answer.
    With(Vec<u8>),
}

/// An answer whose question was compared with the request's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) code: ResponseCode,
    /// The addresses of the name and of its aliases, each once.
    pub(crate) addresses: Vec<IpAddr>,
    /// The shortest time to live of these and of the aliases, in seconds.
    pub(crate) ttl: u32,
}

/// The reason why a message is not the answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAnAnswer {
    #[error("the message is incomplete or malformed")]
    Malformed,
    #[error("the message is no response")]
    NoResponse,
    #[error("the message has another id than the request")]
    OtherId,
    #[error("the message has another question than the request")]
    OtherQuestion,
}

/// The fields of a header.
struct Header {
    id: u16,
    flags: u16,
    counts: [u16; 4],
}

impl Header {
    fn read(decoder: &mut BinDecoder<'_>) -> Option<Header> {
        let mut field = || Some(decoder.read_u16().ok()?.unverified());
        Some(Header { id: field()?, flags: field()?, counts: [field()?, field()?, field()?, field()?] })
    }

    fn op_code(&self) -> u8 {
        (self.flags >> 11) as u8 & 0xF
    }
}

/// A resource record, its data not decoded.
struct Record<'a> {
    owner: Name,
    kind: u16,
    class: u16,
    ttl: u32,
    data: &'a [u8],
    /// Where the data begins in the message: names in it may point to what precedes.
    offset: usize,
}

impl<'a> Record<'a> {
    fn read(decoder: &mut BinDecoder<'a>) -> Option<Record<'a>> {
        let owner = Name::read(decoder).ok()?;
        let kind = decoder.read_u16().ok()?.unverified();
        let class = decoder.read_u16().ok()?.unverified();
        let ttl = decoder.read_u32().ok()?.unverified();
        let length = decoder.read_u16().ok()?.unverified();
        let offset = decoder.index();
        let data = decoder.read_slice(length.into()).ok()?.unverified();
        Some(Record { owner, kind, class, ttl, data, offset })
    }

    /// Returns the name that the data is.
    fn name(&self, message: &[u8]) -> Option<Name> {
        let mut decoder = BinDecoder::new(message.get(..self.offset + self.data.len())?);
        decoder.read_slice(self.offset).ok()?;
        Name::read(&mut decoder).ok()
    }
}

impl Request {
    /// Parses a request of a client. Accepts what Cilium's proxy accepts.
    pub(crate) fn parse(message: &[u8]) -> Result<Request, Rejected> {
        let mut decoder = BinDecoder::new(message);
        let header = Header::read(&mut decoder).ok_or(Rejected::Silently)?;
        if header.flags & RESPONSE_FLAG != 0 {
            return Err(Rejected::Silently);
        }
        let recursion_desired = header.flags & (1 << 8) != 0;
        let reject = |code| Rejected::With(own_answer(header.id, recursion_desired, None, false, code));
        if !matches!(header.op_code(), QUERY | NOTIFY) {
            return Err(reject(ResponseCode::NotImp));
        }
        let [questions, answers, authorities, additionals] = header.counts;
        if questions != 1 || answers > 1 || authorities > 1 || additionals > 2 {
            return Err(reject(ResponseCode::FormErr));
        }
        let malformed = || reject(ResponseCode::FormErr);
        if has_long_chain(message) {
            return Err(malformed());
        }
        let question = Query::read(&mut decoder).map_err(|_| malformed())?;
        let mut edns_size = None;
        for _ in 0..answers + authorities + additionals {
            let record = Record::read(&mut decoder).ok_or_else(malformed)?;
            if record.kind == OPT {
                edns_size = Some(record.class);
            }
        }
        Ok(Request {
            id: header.id,
            name: presentation(question.name()),
            question,
            udp_size: edns_size.unwrap_or(MIN_UDP_SIZE).max(MIN_UDP_SIZE),
            has_edns: edns_size.is_some(),
            recursion_desired,
        })
    }

    /// Returns an answer of the proxy itself, without records.
    pub(crate) fn reply(&self, code: ResponseCode) -> Vec<u8> {
        own_answer(self.id, self.recursion_desired, Some(&self.question), self.has_edns, code)
    }

    /// Checks that a message with the id is the answer to this request, and returns its addresses. Only records of the
    /// name and of its aliases count, whatever else a server adds.
    pub(crate) fn answer(&self, message: &[u8], id: u16) -> Result<Answer, NotAnAnswer> {
        let mut decoder = BinDecoder::new(message);
        let header = Header::read(&mut decoder).ok_or(NotAnAnswer::Malformed)?;
        if header.flags & RESPONSE_FLAG == 0 {
            return Err(NotAnAnswer::NoResponse);
        }
        if header.id != id {
            return Err(NotAnAnswer::OtherId);
        }
        if has_long_chain(message) {
            return Err(NotAnAnswer::Malformed);
        }
        let code = ResponseCode::from(0, header.flags as u8 & 0xF);
        let [questions, answers, ..] = header.counts;
        match questions {
            1 => {
                let question = Query::read(&mut decoder).map_err(|_| NotAnAnswer::Malformed)?;
                let is_same = question.name() == self.question.name()
                    && question.query_type() == self.question.query_type()
                    && question.query_class() == self.question.query_class();
                if !is_same {
                    return Err(NotAnAnswer::OtherQuestion);
                }
            }
            // Servers that cannot parse a request answer without its question.
            0 if answers == 0 && code != ResponseCode::NoError => {}
            _ => return Err(NotAnAnswer::OtherQuestion),
        }
        let mut records = Vec::new();
        for _ in 0..answers {
            records.push(Record::read(&mut decoder).ok_or(NotAnAnswer::Malformed)?);
        }
        let (addresses, ttl) = self.addresses(message, &records)?;
        Ok(Answer { code, addresses, ttl })
    }

    /// Returns the addresses of the name and of its aliases, with the shortest time to live.
    fn addresses(&self, message: &[u8], records: &[Record<'_>]) -> Result<(Vec<IpAddr>, u32), NotAnAnswer> {
        let mut aliases: HashMap<Name, Vec<(Name, u32)>> = HashMap::new();
        let mut by_owner: HashMap<&Name, Vec<(IpAddr, u32)>> = HashMap::new();
        for record in records.iter().filter(|record| record.class == u16::from(DNSClass::IN)) {
            // A value with the first bit set counts as zero (RFC 2181, 8).
            let ttl = if record.ttl > i32::MAX as u32 { 0 } else { record.ttl };
            match RecordType::from(record.kind) {
                RecordType::CNAME => {
                    let target = record.name(message).ok_or(NotAnAnswer::Malformed)?;
                    aliases.entry(record.owner.to_lowercase()).or_default().push((target, ttl));
                }
                RecordType::A => {
                    let octets: [u8; 4] = record.data.try_into().map_err(|_| NotAnAnswer::Malformed)?;
                    by_owner.entry(&record.owner).or_default().push((Ipv4Addr::from(octets).into(), ttl));
                }
                RecordType::AAAA => {
                    let octets: [u8; 16] = record.data.try_into().map_err(|_| NotAnAnswer::Malformed)?;
                    let address = IpAddr::from(Ipv6Addr::from(octets)).to_canonical();
                    by_owner.entry(&record.owner).or_default().push((address, ttl));
                }
                _ => {}
            }
        }
        let (mut addresses, mut shortest) = (Vec::new(), u32::MAX);
        let (mut seen_names, mut seen) = (HashSet::new(), HashSet::new());
        let mut names = vec![self.question.name().to_lowercase()];
        while let Some(name) = names.pop() {
            if !seen_names.insert(name.clone()) {
                continue;
            }
            for (address, ttl) in by_owner.get(&name).into_iter().flatten() {
                shortest = shortest.min(*ttl);
                if is_destination(*address) && seen.insert(*address) {
                    addresses.push(*address);
                }
            }
            for (target, ttl) in aliases.get(&name).into_iter().flatten() {
                shortest = shortest.min(*ttl);
                names.push(target.to_lowercase());
            }
        }
        Ok((addresses, shortest))
    }

    /// Returns the types of an answer's records and the targets of its aliases, in order. The message must have passed
    /// [`answer`](Self::answer).
    pub(crate) fn listed(&self, message: &[u8]) -> (Vec<u16>, Vec<String>) {
        let (mut types, mut aliases) = (Vec::new(), Vec::new());
        let mut decoder = BinDecoder::new(message);
        let Some(Header { counts: [questions, answers, ..], .. }) = Header::read(&mut decoder) else {
            return (types, aliases);
        };
        for _ in 0..questions {
            let _ = Query::read(&mut decoder);
        }
        for _ in 0..answers {
            let Some(record) = Record::read(&mut decoder) else { break };
            types.push(record.kind);
            if RecordType::from(record.kind) == RecordType::CNAME {
                aliases.extend(record.name(message).map(|name| presentation(&name)));
            }
        }
        (types, aliases)
    }

    /// Returns an answer that the client takes over UDP: a larger one is compressed if that is enough, else it loses its
    /// records and asks for a query over TCP.
    pub(crate) fn fit_udp(&self, answer: Vec<u8>, compress: bool) -> Vec<u8> {
        let limit = usize::from(self.udp_size);
        if answer.len() <= limit {
            return answer;
        }
        let compressed = || Message::from_vec(&answer).and_then(|message| message.to_vec()).ok();
        if compress && let Some(answer) = compressed().filter(|answer| answer.len() <= limit) {
            return answer;
        }
        let code = ResponseCode::from(0, answer[3] & 0xF);
        let mut truncated = self.reply(code);
        truncated[2..4].copy_from_slice(&answer[2..4]);
        truncated[2] |= TRUNCATED_FLAG;
        truncated
    }
}

/// Writes an id into a message.
pub(crate) fn set_id(message: &mut [u8], id: u16) {
    if message.len() >= HEADER {
        message[..2].copy_from_slice(&id.to_be_bytes());
    }
}

/// Returns the id of a message.
pub(crate) fn id(message: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(message.get(..2)?.try_into().ok()?))
}

/// Whether a name anywhere in a message would be read by too many pointers, one after another. The decoder recurses for
/// each, and thousands of them would overflow the stack.
fn has_long_chain(message: &[u8]) -> bool {
    let is_pointer = |byte: &u8| *byte >= 0xC0;
    if message.iter().filter(|byte| is_pointer(byte)).count() <= MAX_POINTERS {
        return false;
    }
    // Where the labels end that begin at each offset; linear, as labels lead forward.
    let mut ends: Vec<usize> = (0..message.len()).collect();
    for (at, length) in message.iter().enumerate().rev().filter(|(_, length)| (1..=63).contains(*length)) {
        let next = at + 1 + usize::from(*length);
        ends[at] = ends.get(next).copied().unwrap_or(next);
    }
    // The number of pointers of a name that begins at each offset. Pointers lead back, to offsets that are done.
    let mut chains: Vec<usize> = Vec::with_capacity(message.len());
    for (start, end) in ends.into_iter().enumerate() {
        let pair = message.get(end..end + 2).filter(|pair| is_pointer(&pair[0]));
        let target = pair.map(|pair| usize::from(u16::from_be_bytes([pair[0] & 0x3F, pair[1]])));
        let target = target.filter(|target| *target < start);
        chains.push(target.map_or(0, |target| chains[target] + 1));
    }
    chains.into_iter().any(|chain| chain > MAX_POINTERS)
}

fn own_answer(
    id: u16,
    recursion_desired: bool,
    question: Option<&Query>,
    edns: bool,
    code: ResponseCode,
) -> Vec<u8> {
    let mut message = Message::new();
    message
        .set_id(id)
        .set_message_type(MessageType::Response)
        .set_op_code(OpCode::Query)
        .set_recursion_desired(recursion_desired)
        .set_recursion_available(true)
        .set_response_code(code);
    message.add_queries(question.cloned());
    if edns {
        let mut edns = Edns::new();
        edns.set_max_payload(OWN_UDP_SIZE);
        message.set_edns(edns);
    }
    // A question that was decoded can be encoded.
    message.to_vec().unwrap_or_default()
}

/// Whether packets to an address can reach a peer of a policy. An answer must not give identities to others.
fn is_destination(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}

/// Returns a name as policies write it: lower case, with a dot at the end. Other bytes are escaped as in zone files.
fn presentation(name: &Name) -> String {
    let mut text = String::new();
    for label in name.iter() {
        for byte in label {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'*' | b'/' => text.push(char::from(*byte)),
                b'A'..=b'Z' => text.push(char::from(byte.to_ascii_lowercase())),
                0x21..=0x7E => _ = write!(text, "\\{}", char::from(*byte)),
                _ => _ = write!(text, "\\{byte:03}"),
            }
        }
        text.push('.');
    }
    if text.is_empty() {
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{A, AAAA, CNAME, TXT};
    use hickory_proto::rr::{RData, Record as Full};
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn request(text: &str) -> (Message, Request) {
        let mut message = Message::new();
        message.set_id(7).set_recursion_desired(true).add_query(Query::query(name(text), RecordType::A));
        let parsed = Request::parse(&message.to_vec().unwrap()).unwrap();
        (message, parsed)
    }

    fn response(to: &Message, records: impl IntoIterator<Item = (&'static str, u32, RData)>) -> Message {
        let mut message = Message::new();
        message
            .set_id(to.id())
            .set_message_type(MessageType::Response)
            .add_queries(to.queries().iter().cloned());
        message.add_answers(
            records.into_iter().map(|(owner, ttl, data)| Full::from_rdata(name(owner), ttl, data)),
        );
        message
    }

    fn a(last: u8) -> RData {
        RData::A(A(Ipv4Addr::new(192, 0, 2, last)))
    }

    fn alias(target: &str) -> RData {
        RData::CNAME(CNAME(name(target)))
    }

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    #[test]
    fn names_are_lower_case_with_odd_bytes_escaped() {
        for (labels, expected) in [
            (&[&b"WWW"[..], b"a_1"][..], "www.a_1."),
            (&[b"a.b", b"io"], r"a\.b.io."),
            (&[b"\xC8\x00 \\", b"io"], r"\200\000\032\\.io."),
            (&[], "."),
        ] {
            assert_eq!(presentation(&Name::from_labels(labels.iter().copied()).unwrap()), expected);
        }
    }

    #[test]
    fn requests_that_cilium_refuses_are_refused() {
        let code = |message: &Message| match Request::parse(&message.to_vec().unwrap()) {
            Err(Rejected::With(reply)) => Some(Message::from_vec(&reply).unwrap().response_code()),
            Err(Rejected::Silently) => None,
            Ok(_) => Some(ResponseCode::NoError),
        };
        let (plain, parsed) = request("a.io.");
        assert_eq!((parsed.udp_size, parsed.name.as_str()), (512, "a.io."));
        assert_eq!(code(&plain), Some(ResponseCode::NoError));
        let mut two = plain.clone();
        two.add_query(Query::query(name("b.io."), RecordType::A));
        assert_eq!(code(&two), Some(ResponseCode::FormErr));
        let mut update = plain.clone();
        update.set_op_code(OpCode::Update);
        assert_eq!(code(&update), Some(ResponseCode::NotImp));
        assert_eq!(code(&response(&plain, [])), None);
        assert_eq!(Request::parse(&[0; 11]).unwrap_err(), Rejected::Silently);
        let mut with_edns = plain;
        with_edns.set_edns(Edns::new()).extensions_mut().as_mut().unwrap().set_max_payload(4096);
        assert_eq!(Request::parse(&with_edns.to_vec().unwrap()).unwrap().udp_size, 4096);
    }

    #[test]
    fn only_the_name_and_its_aliases_have_addresses() {
        let (message, request) = request("WWW.a.io.");
        let chain = [
            ("c.io.", 20, a(1)),
            ("www.A.io.", 30, alias("B.io.")),
            ("b.io.", 10, alias("c.io.")),
            ("c.io.", 40, a(2)),
            ("c.io.", 40, a(2)),
            ("victim.io.", 1, a(3)),
            ("c.io.", 300, RData::AAAA(AAAA("::ffff:192.0.2.4".parse().unwrap()))),
            ("c.io.", 300, RData::A(A(Ipv4Addr::LOCALHOST))),
        ];
        let answer = request.answer(&response(&message, chain).to_vec().unwrap(), 7).unwrap();
        assert_eq!(
            answer,
            Answer { code: ResponseCode::NoError, addresses: vec![ip(1), ip(2), ip(4)], ttl: 10 }
        );
        // A circle of aliases ends.
        let circle = [("www.a.io.", 5, alias("b.io.")), ("b.io.", 5, alias("www.a.io."))];
        let answer = request.answer(&response(&message, circle).to_vec().unwrap(), 7).unwrap();
        assert!(answer.addresses.is_empty());
    }

    #[test]
    fn answers_to_other_requests_are_refused() {
        let (message, request) = request("a.io.");
        let answer = |message: &Message| request.answer(&message.to_vec().unwrap(), 7).map(drop);
        let good = response(&message, [("a.io.", 1, a(1))]);
        assert_eq!(answer(&good), Ok(()));
        assert_eq!(answer(&message), Err(NotAnAnswer::NoResponse));
        let mut other = good.clone();
        other.set_id(8);
        assert_eq!(answer(&other), Err(NotAnAnswer::OtherId));
        for question in [
            Query::query(name("b.io."), RecordType::A),
            Query::query(name("a.io."), RecordType::AAAA),
            Query::query(name("a.io."), RecordType::A).set_query_class(DNSClass::CH).clone(),
        ] {
            let mut other = good.clone();
            *other.queries_mut() = vec![question];
            assert_eq!(answer(&other), Err(NotAnAnswer::OtherQuestion));
        }
        let mut none = good.clone();
        none.queries_mut().clear();
        assert_eq!(answer(&none), Err(NotAnAnswer::OtherQuestion));
        let mut refused = Message::new();
        refused.set_id(7).set_message_type(MessageType::Response).set_response_code(ResponseCode::FormErr);
        assert_eq!(answer(&refused), Ok(()));
        let bytes = good.to_vec().unwrap();
        assert_eq!(request.answer(&bytes[..bytes.len() - 1], 7), Err(NotAnAnswer::Malformed));
    }

    #[test]
    fn large_answers_are_truncated_over_udp() {
        let (message, request) = request("a.io.");
        let records = (0..60).map(|i| ("a.io.", 1, a(i)));
        let large = response(&message, records).to_vec().unwrap();
        assert!(large.len() > 512);
        let fitting = Message::from_vec(&request.fit_udp(large.clone(), true)).unwrap();
        assert!(fitting.truncated() && fitting.answers().is_empty() && fitting.id() == 7);
        assert_eq!(fitting.queries(), message.queries());
        let larger = Request { udp_size: 4096, ..request.clone() };
        assert_eq!(larger.fit_udp(large.clone(), true), large);
        // Names that are written in full again and again are compressed.
        let mut plain = large[..12].to_vec();
        plain[7] = 20;
        plain.extend_from_slice(&large[12..22]);
        for last in 0..20 {
            plain.extend_from_slice(b"\x01a\x02io\0\0\x01\0\x01\0\0\0\x01\0\x04\xC0\0\x02");
            plain.push(last);
        }
        assert!(request.answer(&plain, 7).is_ok());
        let limit = Request { udp_size: (plain.len() - 1).try_into().unwrap(), ..request };
        let compressed = Message::from_vec(&limit.fit_udp(plain.clone(), true)).unwrap();
        assert_eq!((compressed.truncated(), compressed.answers().len()), (false, 20));
        assert!(Message::from_vec(&limit.fit_udp(plain, false)).unwrap().truncated());
    }

    #[test]
    fn records_of_unknown_types_do_not_matter() {
        let (message, request) = request("a.io.");
        let text = RData::TXT(TXT::new(vec!["x".to_owned()]));
        let mut bytes = response(&message, [("a.io.", 1, text), ("a.io.", 1, a(1))]).to_vec().unwrap();
        // The TXT record gets the type of an SVCB record, as which its data is malformed.
        let at = bytes.windows(2).position(|pair| pair == [0, 16]).unwrap();
        bytes[at + 1] = 64;
        assert!(Message::from_vec(&bytes).is_err());
        assert_eq!(request.answer(&bytes, 7).unwrap().addresses, [ip(1)]);
    }

    #[test]
    fn thousands_of_pointers_after_one_another_do_not_overflow_the_stack() {
        let (message, request) = request("a.io.");
        let mut query = message.to_vec().unwrap();
        let mut answer = response(&message, [("a.io.", 1, a(1))]).to_vec().unwrap();
        let chain = |message: &mut Vec<u8>, count: usize| {
            // A record of an unknown type has the pointers as its data: the first one leads to the question.
            message.extend_from_slice(&[0, 0xFF, 0, 0, 1, 0, 0, 0, 0]);
            message.extend_from_slice(&(2 * count as u16).to_be_bytes());
            let mut target = 12_u16;
            for _ in 0..count {
                let at = message.len() as u16;
                message.extend_from_slice(&(0xC000 | target).to_be_bytes());
                target = at;
            }
            // Another record has the name to which the last one leads.
            message.extend_from_slice(&(0xC000 | target).to_be_bytes());
            message.extend_from_slice(&[0xFF, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        };
        chain(&mut query, 8000);
        query[11] = 2;
        let Err(Rejected::With(reply)) = Request::parse(&query) else { panic!("it is refused") };
        assert_eq!(Message::from_vec(&reply).unwrap().response_code(), ResponseCode::FormErr);
        let short = answer.clone();
        chain(&mut answer, 8000);
        answer[7] = 3;
        assert_eq!(request.answer(&answer, 7), Err(NotAnAnswer::Malformed));
        // Some pointers are no fault.
        answer = short;
        chain(&mut answer, 100);
        answer[7] = 3;
        assert_eq!(request.answer(&answer, 7).unwrap().addresses, [ip(1)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn damaged_messages_neither_panic_nor_add_names(flips in proptest::collection::vec((0_usize..120, any::<u8>()), 0..8)) {
            let (message, request) = request("a.io.");
            let good = response(&message, [("a.io.", 1, alias("b.io.")), ("b.io.", 1, a(1)), ("c.io.", 1, a(9))]);
            let mut bytes = good.to_vec().unwrap();
            for (at, value) in flips {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            let _ = request.answer(&bytes, 7);
            if let Ok(parsed) = Request::parse(&bytes) {
                prop_assert!(parsed.name.ends_with('.'));
            }
        }
    }
}
