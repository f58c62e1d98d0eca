//! Packets of the kernel: framing, attributes, and the responses on a connection.

use std::cell::RefCell;
use std::io;

use netlink::{Attributes, Body, Connection, Error, Request, Transport, messages};

/// The port of the connection's socket.
const PORT: u32 = 7;

/// A transport that answers each request with the input: packets with a length before each; then the socket fails.
struct Packets<'a>(RefCell<&'a [u8]>);

impl Transport for Packets<'_> {
    fn send(&self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let mut rest = self.0.borrow_mut();
        let (length, packets) = rest.split_first().ok_or(io::ErrorKind::ConnectionAborted)?;
        let packet = packets.split_at(packets.len().min(usize::from(*length)));
        *rest = packet.1;
        buffer.extend(packet.0);
        Ok(packet.0.len())
    }
}

/// Packets with their lengths; the first byte selects the request.
pub(crate) fn run(data: &[u8]) {
    framing(data);
    let Some((kind, packets)) = data.split_first() else { return };
    let mut connection = Connection::over(Packets(RefCell::new(packets)), PORT);
    let request = Request { kind: libc::RTM_GETLINK, body: Body::default() };
    // Each response is a part of the input.
    let bounded = |answer: netlink::Message<'_>| {
        assert!(answer.body.len() < data.len());
        Ok(Some(attributes(answer.body)))
    };
    let result = match kind % 3 {
        0 => connection.request(&request, 0),
        1 => connection.get(&request, bounded).map(drop),
        _ => connection.dump(&request, bounded).map(drop),
    };
    if let Err(error) = result {
        assert!(!error.to_string().is_empty());
        if let Error::Refused { source, .. } = &error {
            assert!(source.raw_os_error().is_some_and(|code| (1..4096).contains(&code)), "{source}");
        }
    }
}

/// Messages do not overlap, nor exceed the packet; the last one may be malformed.
fn framing(packet: &[u8]) {
    let all: Vec<_> = messages(packet).collect();
    let whole = all.iter().filter_map(|message| message.as_ref().ok());
    assert!(whole.map(|message| 16 + message.body.len()).sum::<usize>() <= packet.len());
    assert!(all.iter().rev().skip(1).all(Result::is_ok), "goes on after a malformed message");
}

/// A parsed message survives a round trip.
fn attributes(bytes: &[u8]) -> usize {
    let read: Vec<_> = Attributes::new(bytes).map_while(Result::ok).collect();
    let mut written = Body::default();
    for attribute in &read {
        written.attribute(attribute.kind, attribute.value);
    }
    let again: Result<Vec<_>, _> = Attributes::new(written.as_bytes()).collect();
    assert_eq!(again.as_ref(), Ok(&read));
    for attribute in &read {
        let _ = (attribute.text(), attribute.u32(), attribute.u32_be());
        attributes(attribute.value);
    }
    read.len()
}
