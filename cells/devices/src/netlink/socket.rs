//! Requests and answers on one blocking netlink socket.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::NetlinkError;

/// Larger than any message of the kernel (dumps use at most 32 KiB).
const BUFFER: usize = 64 << 10;
/// How often a dump that was disturbed by a change is taken again.
const DUMP_ATTEMPTS: usize = 10;

/// A blocking handle on rtnetlink of the thread's network namespace.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Errors come without the request that caused them.
        socket.set_cap_ack(true)?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(BUFFER) })
    }

    /// Sends a request and waits for its acknowledgement.
    pub(crate) fn request(
        &mut self,
        what: impl Fn() -> String,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), NetlinkError> {
        self.exchange(&what, message, flags | NLM_F_ACK, &mut |_| {})?;
        Ok(())
    }

    /// Asks for one object; none if it does not exist.
    pub(crate) fn get(
        &mut self,
        what: impl Fn() -> String,
        message: RouteNetlinkMessage,
    ) -> Result<Option<RouteNetlinkMessage>, NetlinkError> {
        let mut found = None;
        let result = self.exchange(&what, message, NLM_F_ACK, &mut |m| found = Some(m));
        match result {
            Ok(_) => Ok(found),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists all objects that `message` asks for, each converted at once: lists can be long. Consistent, as a dump
    /// that a change has disturbed is taken again.
    pub(crate) fn dump<T, I: IntoIterator<Item = T>>(
        &mut self,
        what: &str,
        message: &RouteNetlinkMessage,
        convert: impl Fn(RouteNetlinkMessage) -> I,
    ) -> Result<Vec<T>, NetlinkError> {
        let mut all = Vec::new();
        for _ in 0..DUMP_ATTEMPTS {
            all.clear();
            let sink = &mut |m| all.extend(convert(m));
            let disturbed = self.exchange(&|| what.to_owned(), message.clone(), NLM_F_DUMP, sink)?;
            if !disturbed {
                break;
            }
        }
        Ok(all)
    }

    /// Sends one request and hands every answer to `sink` until the kernel
    /// says that it is done; whether a dump was disturbed.
    fn exchange(
        &mut self,
        what: &dyn Fn() -> String,
        message: RouteNetlinkMessage,
        flags: u16,
        sink: &mut dyn FnMut(RouteNetlinkMessage),
    ) -> Result<bool, NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let refused = |source: io::Error| NetlinkError::Refused { request: what(), source };
        let mut disturbed = false;
        loop {
            self.buffer.clear();
            self.buffer.reserve(BUFFER);
            self.socket.recv(&mut self.buffer, 0)?;
            let mut rest = self.buffer.as_slice();
            while rest.len() >= 16 {
                let length = message_length(rest);
                if !(16..=rest.len()).contains(&length) {
                    return Err(not_understood(what(), "message longer than its packet"));
                }
                let (one, tail) = rest.split_at(length);
                rest = tail.get(length.next_multiple_of(4) - length..).unwrap_or(&[]);
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(one)
                    .map_err(|e| not_understood(what(), &e.to_string()))?;
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                disturbed |= answer.header.flags & NLM_F_DUMP_INTR != 0;
                match answer.payload {
                    NetlinkPayload::InnerMessage(inner) => sink(inner),
                    NetlinkPayload::Error(error) => {
                        return match error.code {
                            None => Ok(disturbed),
                            Some(_) => Err(refused(error.to_io())),
                        };
                    }
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(refused(io::Error::from_raw_os_error(-done.code)));
                    }
                    NetlinkPayload::Done(_) => return Ok(disturbed),
                    _ => {}
                }
            }
        }
    }
}

fn message_length(bytes: &[u8]) -> usize {
    bytes.first_chunk::<4>().map_or(0, |raw| u32::from_ne_bytes(*raw) as usize)
}

/// The messages of one packet of notifications; those that cannot be parsed
/// are counted.
pub(crate) fn notifications(packet: &[u8]) -> (Vec<(RouteNetlinkMessage, u16)>, usize) {
    let mut rest = packet;
    let mut messages = Vec::new();
    let mut unknown = 0;
    while rest.len() >= 16 {
        let length = message_length(rest);
        if !(16..=rest.len()).contains(&length) {
            return (messages, unknown + 1);
        }
        let (one, tail) = rest.split_at(length);
        rest = tail.get(length.next_multiple_of(4) - length..).unwrap_or(&[]);
        match NetlinkMessage::<RouteNetlinkMessage>::deserialize(one) {
            Ok(message) => {
                if let NetlinkPayload::InnerMessage(inner) = message.payload {
                    messages.push((inner, message.header.flags));
                }
            }
            Err(_) => unknown += 1,
        }
    }
    (messages, unknown)
}

fn not_understood(request: String, detail: &str) -> NetlinkError {
    NetlinkError::Answer { request, detail: detail.to_owned() }
}
