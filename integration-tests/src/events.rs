//! Events for monitors, which programs write to `cilium_events`.

use std::thread::sleep;
use std::time::Duration;

use bpf::RawMap;
use bpf::perf::{Record, Rings, Wakeups};
use datapath_abi::event::{CaptureHeader, DROP, DropNotify, TRACE};
use datapath_abi::{Pod as _, trace};

use crate::Node;

/// Pages of a CPU's ring: a second of two flows of 1,000 packets a second.
const PAGES: usize = 256;

/// The reader's end of the rings.
pub struct Events(Rings);

/// The first fields of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A packet was dropped.
    Drop {
        /// The endpoint of the dropping program.
        endpoint: u16,
        /// The drop reason.
        reason: u8,
    },
    /// A packet passed a point.
    Trace {
        /// The endpoint of the program.
        endpoint: u16,
        /// The point.
        point: u8,
    },
}

/// A dropped packet.
#[derive(Clone, Debug)]
pub struct Dropped {
    /// The drop reason.
    pub reason: u8,
    /// Its first bytes, from the Ethernet header on.
    pub frame: Vec<u8>,
}

impl Events {
    /// The events of a node from now on.
    ///
    /// # Panics
    /// When its ring cannot be opened.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let map = RawMap::open(&node.pin("cilium_events")).unwrap();
        Self(Rings::open(map, PAGES, Wakeups::EachRecord).unwrap())
    }

    /// Returns the events that arrive for a moment, without earlier ones and those in flight now.
    pub fn of_a_moment(&mut self) -> Vec<Event> {
        sleep(Duration::from_millis(20));
        self.read();
        sleep(Duration::from_millis(100));
        self.read()
    }

    /// Returns the events since the last call, or since the start.
    pub fn all_so_far(&mut self) -> Vec<Event> {
        sleep(Duration::from_millis(20));
        self.read()
    }

    /// The packets that were dropped since the last call of any kind, or since the start.
    pub fn dropped(&mut self) -> Vec<Dropped> {
        let mut dropped = Vec::new();
        self.for_each(|header, bytes| {
            if header.kind == DROP {
                let end = size_of::<DropNotify>() + usize::from(header.len_cap);
                let frame = bytes[size_of::<DropNotify>()..end].to_vec();
                dropped.push(Dropped { reason: header.subtype, frame });
            }
        });
        dropped
    }

    fn read(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.for_each(|header, _| {
            let (endpoint, subtype) = (header.source, header.subtype);
            match header.kind {
                DROP => events.push(Event::Drop { endpoint, reason: subtype }),
                TRACE => events.push(Event::Trace { endpoint, point: subtype }),
                _ => {}
            }
        });
        events
    }

    fn for_each(&mut self, mut take: impl FnMut(CaptureHeader, &[u8])) {
        let read = self.0.read(|_, record| {
            let Record::Sample { head, tail } = record else { return };
            let bytes = [head, tail].concat();
            if let Some(header) = CaptureHeader::from_bytes(&bytes) {
                take(header, &bytes);
            }
        });
        read.unwrap();
    }
}

impl Event {
    /// Whether a program of this endpoint reports a drop.
    #[must_use]
    pub fn is_drop_of(&self, id: u16) -> bool {
        matches!(self, Self::Drop { endpoint, .. } if *endpoint == id)
    }

    /// Whether it is a packet that this endpoint has sent.
    #[must_use]
    pub fn is_sent_by(&self, id: u16) -> bool {
        *self == Self::Trace { endpoint: id, point: trace::FROM_LXC }
    }

    /// Whether it is a packet that this endpoint gets.
    #[must_use]
    pub fn is_delivered_to(&self, id: u16) -> bool {
        *self == Self::Trace { endpoint: id, point: trace::TO_LXC }
    }
}
