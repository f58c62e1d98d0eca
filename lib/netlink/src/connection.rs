//! Requests and answers on one socket.

use std::io;
use std::time::Duration;

use netlink_packet_core::{
    Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP,
    NLMSG_OVERRUN, NetlinkHeader, NetlinkSerializable,
};
use netlink_sys::Socket;

use crate::message::HEADER_LEN;
use crate::nfnetlink::Batch;
use crate::transport::Transport;
use crate::{Error, Malformed, Message, Protocol, messages, refusal, transport};

/// Size of the receive buffer in bytes: larger than any packet of the kernel, which sends dumps in packets of up to 32
/// KiB.
const RECEIVE_BUFFER: usize = 64 << 10;

/// The number of times that an interrupted dump is requested: half of them at once, then after 1, 2, 4, ... ms.
pub const DUMP_ATTEMPTS: u32 = 10;

/// The number of requests in one datagram. The acknowledgements of a datagram all wait in the socket's receive buffer, in
/// which one takes up to 1 KiB: the kernel's default of 208 KiB has room for them, with the texts of refusals.
pub const MAX_BATCH: usize = 100;

/// A synchronous netlink socket of the network namespace in which it was opened. A request costs tens of microseconds:
/// the kernel processes it within the send call.
#[derive(Debug)]
pub struct Connection<T = Socket> {
    transport: T,
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Sequence numbers of the messages of one datagram, and that of the message with the last acknowledgement.
#[derive(Clone, Copy)]
struct InFlight {
    first: u32,
    last: u32,
    acknowledged: u32,
}

impl Connection {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open(protocol: Protocol) -> io::Result<Connection> {
        let (socket, port) = transport::open(protocol)?;
        Ok(Self::new(socket, port))
    }
}

impl<T: Transport> Connection<T> {
    fn new(transport: T, port: u32) -> Self {
        Self { transport, port, sequence: 0, buffer: Vec::with_capacity(RECEIVE_BUFFER) }
    }

    /// Creates a connection over another transport; responses must be for this port.
    #[cfg(feature = "test-util")]
    pub fn over(transport: T, port: u32) -> Self {
        Self::new(transport, port)
    }

    /// Requests a change and waits for its acknowledgement. `flags` are `NLM_F_*` beside `REQUEST` and `ACK`.
    pub fn request(&mut self, message: &impl NetlinkSerializable, flags: u16) -> Result<(), Error> {
        self.exchange(message, flags | NLM_F_ACK, &mut |_| Ok(())).map(drop)
    }

    /// Requests one object; `None` if the kernel acknowledges without an answer. An object that does not exist is a
    /// refusal ([`Error::is_not_found`]).
    pub fn get<R>(
        &mut self,
        message: &impl NetlinkSerializable,
        mut convert: impl FnMut(Message<'_>) -> Result<R, Error>,
    ) -> Result<Option<R>, Error> {
        let mut found = None;
        self.exchange(message, NLM_F_ACK, &mut |answer| {
            found = Some(convert(answer)?);
            Ok(())
        })?;
        Ok(found)
    }

    /// Requests all objects of a kind, each converted as it arrives: dumps can be long.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if changes have interrupted all of [`DUMP_ATTEMPTS`] dumps; never returns one with gaps.
    pub fn dump<R, I: IntoIterator<Item = R>>(
        &mut self,
        message: &impl NetlinkSerializable,
        mut convert: impl FnMut(Message<'_>) -> Result<I, Error>,
    ) -> Result<Vec<R>, Error> {
        let mut all = Vec::new();
        for attempt in 0..DUMP_ATTEMPTS {
            if let Some(exponent) = attempt.checked_sub(DUMP_ATTEMPTS / 2) {
                std::thread::sleep(Duration::from_millis(1 << exponent));
            }
            all.clear();
            let is_interrupted = self.exchange(message, NLM_F_DUMP, &mut |answer| {
                all.extend(convert(answer)?);
                Ok(())
            });
            match is_interrupted {
                Ok(false) => return Ok(all),
                Ok(true) => {}
                // Some families end an interrupted dump with this error.
                Err(Error::Refused { source, .. }) if source.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Interrupted { attempts: DUMP_ATTEMPTS })
    }

    /// Requests many changes, [`MAX_BATCH`] a datagram, each with its own result in the order of the requests: a refused
    /// one does not keep the kernel from the others. `flags` are `NLM_F_*` beside `REQUEST` and `ACK`.
    ///
    /// # Errors
    /// Any error but a refusal: some of the changes have been made then, and which is unknown.
    pub fn request_all<'m, M: NetlinkSerializable + 'm>(
        &mut self,
        requests: impl IntoIterator<Item = (&'m M, u16)>,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let mut results = Vec::new();
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let first = self.sequence.wrapping_add(1);
            let mut datagram = Vec::new();
            for (message, flags) in requests.by_ref().take(MAX_BATCH) {
                self.append(&mut datagram, message, NLM_F_REQUEST | NLM_F_ACK | flags);
            }
            let in_flight = InFlight { first, last: self.sequence, acknowledged: self.sequence };
            self.transport.send(&datagram)?;
            results.extend(self.verdicts(in_flight)?);
        }
        Ok(results)
    }

    /// Commits a transaction of nfnetlink: all of its messages take effect, or none. An empty one is not sent.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut datagram = Vec::new();
        let first = self.sequence.wrapping_add(1);
        batch.write(|message, flags| self.append(&mut datagram, message, flags));
        let last = self.sequence;
        // The last message before the end requests the acknowledgement. A refused message is reported before it: the
        // first error decides, and the next request skips the remaining responses by their sequence numbers.
        let in_flight = InFlight { first, last, acknowledged: last.wrapping_sub(1) };
        self.transport.send(&datagram)?;
        self.answers(in_flight, &mut |_| Ok(())).map(drop)
    }

    /// Sends a request and calls `sink` for each response. Returns whether the dump was interrupted by a change.
    fn exchange(
        &mut self,
        message: &impl NetlinkSerializable,
        flags: u16,
        sink: &mut dyn FnMut(Message<'_>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut datagram = Vec::with_capacity(HEADER_LEN + message.buffer_len());
        self.append(&mut datagram, message, NLM_F_REQUEST | flags);
        self.transport.send(&datagram)?;
        let sequence = self.sequence;
        self.answers(InFlight { first: sequence, last: sequence, acknowledged: sequence }, sink)
    }

    /// Appends a message with the next sequence number.
    fn append(&mut self, datagram: &mut Vec<u8>, message: &impl NetlinkSerializable, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let length = HEADER_LEN + message.buffer_len();
        let mut header = NetlinkHeader::default();
        header.length = length as u32;
        header.message_type = message.message_type();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let start = datagram.len();
        datagram.resize(start + length.next_multiple_of(4), 0);
        header.emit(&mut datagram[start..]);
        message.serialize(&mut datagram[start + HEADER_LEN..start + length]);
    }

    /// Calls `sink` for each answer until the acknowledgement, the end of the dump, or an error.
    fn answers(
        &mut self,
        in_flight: InFlight,
        sink: &mut dyn FnMut(Message<'_>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut is_interrupted = false;
        self.each(in_flight, &mut |message| {
            let header = &message.header;
            is_interrupted |= header.message_type != NLMSG_ERROR && header.flags & NLM_F_DUMP_INTR != 0;
            match header.message_type {
                NLMSG_NOOP => {}
                NLMSG_ERROR | NLMSG_DONE => {
                    refusal::verdict(&message)?;
                    return Ok(header.sequence_number == in_flight.acknowledged);
                }
                _ => sink(message)?,
            }
            Ok(false)
        })?;
        Ok(is_interrupted)
    }

    /// Reads the acknowledgement of each message of a datagram.
    fn verdicts(&mut self, in_flight: InFlight) -> Result<Vec<Result<(), Error>>, Error> {
        let count = in_flight.last.wrapping_sub(in_flight.first) as usize + 1;
        let mut verdicts: Vec<Option<Result<(), Error>>> =
            std::iter::repeat_with(|| None).take(count).collect();
        let mut missing = count;
        self.each(in_flight, &mut |message| {
            let header = &message.header;
            if header.message_type != NLMSG_ERROR {
                return Ok(false);
            }
            let verdict = match refusal::verdict(&message) {
                Err(error @ Error::Refused { .. }) => Err(error),
                verdict => Ok(verdict?),
            };
            let slot = &mut verdicts[header.sequence_number.wrapping_sub(in_flight.first) as usize];
            missing -= usize::from(slot.is_none());
            slot.get_or_insert(verdict);
            Ok(missing == 0)
        })?;
        Ok(verdicts.into_iter().flatten().collect())
    }

    /// Calls `sink` for each message about those in flight until it returns true or an error. The rest of the last packet is
    /// not read.
    fn each(
        &mut self,
        in_flight: InFlight,
        sink: &mut dyn FnMut(Message<'_>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        loop {
            self.receive()?;
            for message in messages(&self.buffer) {
                let message = message?;
                let header = &message.header;
                if header.port_number != self.port {
                    return Err(Malformed::Port { found: header.port_number, expected: self.port }.into());
                }
                // Left by an earlier request that failed before its last response.
                if !in_flight.contains(header.sequence_number) {
                    continue;
                }
                if header.message_type == NLMSG_OVERRUN {
                    return Err(Error::Overrun);
                }
                if sink(message)? {
                    return Ok(());
                }
            }
        }
    }

    /// Reads a packet into the buffer.
    fn receive(&mut self) -> Result<(), Error> {
        loop {
            self.buffer.clear();
            match self.transport.receive(&mut self.buffer) {
                Ok(length) if length > self.buffer.len() => {
                    return Err(Malformed::Packet { length, capacity: self.buffer.len() }.into());
                }
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Err(Error::Overrun),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl InFlight {
    /// Sequence numbers wrap around.
    fn contains(self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.first) <= self.last.wrapping_sub(self.first)
    }
}

#[cfg(test)]
mod tests;
