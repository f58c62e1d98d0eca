//! cls_bpf filters over rtnetlink: clsact, attach, replace, list, remove.
#![expect(unsafe_code, reason = "netlink sockets have no wrapper in the standard library")]

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::error::{Error, Result};
use crate::link::Direction;

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// A change has interrupted a dump: it may have gaps.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// How often an interrupted dump is taken.
const DUMP_ATTEMPTS: usize = 10;
const NLM_F_CREATE_EXCL: u16 = 0x600;
const NLM_F_CREATE_REPLACE: u16 = 0x500;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
const TC_H_CLSACT: u32 = 0xffff_fff1;
/// All protocols, as `struct tcmsg` wants them beside the priority.
const ETH_P_ALL: u32 = 3u16.to_be() as u32;
const HEADER: usize = 16;
const TCMSG: usize = 20;

/// A cls_bpf filter found on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Its priority; the lowest runs first.
    pub priority: u16,
    /// Its handle within the priority.
    pub handle: u32,
    /// Its name, which Cilium's are `<program>-<device>`.
    pub name: String,
    /// The kernel number of its program.
    pub program: u32,
}

/// A netlink socket for tc filters, in the network namespace of the thread that made it. Calls wait for the kernel's
/// answer, which takes microseconds: attach 21, replace 2.
#[derive(Debug)]
pub struct Tc {
    socket: OwnedFd,
    sequence: Cell<u32>,
}

impl Tc {
    /// Opens a socket.
    pub fn new() -> Result<Tc> {
        // JUSTIFICATION: no netlink in the standard library.
        // SAFETY: no pointers; a descriptor that is not negative is fresh and ours.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE);
            if fd < 0 {
                return Err(Error::syscall("open socket", "rtnetlink", io::Error::last_os_error()));
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Tc { socket, sequence: Cell::new(0) })
    }

    /// Makes sure that the interface has a clsact qdisc.
    pub fn ensure_clsact(&self, ifindex: u32) -> Result<()> {
        let mut message = Message::new(RTM_NEWQDISC, NLM_F_CREATE_EXCL, ifindex, 0xffff_0000, TC_H_CLSACT, 0);
        message.attribute(TCA_KIND, b"clsact\0");
        match self.request(message) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            other => other.map(drop).map_err(|source| tc_error("add qdisc clsact", ifindex, source)),
        }
    }

    /// Removes the clsact qdisc with all filters in it; false if there was none.
    pub fn remove_clsact(&self, ifindex: u32) -> Result<bool> {
        let mut message = Message::new(RTM_DELQDISC, 0, ifindex, 0xffff_0000, TC_H_CLSACT, 0);
        message.attribute(TCA_KIND, b"clsact\0");
        self.removal(message, "remove qdisc clsact", ifindex)
    }

    /// Attaches a program in direct-action mode with handle 1 at that priority, or replaces the program there. The
    /// interface need not be up; it must have a clsact qdisc.
    pub fn attach(
        &self,
        ifindex: u32,
        direction: Direction,
        priority: u16,
        name: &str,
        program: &impl AsFd,
    ) -> Result<()> {
        let info = u32::from(priority) << 16 | ETH_P_ALL;
        let mut message =
            Message::new(RTM_NEWTFILTER, NLM_F_CREATE_REPLACE, ifindex, 1, parent(direction), info);
        message.attribute(TCA_KIND, b"bpf\0");
        message.nested(TCA_OPTIONS, |options| {
            options.attribute(TCA_BPF_FD, &program.as_fd().as_raw_fd().to_ne_bytes());
            options.attribute(TCA_BPF_NAME, &[name.as_bytes(), b"\0"].concat());
            options.attribute(TCA_BPF_FLAGS, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes());
        });
        self.request(message).map(drop).map_err(|source| tc_error("attach tc filter", ifindex, source))
    }

    /// [`Tc::ensure_clsact`] and [`Tc::attach`], trying the second first: replacing costs one round trip.
    pub fn attach_with_clsact(
        &self,
        ifindex: u32,
        direction: Direction,
        priority: u16,
        name: &str,
        program: &impl AsFd,
    ) -> Result<()> {
        match self.attach(ifindex, direction, priority, name, program) {
            Err(e) if matches!(e.errno(), Some(libc::EINVAL | libc::ENOENT | libc::EOPNOTSUPP)) => {
                self.ensure_clsact(ifindex)?;
                self.attach(ifindex, direction, priority, name, program)
            }
            other => other,
        }
    }

    /// Removes the filter with handle 1 at that priority; false if there was none.
    pub fn detach(&self, ifindex: u32, direction: Direction, priority: u16) -> Result<bool> {
        let info = u32::from(priority) << 16 | ETH_P_ALL;
        let mut message = Message::new(RTM_DELTFILTER, 0, ifindex, 1, parent(direction), info);
        message.attribute(TCA_KIND, b"bpf\0");
        self.removal(message, "remove tc filter", ifindex)
    }

    /// The cls_bpf filters of an interface in one direction; none without clsact.
    pub fn filters(&self, ifindex: u32, direction: Direction) -> Result<Vec<Filter>> {
        match self.dump(ifindex, direction) {
            Ok(answers) => Ok(answers.iter().filter_map(|a| filter_of(a)).collect()),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(Vec::new()),
            Err(source) => Err(tc_error("list tc filters", ifindex, source)),
        }
    }

    /// Whether an interface has a clsact qdisc without any filter, of whatever kind, in either direction.
    pub fn is_clsact_empty(&self, ifindex: u32) -> Result<bool> {
        for direction in [Direction::Ingress, Direction::Egress] {
            match self.dump(ifindex, direction) {
                Ok(answers) if answers.is_empty() => {}
                Ok(_) => return Ok(false),
                // No clsact, or no interface.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOENT | libc::ENODEV)) => {
                    return Ok(false);
                }
                Err(source) => return Err(tc_error("list tc filters", ifindex, source)),
            }
        }
        Ok(true)
    }

    /// The bodies of all filters of an interface in one direction: complete, or an error.
    fn dump(&self, ifindex: u32, direction: Direction) -> io::Result<Vec<Vec<u8>>> {
        let mut result = Err(io::ErrorKind::Interrupted.into());
        for _ in 0..DUMP_ATTEMPTS {
            let message = Message::new(RTM_GETTFILTER, NLM_F_DUMP, ifindex, 0, parent(direction), 0);
            result = self.request(message);
            if !result.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::Interrupted) {
                break;
            }
        }
        result
    }

    fn removal(&self, message: Message, operation: &'static str, ifindex: u32) -> Result<bool> {
        match self.request(message) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)) => {
                Ok(false)
            }
            Err(source) => Err(tc_error(operation, ifindex, source)),
        }
    }

    /// Sends a message and collects the bodies of the answers until the acknowledgement or the dump's end.
    /// `Interrupted` if a change has interrupted the dump.
    fn request(&self, mut message: Message) -> io::Result<Vec<Vec<u8>>> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let bytes = message.finish(sequence);
        // JUSTIFICATION: as in new().
        // SAFETY: bytes lives across the call and has the length given.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answers = Answers::default();
        let mut buffer = vec![0u8; 32768];
        loop {
            // JUSTIFICATION: as in new().
            // SAFETY: buffer lives across the call and has the length given.
            let got = unsafe {
                let flags = libc::MSG_TRUNC;
                libc::recv(self.socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags)
            };
            if got < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            let packet = buffer.get(..got as usize).ok_or(io::ErrorKind::InvalidData)?;
            if answers.take(packet, sequence)? {
                return Ok(answers.bodies);
            }
        }
    }
}

/// Answers to one request, as they come in.
#[derive(Debug, Default)]
struct Answers {
    bodies: Vec<Vec<u8>>,
    interrupted: bool,
}

impl Answers {
    /// Takes the messages of a packet; true at the end of all.
    fn take(&mut self, packet: &[u8], sequence: u32) -> io::Result<bool> {
        let mut rest = packet;
        while rest.len() >= HEADER {
            let length = word(rest, 0) as usize;
            if length < HEADER || length > rest.len() {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            let (kind, flags, answer_to) = (half(rest, 4), half(rest, 6), word(rest, 8));
            let body = &rest[HEADER..length];
            if answer_to == sequence {
                self.interrupted |= kind != NLMSG_ERROR && flags & NLM_F_DUMP_INTR != 0;
                match kind {
                    // The end of a dump carries its error, an acknowledgement that of the request.
                    NLMSG_DONE | NLMSG_ERROR => match word(body, 0) as i32 {
                        errno if errno < 0 => return Err(io::Error::from_raw_os_error(-errno)),
                        _ if self.interrupted => return Err(io::ErrorKind::Interrupted.into()),
                        _ => return Ok(true),
                    },
                    _ => self.bodies.push(body.to_vec()),
                }
            }
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
        Ok(false)
    }
}

fn tc_error(operation: &'static str, ifindex: u32, source: io::Error) -> Error {
    Error::Tc { operation, ifindex, source }
}

fn parent(direction: Direction) -> u32 {
    match direction {
        Direction::Ingress => 0xffff_fff2,
        Direction::Egress => 0xffff_fff3,
    }
}

fn filter_of(answer: &[u8]) -> Option<Filter> {
    let (handle, info) = (word_at(answer, 8)?, word_at(answer, 16)?);
    let mut filter = Filter { priority: (info >> 16) as u16, handle, name: String::new(), program: 0 };
    let attributes = answer.get(TCMSG..)?;
    let options = attribute(attributes, TCA_OPTIONS)?;
    if attribute(attributes, TCA_KIND)? != b"bpf\0" || handle == 0 {
        return None;
    }
    if let Some(name) = attribute(options, TCA_BPF_NAME) {
        filter.name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
    }
    filter.program = attribute(options, TCA_BPF_ID).and_then(|id| word_at(id, 0)).unwrap_or(0);
    Some(filter)
}

/// The value of the first attribute of that type.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while attributes.len() >= 4 {
        let length = half(attributes, 0) as usize;
        let value = attributes.get(4..length)?;
        // The two highest bits of the type are flags.
        if half(attributes, 2) & 0x3fff == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    word_at(bytes, at).unwrap_or(0)
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A netlink message about traffic control, as it grows.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, ifindex: u32, handle: u32, parent: u32, info: u32) -> Message {
        let ack = if flags == NLM_F_DUMP { 0 } else { NLM_F_ACK };
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST | ack).to_ne_bytes());
        for word in [0, ifindex, handle, parent, info] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        Message(bytes)
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) {
        let at = self.0.len();
        self.attribute(kind, &[]);
        fill(self);
        let length = (self.0.len() - at) as u16;
        self.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn finish(&mut self, sequence: u32) -> &[u8] {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(messages: &[(u16, u16, &[u8])]) -> Vec<u8> {
        let message = |(kind, flags, body): &(u16, u16, &[u8])| {
            let mut message = Message::new(*kind, 0, 0, 0, 0, 0);
            message.0.truncate(HEADER);
            message.0[6..8].copy_from_slice(&flags.to_ne_bytes());
            message.0.extend(*body);
            message.finish(7).to_vec()
        };
        messages.iter().flat_map(message).collect()
    }

    #[test]
    fn an_interrupted_or_failed_dump_is_an_error() {
        let (filter, done) = ((RTM_NEWTFILTER, 2, &[1u8; 20][..]), (NLMSG_DONE, 2, &[0u8; 4][..]));
        let mut whole = Answers::default();
        assert!(!whole.take(&packet(&[filter]), 7).unwrap());
        assert!(whole.take(&packet(&[filter, done]), 7).unwrap());
        assert_eq!(whole.bodies.len(), 2);

        // A message anywhere in the dump says that a change came between.
        let interrupted = (RTM_NEWTFILTER, 2 | NLM_F_DUMP_INTR, filter.2);
        let mut gaps = Answers::default();
        assert!(!gaps.take(&packet(&[interrupted]), 7).unwrap());
        assert_eq!(gaps.take(&packet(&[filter, done]), 7).unwrap_err().kind(), io::ErrorKind::Interrupted);

        // Linux puts the error of a dump into its last message.
        let failed = (NLMSG_DONE, 2, &(-libc::ENOMEM).to_ne_bytes()[..]);
        let error = Answers::default().take(&packet(&[filter, failed]), 7).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    }
}
