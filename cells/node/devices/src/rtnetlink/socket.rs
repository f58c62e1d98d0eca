//! Requests and answers on one blocking netlink socket.

use std::io;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::NetlinkError;

/// Larger than any message of the kernel (dumps use at most 32 KiB).
const BUFFER: usize = 64 << 10;
/// How often a dump that a change has interrupted is taken: half of them at once, then after 1, 2, 4, ... ms.
const DUMP_ATTEMPTS: usize = 10;
/// `MSG_TRUNC`: the answer's true length is returned, also when it does not fit.
const MSG_TRUNC: i32 = 0x20;

/// Datagrams to the kernel and back; tests give others.
trait Transport: std::fmt::Debug + Send + Sync {
    fn send(&self, request: &[u8]) -> io::Result<()>;

    /// Reads one datagram into the empty `buffer`. Returns its length, which is larger than what was read if it did not fit.
    fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<usize>;
}

impl Transport for Socket {
    fn send(&self, request: &[u8]) -> io::Result<()> {
        Socket::send(self, request, 0).map(drop)
    }

    fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.recv(buffer, MSG_TRUNC)
    }
}

/// A blocking handle on rtnetlink of the thread's network namespace.
#[derive(Debug)]
pub struct Netlink {
    socket: Box<dyn Transport>,
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
        Ok(Self::over(Box::new(socket)))
    }

    fn over(socket: Box<dyn Transport>) -> Self {
        Self { socket, sequence: 0, buffer: Vec::with_capacity(BUFFER) }
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

    /// Lists all objects that `message` asks for, each converted at once: lists can be long. Complete: a dump that a
    /// change has interrupted (`NLM_F_DUMP_INTR`) is taken again, and is [`NetlinkError::Interrupted`] at last.
    pub(crate) fn dump<T, I: IntoIterator<Item = T>>(
        &mut self,
        what: &str,
        message: &RouteNetlinkMessage,
        convert: impl Fn(RouteNetlinkMessage) -> I,
    ) -> Result<Vec<T>, NetlinkError> {
        let mut all = Vec::new();
        for attempt in 0..DUMP_ATTEMPTS {
            if let Some(exponent) = attempt.checked_sub(DUMP_ATTEMPTS / 2) {
                std::thread::sleep(Duration::from_millis(1 << exponent));
            }
            all.clear();
            let sink = &mut |m| all.extend(convert(m));
            match self.exchange(&|| what.to_owned(), message.clone(), NLM_F_DUMP, sink) {
                Ok(false) => return Ok(all),
                Ok(true) => {}
                // The kernel's own word for it at the end of a dump.
                Err(NetlinkError::Refused { source, .. }) if source.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Err(NetlinkError::Interrupted { request: what.to_owned(), attempts: DUMP_ATTEMPTS })
    }

    /// Sends one request and hands every answer to `sink` until the kernel
    /// says that it is done; whether a dump was interrupted by a change.
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
        self.socket.send(&bytes)?;

        let refused = |source: io::Error| NetlinkError::Refused { request: what(), source };
        let mut interrupted = false;
        loop {
            self.buffer.clear();
            self.buffer.reserve(BUFFER);
            let length = match self.socket.receive(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                length => length?,
            };
            if length > self.buffer.len() {
                return Err(not_understood(what(), "packet longer than the buffer"));
            }
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
                interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
                match answer.payload {
                    NetlinkPayload::InnerMessage(inner) => sink(inner),
                    NetlinkPayload::Error(error) => {
                        return match error.code {
                            None => Ok(interrupted),
                            Some(_) => Err(refused(error.to_io())),
                        };
                    }
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(refused(io::Error::from_raw_os_error(-done.code)));
                    }
                    NetlinkPayload::Done(_) => return Ok(interrupted),
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use netlink_packet_core::{DoneMessage, NetlinkHeader};
    use netlink_packet_route::link::{LinkAttribute, LinkMessage};

    use super::*;

    /// A kernel that lists two links, and marks the first `interrupted` lists as such.
    #[derive(Debug, Default)]
    struct Kernel {
        interrupted: usize,
        /// Bytes that are missing at the end of each packet.
        cut: usize,
        state: Mutex<State>,
    }

    #[derive(Debug, Default)]
    struct State {
        dumps: usize,
        answers: Vec<Vec<u8>>,
    }

    impl Transport for Arc<Kernel> {
        fn send(&self, request: &[u8]) -> io::Result<()> {
            let request = NetlinkMessage::<RouteNetlinkMessage>::deserialize(request).unwrap();
            assert_ne!(request.header.flags & NLM_F_DUMP, 0);
            let mut state = self.state.lock().unwrap();
            state.dumps += 1;
            let interrupted = state.dumps <= self.interrupted;
            let link = |name: &str| {
                let mut message = LinkMessage::default();
                message.attributes.push(LinkAttribute::IfName(name.to_owned()));
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(message))
            };
            // As Linux does it: only messages after the change carry the flag; one that was skipped is just not there.
            let mut messages =
                vec![(link("eth0"), false), (NetlinkPayload::Done(DoneMessage::default()), interrupted)];
            if !interrupted {
                messages.insert(1, (link("lxc1"), false));
            }
            let mut packet = Vec::new();
            for (payload, interrupted) in messages {
                let mut message = NetlinkMessage::new(NetlinkHeader::default(), payload);
                message.header.flags = if interrupted { NLM_F_DUMP_INTR } else { 0 };
                message.header.sequence_number = request.header.sequence_number;
                message.finalize();
                let mut bytes = vec![0; message.buffer_len()];
                message.serialize(&mut bytes);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
                packet.extend(bytes);
            }
            state.answers.push(packet);
            Ok(())
        }

        fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
            let packet = self.state.lock().unwrap().answers.remove(0);
            buffer.extend(&packet[..packet.len() - self.cut]);
            Ok(packet.len())
        }
    }

    fn links(kernel: &Arc<Kernel>) -> Result<Vec<String>, NetlinkError> {
        let links = Netlink::over(Box::new(kernel.clone())).links()?;
        Ok(links.into_iter().map(|link| link.name).collect())
    }

    #[test]
    fn a_dump_that_stays_interrupted_is_an_error() {
        for (interrupted, dumps) in [(0, 1), (3, 4), (DUMP_ATTEMPTS - 1, DUMP_ATTEMPTS)] {
            let kernel = Arc::new(Kernel { interrupted, ..Kernel::default() });
            assert_eq!(links(&kernel).unwrap(), ["eth0", "lxc1"]);
            assert_eq!(kernel.state.lock().unwrap().dumps, dumps);
        }
        let kernel = Arc::new(Kernel { interrupted: usize::MAX, ..Kernel::default() });
        let error = links(&kernel).expect_err("a list with a gap");
        assert!(matches!(error, NetlinkError::Interrupted { attempts: DUMP_ATTEMPTS, .. }), "{error:?}");
        assert!(error.is_retryable());
        assert_eq!(
            error.to_string(),
            "netlink: list links: interrupted by changes 10 times in a row; try again"
        );
    }

    #[test]
    fn a_packet_that_does_not_fit_is_an_error() {
        // The length of the last message: what is left looks whole.
        let kernel = Arc::new(Kernel { cut: 20, ..Kernel::default() });
        let error = links(&kernel).expect_err("a list without its end");
        assert!(matches!(error, NetlinkError::Answer { .. }), "{error:?}");
    }
}
