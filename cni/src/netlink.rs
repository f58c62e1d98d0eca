//! One rtnetlink socket, used synchronously: a request, its answers, its acknowledgement.
//!
//! Requests are typed, answers stay bytes until a part of them is needed: parsers for all of rtnetlink would be
//! a third of the binary.

use netlink_packet_core::{
    DecodeError, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;

/// Larger than any answer about one link; dumps come in several.
const RECEIVE_BUFFER: usize = 64 << 10;

/// How often an interrupted dump is taken.
const DUMP_ATTEMPTS: usize = 10;

/// A request of type `kind` (`RTM_*`).
#[derive(Clone, Debug)]
pub(crate) struct Request<M> {
    pub(crate) kind: u16,
    pub(crate) message: M,
}

impl<M: Emitable> NetlinkSerializable for Request<M> {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.message.buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        self.message.emit(buffer);
    }
}

/// The body of an answer, not yet looked at.
#[derive(Debug)]
pub(crate) struct Answer(pub(crate) Vec<u8>);

impl NetlinkDeserializable for Answer {
    type Error = DecodeError;

    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self(payload.to_vec()))
    }
}

/// A socket in the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(RECEIVE_BUFFER) })
    }

    /// A request that changes something; `flags` beside REQUEST and ACK.
    pub(crate) fn change<M: Emitable>(&mut self, request: Request<M>, flags: u16) -> io::Result<()> {
        self.send(request, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.answers(|_| ())
    }

    /// A request for one object.
    pub(crate) fn query<M: Emitable>(&mut self, request: Request<M>) -> io::Result<Option<Answer>> {
        self.send(request, NLM_F_REQUEST | NLM_F_ACK)?;
        let mut found = None;
        self.answers(|answer| found = Some(answer))?;
        Ok(found)
    }

    /// A request for all objects of a kind.
    /// Complete: a dump that a change has interrupted is taken again, and is `Interrupted` at last.
    pub(crate) fn dump<M: Emitable + Clone>(&mut self, request: Request<M>) -> io::Result<Vec<Answer>> {
        for _ in 0..DUMP_ATTEMPTS {
            self.send(request.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let mut all = Vec::new();
            match self.answers(|answer| all.push(answer)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                answered => return answered.map(|()| all),
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    fn send<M: Emitable>(&mut self, request: Request<M>, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Feeds answers to `take` until the acknowledgement, the end of a dump, or an error.
    fn answers(&mut self, mut take: impl FnMut(Answer)) -> io::Result<()> {
        let mut interrupted = false;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            let mut rest = self.buffer.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<Answer>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                let length = (message.header.length as usize).next_multiple_of(4).min(rest.len());
                rest = &rest[length..];
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                match message.payload {
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
                    NetlinkPayload::Done(_) if interrupted => return Err(io::ErrorKind::Interrupted.into()),
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::InnerMessage(answer) => take(answer),
                    _ => {}
                }
            }
        }
    }
}
