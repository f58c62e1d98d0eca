use std::cell::RefCell;
use std::collections::VecDeque;

use super::*;
use crate::{Body, Request, nfnetlink};

/// The port of the fake kernel's client.
const PORT: u32 = 4711;

/// An answer: type, flags, sequence number after that of the first message of the request, body.
type Answer = (u16, u16, u32, Vec<u8>);

const LINK: u16 = libc::RTM_NEWLINK;
const MULTI: u16 = 2;
const ACK_TLVS: u16 = 0x200;
const CAPPED: u16 = 0x100;

/// A kernel that answers each datagram by a function of the number of datagrams so far.
struct Kernel<F> {
    answer: F,
    requests: RefCell<Vec<Vec<u8>>>,
    packets: RefCell<VecDeque<io::Result<Vec<u8>>>>,
    /// Bytes of each packet that do not fit into the buffer.
    cut: usize,
    port: u32,
}

impl<F: Fn(usize) -> Vec<Vec<Answer>>> Kernel<F> {
    fn new(answer: F) -> Self {
        let (requests, packets) = Default::default();
        Kernel { answer, requests, packets, cut: 0, port: PORT }
    }

    fn requests(connection: &Connection<Self>) -> usize {
        connection.transport.requests.borrow().len()
    }
}

impl<F: Fn(usize) -> Vec<Vec<Answer>>> Transport for Kernel<F> {
    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        let first = messages(datagram).next().unwrap().unwrap().header.sequence_number;
        self.requests.borrow_mut().push(datagram.to_vec());
        for answers in (self.answer)(self.requests.borrow().len()) {
            let messages = answers.into_iter().map(|(kind, flags, sequence, body)| {
                message(kind, flags, first.wrapping_add(sequence), self.port, &body)
            });
            self.packets.borrow_mut().push_back(Ok(messages.flatten().collect()));
        }
        Ok(())
    }

    fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let packet = self.packets.borrow_mut().pop_front().expect("the kernel has answered")?;
        buffer.extend(&packet[..packet.len() - self.cut]);
        Ok(packet.len())
    }
}

fn message(kind: u16, flags: u16, sequence: u32, port: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((HEADER_LEN as u32 + body.len() as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(port.to_ne_bytes());
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn code(errno: i32) -> Vec<u8> {
    (-errno).to_ne_bytes().to_vec()
}

fn request() -> Request<Body> {
    Request { kind: libc::RTM_GETLINK, body: Body::new(&[0; 16]) }
}

fn dump<T: Transport>(connection: &mut Connection<T>) -> Result<Vec<Vec<u8>>, Error> {
    connection.dump(&request(), |answer| Ok([answer.body.to_vec()]))
}

#[test]
fn a_dump_that_stays_interrupted_is_an_error() {
    // As in Linux, only messages after the change carry the flag; a skipped object is simply missing.
    let answer = |interrupted: usize| {
        move |request: usize| {
            let flags = if request <= interrupted { NLM_F_DUMP_INTR } else { 0 };
            let mut list = vec![(LINK, MULTI, 0, vec![1; 4])];
            list.extend((flags == 0).then(|| (LINK, MULTI, 0, vec![2; 4])));
            vec![list, vec![(NLMSG_DONE, MULTI | flags, 0, code(0))]]
        }
    };
    let attempts = DUMP_ATTEMPTS as usize;
    for (interrupted, requests) in [(0, 1), (3, 4), (attempts - 1, attempts)] {
        let mut connection = Connection::new(Kernel::new(answer(interrupted)), PORT);
        assert_eq!(dump(&mut connection).unwrap(), [[1; 4], [2; 4]]);
        assert_eq!(Kernel::requests(&connection), requests);
    }
    let mut connection = Connection::new(Kernel::new(answer(usize::MAX)), PORT);
    let error = dump(&mut connection).expect_err("a list with a gap");
    assert!(
        matches!(error, Error::Interrupted { attempts: DUMP_ATTEMPTS }) && error.is_retryable(),
        "{error:?}"
    );
    assert_eq!(error.to_string(), "interrupted by changes 10 times in a row; try again");
    // The flag may be in the middle only; some families end with EINTR instead.
    for list in [
        vec![(LINK, MULTI | NLM_F_DUMP_INTR, 0, vec![1; 4]), (NLMSG_DONE, MULTI, 0, code(0))],
        vec![(LINK, MULTI, 0, vec![1; 4]), (NLMSG_DONE, MULTI, 0, code(libc::EINTR))],
    ] {
        let mut connection = Connection::new(Kernel::new(|_| vec![list.clone()]), PORT);
        assert!(matches!(dump(&mut connection), Err(Error::Interrupted { .. })));
    }
}

#[test]
fn the_end_of_a_dump_carries_its_error() {
    let list = || vec![vec![(LINK, MULTI, 0, vec![1; 4]), (NLMSG_DONE, MULTI, 0, code(libc::ENOMEM))]];
    let error = dump(&mut Connection::new(Kernel::new(|_| list()), PORT)).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOMEM));
}

#[test]
fn a_packet_that_does_not_fit_is_an_error() {
    // Truncated by the length of the last message: the rest looks complete.
    let list = || vec![vec![(LINK, MULTI, 0, vec![1; 4]), (NLMSG_DONE, MULTI, 0, code(0))]];
    let mut kernel = Kernel::new(|_| list());
    kernel.cut = 20;
    let error = dump(&mut Connection::new(kernel, PORT)).expect_err("a list without its end");
    assert!(matches!(error, Error::Malformed(Malformed::Packet { length: 40, capacity: 20 })), "{error:?}");
}

#[test]
fn answers_to_an_earlier_request_are_skipped() {
    // The first request fails at its first response; the second one receives the rest, which has other content.
    let answers = |request: usize| match request {
        1 => vec![
            vec![(LINK, 0, 0, vec![9])],
            vec![(LINK, 0, 0, vec![8]), (NLMSG_ERROR, 0, 0, code(libc::EBUSY))],
        ],
        _ => vec![vec![(LINK, 0, 0, vec![1; 4])], vec![(NLMSG_ERROR, 0, 0, code(0))]],
    };
    let mut connection = Connection::new(Kernel::new(answers), PORT);
    connection.sequence = u32::MAX - 1;
    let convert = |answer: Message<'_>| match answer.body {
        [1, ..] => Ok(()),
        _ => Err(answer.undecodable("unknown body".into())),
    };
    let error = connection.get(&request(), convert).unwrap_err();
    assert_eq!(error.to_string(), "answer of type 16 not understood: unknown body");
    assert_eq!(connection.get(&request(), convert).unwrap(), Some(()));
}

#[test]
fn an_answer_for_another_port_is_an_error() {
    let mut kernel = Kernel::new(|_| vec![vec![(NLMSG_ERROR, 0, 0, code(0))]]);
    kernel.port = 1;
    let error = Connection::new(kernel, PORT).request(&request(), 0).unwrap_err();
    assert_eq!(error.to_string(), "answer not understood: answer for port 1, this socket has port 4711");
}

#[test]
fn answers_that_contradict_themselves_are_errors() {
    let of = |kind, body: &[u8]| {
        let body = body.to_vec();
        let kernel = Kernel::new(move |_| vec![vec![(kind, 0, 0, body.clone())]]);
        Connection::new(kernel, PORT).request(&request(), 0).map_err(|error| match error {
            Error::Malformed(malformed) => malformed,
            error => panic!("{error:?}"),
        })
    };
    assert_eq!(of(NLMSG_DONE, &[]), Ok(()));
    assert_eq!(of(NLMSG_ERROR, &[]), Err(Malformed::Body { kind: NLMSG_ERROR, found: 0, expected: 4 }));
    assert_eq!(of(NLMSG_DONE, &[0]), Err(Malformed::Body { kind: NLMSG_DONE, found: 1, expected: 4 }));
    assert_eq!(of(NLMSG_ERROR, &5_i32.to_ne_bytes()), Err(Malformed::ErrorCode { code: 5 }));
    assert_eq!(of(NLMSG_ERROR, &i32::MIN.to_ne_bytes()), Err(Malformed::ErrorCode { code: i32::MIN }));
    // A length that is shorter than the header, and one beyond the packet.
    for length in [15_u32, 21] {
        let mut packet = message(NLMSG_ERROR, 0, 1, PORT, &code(0));
        packet[..4].copy_from_slice(&length.to_ne_bytes());
        let kernel = Kernel::new(|_| Vec::new());
        kernel.packets.borrow_mut().push_back(Ok(packet));
        let error = Connection::new(kernel, PORT).request(&request(), 0).unwrap_err();
        let expected = Malformed::MessageLength { length: length as usize, available: 20 };
        assert!(matches!(error, Error::Malformed(malformed) if malformed == expected), "{error:?}");
    }
}

#[test]
fn a_full_receive_buffer_is_an_error_and_a_signal_is_none() {
    let connection = |errno| {
        let kernel = Kernel::new(|_| vec![vec![(NLMSG_ERROR, 0, 0, code(0))]]);
        kernel.packets.borrow_mut().push_back(Err(io::Error::from_raw_os_error(errno)));
        Connection::new(kernel, PORT)
    };
    connection(libc::EINTR).request(&request(), 0).unwrap();
    let mut full = connection(libc::ENOBUFS);
    let error = full.request(&request(), 0).unwrap_err();
    assert!(matches!(error, Error::Overrun) && error.is_retryable(), "{error:?}");
    full.request(&request(), 0).unwrap();
}

#[test]
fn a_refusal_has_the_kernels_text() {
    let mut text = Body::default();
    text.attribute(2, &12_u32.to_ne_bytes()).string(1, "Unknown device type");
    let refused = |flags, parts: &[&[u8]]| {
        let body = parts.concat();
        let kernel = Kernel::new(move |_| vec![vec![(NLMSG_ERROR, flags, 0, body.clone())]]);
        Connection::new(kernel, PORT).request(&request(), 0).unwrap_err().to_string()
    };
    let (error, header) = (code(libc::EOPNOTSUPP), message(LINK, 0, 1, 0, &[0; 16]));
    let plain = "Operation not supported (os error 95)";
    let explained = format!("{plain} (Unknown device type)");
    assert_eq!(refused(ACK_TLVS | CAPPED, &[&error, &header[..HEADER_LEN], text.as_bytes()]), explained);
    assert_eq!(refused(ACK_TLVS, &[&error, &header, text.as_bytes()]), explained);
    // Texts that are missing, truncated, or not at the place that a length implies.
    assert_eq!(refused(CAPPED, &[&error, &header[..HEADER_LEN], text.as_bytes()]), plain);
    assert_eq!(refused(ACK_TLVS, &[&error, &header]), plain);
    assert_eq!(refused(ACK_TLVS, &[&error]), plain);
    assert_eq!(refused(ACK_TLVS, &[&error, &[0xff; 16], text.as_bytes()]), plain);
    assert_eq!(refused(ACK_TLVS | CAPPED, &[&error, &header[..HEADER_LEN], &text.as_bytes()[..20]]), plain);
}

/// The result of a transaction of two messages (begin, first, second, end) for these responses of nfnetlink.
fn committed(answers: Vec<Answer>) -> (Result<(), Error>, Vec<u8>) {
    let kernel = Kernel::new(move |_| vec![answers.clone()]);
    let mut connection = Connection::new(kernel, PORT);
    let mut batch = nfnetlink::Batch::new(10);
    batch.push(0, 0x400, nfnetlink::body(1)).push(6, 0x800, nfnetlink::body(1));
    let result = connection.commit(&batch);
    let datagram = connection.transport.requests.borrow()[0].clone();
    (result, datagram)
}

#[test]
fn a_transaction_has_borders_and_one_acknowledgement() {
    let (result, datagram) = committed(vec![(NLMSG_ERROR, CAPPED, 2, code(0))]);
    result.unwrap();
    let sent: Vec<_> = messages(&datagram).map(Result::unwrap).collect();
    let headers = sent.iter().map(|m| (m.header.message_type, m.header.flags, m.header.sequence_number));
    assert_eq!(
        headers.collect::<Vec<_>>(),
        [(16, 1, 1), (0x0a00, 0x401, 2), (0x0a06, 0x805, 3), (17, 1, 4)],
        "types, flags, sequence numbers"
    );
    // struct nfgenmsg: family, version, resource.
    assert_eq!([sent[0].body, sent[1].body], [[0, 0, 0, 10], [1, 0, 0, 0]]);
    let mut connection = Connection::new(Kernel::new(|_| Vec::new()), PORT);
    connection.commit(&nfnetlink::Batch::new(10)).unwrap();
    assert_eq!(Kernel::requests(&connection), 0, "nothing to commit");
}

#[test]
fn the_first_error_of_a_transaction_is_its_result() {
    // A refused message comes before the acknowledgement of the last one.
    let refused = |sequence| (NLMSG_ERROR, CAPPED, sequence, code(libc::ENOENT));
    for answers in [
        vec![refused(1), (NLMSG_ERROR, CAPPED, 2, code(0))],
        vec![refused(2)],
        // The whole transaction is refused by its beginning.
        vec![refused(0), (NLMSG_ERROR, CAPPED, 2, code(0))],
    ] {
        assert_eq!(committed(answers).0.unwrap_err().errno(), Some(libc::ENOENT));
    }
    // Acknowledgements of other messages do not count as that of the last one.
    committed(vec![(NLMSG_ERROR, CAPPED, 1, code(0)), (NLMSG_ERROR, CAPPED, 2, code(0))]).0.unwrap();
}

#[test]
fn each_request_of_a_datagram_has_its_own_result() {
    // Two datagrams: one full, with a refusal in the middle, and one of a single request. The acknowledgements of the
    // first arrive in two packets, the last one first, one of them twice, with a foreign message between them.
    let answer = |datagram| {
        let acknowledged =
            |sequence| (NLMSG_ERROR, 0, sequence, code(if sequence == 7 { libc::EEXIST } else { 0 }));
        if datagram == 2 {
            return vec![vec![(NLMSG_ERROR, 0, 0, code(libc::ENODEV))]];
        }
        let rest = (0..99).map(acknowledged).collect();
        vec![vec![acknowledged(99), acknowledged(99), (LINK, 0, 5, vec![0; 16])], rest]
    };
    let mut connection = Connection::over(Kernel::new(answer), PORT);
    // The sequence numbers of the first datagram wrap around.
    connection.sequence = u32::MAX - 50;
    let message = request();
    let results = connection.request_all((0..=MAX_BATCH).map(|_| (&message, 0))).unwrap();
    let refused: Vec<(usize, Option<i32>)> = results
        .iter()
        .enumerate()
        .filter_map(|(i, result)| result.as_ref().err().map(|error| (i, error.errno())))
        .collect();
    assert_eq!(refused, [(7, Some(libc::EEXIST)), (100, Some(libc::ENODEV))]);
    assert_eq!((results.len(), Kernel::requests(&connection)), (101, 2));
    assert!(connection.request_all::<Request<Body>>([]).unwrap().is_empty());
    assert_eq!(Kernel::requests(&connection), 2, "no request, no datagram");
}

#[test]
fn lost_acknowledgements_are_an_error_of_all_requests() {
    let answer = |_| vec![vec![(NLMSG_ERROR, 0, 0, code(0)), (NLMSG_OVERRUN, 0, 1, code(0))]];
    let mut connection = Connection::over(Kernel::new(answer), PORT);
    let message = request();
    let error = connection.request_all([(&message, 0), (&message, 0)]).unwrap_err();
    assert!(matches!(error, Error::Overrun), "{error:?}");
    let answer =
        |_| vec![vec![(NLMSG_ERROR, 0, 0, code(0)), (NLMSG_ERROR, 0, 1, 5i32.to_ne_bytes().to_vec())]];
    let mut connection = Connection::over(Kernel::new(answer), PORT);
    let error = connection.request_all([(&message, 0), (&message, 0)]).unwrap_err();
    assert!(matches!(error, Error::Malformed(Malformed::ErrorCode { code: 5 })), "{error:?}");
}
