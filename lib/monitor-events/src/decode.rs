//! Bytes of an event to its fields, for all versions that programs of any agent write.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use datapath_abi::event;

use crate::format;
use crate::gob::{self, GobError, Value};
use crate::packet::{First, Frame};
use crate::record::{Record, record};

/// Message type of a notification of the agent, which no program writes.
pub const AGENT: u8 = 130;
/// Message type of a record of a proxy.
pub const ACCESS_LOG: u8 = 129;

/// Why bytes are no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No bytes at all.
    #[error("no data")]
    Empty,
    /// Fewer bytes than the struct of its type has.
    #[error("expected at least {expected} but got {found}")]
    Short {
        /// Size of the struct.
        expected: usize,
        /// Bytes of the event.
        found: usize,
    },
    /// A version that is newer than this reader.
    #[error("unrecognized event version {0}")]
    Version(u8),
    /// A notification or record with an invalid stream.
    #[error(transparent)]
    Gob(#[from] GobError),
    /// A record of a proxy with a word that no record has.
    #[error("a record of a proxy without a known {field}")]
    Record {
        /// The field.
        field: &'static str,
    },
}

/// An event. Packets and their captures reach to the end of the event, which the kernel pads by up to 7 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A dropped packet.
    Drop(Drop<'a>),
    /// A packet at a point of the datapath.
    Trace(Trace<'a>),
    /// The verdict of a policy.
    Verdict(Verdict<'a>),
    /// A debug message.
    Debug(Debug),
    /// A packet captured for debugging.
    Capture(Capture<'a>),
    /// A translation of an address at a socket.
    Socket(SocketTrace),
    /// A notification of the agent.
    Agent(Agent),
    /// A record of a proxy.
    Record(Box<Record>),
    /// Another type.
    Unknown(&'a [u8]),
}

impl<'a> Event<'a> {
    /// Returns the packet of a drop, a trace, a verdict or a capture.
    #[must_use]
    pub fn frame(&self) -> Option<Frame<'a>> {
        match self {
            Self::Drop(drop) => Some(format::frame(drop.flags, drop.packet)),
            Self::Trace(trace) => Some(format::frame(trace.flags, trace.packet)),
            Self::Verdict(verdict) => Some(format::verdict_frame(verdict)),
            Self::Capture(capture) => Some(Frame::parse(First::Ethernet, None, capture.packet)),
            Self::Debug(_) | Self::Socket(_) | Self::Agent(_) | Self::Record(_) | Self::Unknown(_) => None,
        }
    }
}

/// A dropped packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the event's struct")]
pub struct Drop<'a> {
    pub reason: u8,
    pub source: u16,
    pub hash: u32,
    pub len: u32,
    pub src_label: u32,
    pub dst_label: u32,
    pub dst_id: u32,
    pub line: u16,
    pub file: u8,
    pub ext_error: i8,
    pub ifindex: u32,
    pub flags: u8,
    pub ip_trace_id: u64,
    pub packet: &'a [u8],
}

/// A packet at a point of the datapath.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the event's struct")]
pub struct Trace<'a> {
    pub point: u8,
    pub source: u16,
    pub hash: u32,
    pub len: u32,
    pub captured: u16,
    pub src_label: u32,
    pub dst_label: u32,
    pub dst_id: u16,
    pub reason: u8,
    pub flags: u8,
    pub ifindex: u32,
    /// The source address before a translation; absent in events of version 0.
    pub orig_ip: Option<IpAddr>,
    pub ip_trace_id: u64,
    pub packet: &'a [u8],
}

/// The verdict of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the event's struct")]
pub struct Verdict<'a> {
    pub source: u16,
    pub hash: u32,
    pub remote_label: u32,
    pub verdict: i32,
    pub proto: u8,
    pub flags: u8,
    pub auth_type: u8,
    /// The number of the rules' texts for the log; 0 for none.
    pub cookie: u32,
    pub packet: &'a [u8],
}

/// A debug message: its id and three arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the event's struct")]
pub struct Debug {
    pub id: u8,
    pub source: u16,
    pub hash: u32,
    pub args: [u32; 3],
}

/// A packet captured for debugging.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the event's struct")]
pub struct Capture<'a> {
    pub id: u8,
    pub source: u16,
    pub hash: u32,
    pub len: u32,
    pub args: [u32; 2],
    pub packet: &'a [u8],
}

/// A translation of an address at a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the event's struct")]
pub struct SocketTrace {
    pub point: u8,
    pub protocol: u8,
    pub address: IpAddr,
    pub port: u16,
    pub cookie: u64,
    pub cgroup: u64,
}

/// A notification of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agent {
    /// The number of its kind.
    pub kind: u32,
    /// JSON.
    pub text: String,
}

/// Reads the fields of a struct at their offsets; bytes beyond the end are zero.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the fields of a struct of this size.
    fn of(data: &'a [u8], size: usize) -> Result<Self, DecodeError> {
        match data.len() < size {
            true => Err(DecodeError::Short { expected: size, found: data.len() }),
            false => Ok(Self(data)),
        }
    }

    fn array<const N: usize>(self, offset: usize) -> [u8; N] {
        self.0.get(offset..offset + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    fn u8(self, offset: usize) -> u8 {
        self.array::<1>(offset)[0]
    }

    fn u16(self, offset: usize) -> u16 {
        u16::from_ne_bytes(self.array(offset))
    }

    fn u32(self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.array(offset))
    }

    fn u64(self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.array(offset))
    }

    /// Returns the address in network order at this offset.
    fn ip(self, offset: usize, is_ipv6: bool) -> IpAddr {
        match is_ipv6 {
            true => Ipv6Addr::from(self.array::<16>(offset)).into(),
            false => Ipv4Addr::from(self.array::<4>(offset)).into(),
        }
    }

    fn after(self, size: usize) -> &'a [u8] {
        self.0.get(size..).unwrap_or_default()
    }
}

/// Decodes an event.
///
/// # Errors
/// It is shorter than its struct, or of an unknown version.
pub fn decode(data: &[u8]) -> Result<Event<'_>, DecodeError> {
    Ok(match *data.first().ok_or(DecodeError::Empty)? {
        event::DROP => Event::Drop(dropped(data)?),
        event::DEBUG => {
            let f = Fields::of(data, 20)?;
            let args = [f.u32(8), f.u32(12), f.u32(16)];
            Event::Debug(Debug { id: f.u8(1), source: f.u16(2), hash: f.u32(4), args })
        }
        event::DEBUG_CAPTURE => {
            let f = Fields::of(data, 24)?;
            Event::Capture(Capture {
                id: f.u8(1),
                source: f.u16(2),
                hash: f.u32(4),
                len: f.u32(8),
                args: [f.u32(16), f.u32(20)],
                packet: f.after(24),
            })
        }
        event::TRACE => Event::Trace(trace(data)?),
        event::POLICY_VERDICT => {
            let f = Fields::of(data, 40)?;
            Event::Verdict(Verdict {
                source: f.u16(2),
                hash: f.u32(4),
                remote_label: f.u32(16),
                verdict: i32::from_ne_bytes(f.array(20)),
                proto: f.u8(26),
                flags: f.u8(27),
                auth_type: f.u8(28),
                cookie: f.u32(32),
                packet: f.after(40),
            })
        }
        event::TRACE_SOCK => {
            let f = Fields::of(data, 40)?;
            Event::Socket(SocketTrace {
                point: f.u8(1),
                protocol: f.u8(2),
                address: f.ip(24, f.u8(3) & 1 != 0),
                port: f.u16(4),
                cookie: f.u64(8),
                cgroup: f.u64(16),
            })
        }
        AGENT => Event::Agent(agent(&data[1..])?),
        ACCESS_LOG => Event::Record(Box::new(record(stream(&data[1..])?)?)),
        _ => Event::Unknown(data),
    })
}

fn dropped(data: &[u8]) -> Result<Drop<'_>, DecodeError> {
    let f = Fields::of(data, 36)?;
    let size = match f.u8(14) {
        0 | 1 => 36,
        2 => 40,
        3 => 48,
        version => return Err(DecodeError::Version(version)),
    };
    let f = Fields::of(data, size)?;
    Ok(Drop {
        reason: f.u8(1),
        source: f.u16(2),
        hash: f.u32(4),
        len: f.u32(8),
        src_label: f.u32(16),
        dst_label: f.u32(20),
        dst_id: f.u32(24),
        line: f.u16(28),
        file: f.u8(30),
        ext_error: f.u8(31) as i8,
        ifindex: f.u32(32),
        flags: if size > 36 { f.u8(36) } else { 0 },
        ip_trace_id: if size > 40 { f.u64(40) } else { 0 },
        packet: f.after(size),
    })
}

fn trace(data: &[u8]) -> Result<Trace<'_>, DecodeError> {
    let f = Fields::of(data, 32)?;
    let size = match f.u8(14) {
        0 => 32,
        1 => 48,
        2 => 56,
        version => return Err(DecodeError::Version(version)),
    };
    let f = Fields::of(data, size)?;
    let flags = f.u8(27);
    Ok(Trace {
        point: f.u8(1),
        source: f.u16(2),
        hash: f.u32(4),
        len: f.u32(8),
        captured: f.u16(12),
        src_label: f.u32(16),
        dst_label: f.u32(20),
        dst_id: f.u16(24),
        reason: f.u8(26),
        flags,
        ifindex: f.u32(28),
        orig_ip: (size > 32).then(|| f.ip(32, flags & event::flag::IPV6 != 0)),
        ip_trace_id: if size > 48 { f.u64(48) } else { 0 },
        packet: f.after(size),
    })
}

/// Reads the stream of a notification or record; bytes behind its value are ignored.
fn stream(bytes: &[u8]) -> Result<gob::Struct, GobError> {
    let mut reader = gob::Reader::default();
    reader.push(bytes);
    reader.next_value()?.ok_or(GobError::Short)
}

fn agent(bytes: &[u8]) -> Result<Agent, DecodeError> {
    let mut fields = stream(bytes)?;
    let kind = match fields.get("Type") {
        Some(&Value::Uint(kind)) => u32::try_from(kind).unwrap_or(u32::MAX),
        _ => 0,
    };
    let text = match fields.remove("Text") {
        Some(Value::Text(text)) => text,
        _ => String::new(),
    };
    Ok(Agent { kind, text })
}
