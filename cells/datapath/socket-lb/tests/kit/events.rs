//! Trace events of sockets, read from the rings of the node.

use std::net::SocketAddr;

use bpf::RawMap;
use bpf::perf::{Record, Rings, Wakeups};
use maps::Maps;
use monitor_events::{Event, SocketTrace, decode};

/// The rings of all CPUs.
pub(crate) struct Events(Rings);

impl Events {
    pub(crate) fn open(maps: &Maps) -> Events {
        let map = RawMap::open(&maps.path("cilium_events")).unwrap();
        Events(Rings::open(map, 8, Wakeups::EachRecord).unwrap())
    }

    /// Returns the events since the last call, by point: the order between CPUs is not kept.
    pub(crate) fn read(&mut self) -> Vec<SocketTrace> {
        let mut traces = Vec::new();
        let read = self.0.read(|_, record| {
            let Record::Sample { head, tail } = record else { panic!("events are lost") };
            let bytes = [head, tail].concat();
            let Ok(Event::Socket(trace)) = decode(&bytes) else { panic!("{bytes:?}") };
            traces.push(trace);
        });
        read.unwrap();
        traces.sort_by_key(|trace: &SocketTrace| trace.point);
        traces
    }

    /// Returns the points and addresses of the events since the last call.
    pub(crate) fn addresses(&mut self) -> Vec<(u8, SocketAddr)> {
        let traces = self.read().into_iter();
        traces.map(|trace| (trace.point, SocketAddr::new(trace.address, trace.port))).collect()
    }
}
