//! Requests to the real kernel, each in a sandbox of its own.

use netlink::{Body, Connection, Protocol, Request, nfnetlink};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkHeader, LinkInfo, LinkMessage};
use test_kit::{Sandbox, require_root};

/// `NFT_MSG_NEWCHAIN` and `NFTA_CHAIN_TABLE` of `linux/netfilter/nf_tables.h`.
const NEW_CHAIN: u8 = 3;
const CHAIN_TABLE: u16 = 1;

fn link(name: &str, kind: Option<InfoKind>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message.attributes.extend(kind.map(|kind| LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])));
    message
}

#[test]
fn requests_dumps_and_refusals() {
    require_root!();
    let _sandbox = Sandbox::new().unwrap();
    let mut connection = Connection::open(Protocol::Route).unwrap();
    let new = |name, kind| Request { kind: libc::RTM_NEWLINK, body: link(name, Some(kind)) };
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    connection.request(&new("br0", InfoKind::Bridge), flags).unwrap();
    assert!(connection.request(&new("br0", InfoKind::Bridge), flags).unwrap_err().is_exists());

    let index = |answer: netlink::Message<'_>| {
        LinkHeader::parse(answer.body).map(|header| header.index).map_err(|error| answer.undecodable(error))
    };
    let get = |name| Request { kind: libc::RTM_GETLINK, body: link(name, None) };
    let bridge = connection.get(&get("br0"), index).unwrap().unwrap();
    assert!(connection.get(&get("br1"), index).unwrap_err().is_not_found());
    let all = Request { kind: libc::RTM_GETLINK, body: LinkMessage::default() };
    let indexes = connection.dump(&all, |answer| index(answer).map(Some)).unwrap();
    assert!(indexes.contains(&1) && indexes.contains(&bridge), "{indexes:?}");

    // The kernel explains this error; the socket is usable after it.
    let unknown = new("x0", InfoKind::Other("nonsense".to_owned()));
    let error = connection.request(&unknown, NLM_F_CREATE | NLM_F_REPLACE).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
    assert_eq!(error.to_string(), "Operation not supported (os error 95) (Unknown device type)");
    assert!(connection.get(&get("br0"), index).unwrap().is_some());
}

#[test]
fn a_refused_transaction_is_an_error() {
    require_root!();
    let _sandbox = Sandbox::new().unwrap();
    let Ok(mut connection) = Connection::open(Protocol::Netfilter) else {
        test_kit::skip!("needs netfilter in the kernel")
    };
    let mut body: Body = nfnetlink::body(libc::NFPROTO_INET as u8);
    body.string(CHAIN_TABLE, "absent");
    let mut batch = nfnetlink::Batch::new(libc::NFNL_SUBSYS_NFTABLES as u8);
    batch.push(NEW_CHAIN, NLM_F_CREATE, body);
    for _ in 0..2 {
        let error = connection.commit(&batch).unwrap_err();
        assert!(matches!(error, netlink::Error::Refused { .. }), "{error:?}");
    }
}

#[test]
fn many_requests_in_one_datagram() {
    require_root!();
    let _sandbox = Sandbox::new().unwrap();
    let mut connection = Connection::open(Protocol::Route).unwrap();
    let requests: Vec<Request<LinkMessage>> = (0..250)
        .map(|i| {
            // Every 50th is of a kind that the kernel refuses with a text.
            let kind = if i % 50 == 49 { InfoKind::Other("nonsense".to_owned()) } else { InfoKind::Bridge };
            Request { kind: libc::RTM_NEWLINK, body: link(&format!("br{i}"), Some(kind)) }
        })
        .collect();
    let all = requests.iter().map(|request| (request, NLM_F_CREATE | NLM_F_EXCL));
    let results = connection.request_all(all.clone()).unwrap();
    let refused: Vec<usize> =
        results.iter().enumerate().filter_map(|(i, r)| r.is_err().then_some(i)).collect();
    assert_eq!((results.len(), refused), (250, vec![49, 99, 149, 199, 249]));
    let error = results[99].as_ref().unwrap_err().to_string();
    assert_eq!(error, "Operation not supported (os error 95) (Unknown device type)");
    // All of them are refused with texts now: the acknowledgements fit into the receive buffer.
    let results = connection.request_all(all).unwrap();
    assert!(results.iter().all(Result::is_err));
}
