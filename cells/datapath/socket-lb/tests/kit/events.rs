//! Trace events of sockets, read from the rings of the node.

use std::net::SocketAddr;

use aya::maps::perf::{PerfEvent, PerfEventArrayBuffer};
use aya::maps::{Map, MapData, PerfEventArray};
use maps::Maps;
use monitor_events::{Event, SocketTrace, decode};

/// The rings of all CPUs.
pub(crate) struct Events(Vec<PerfEventArrayBuffer<MapData>>);

impl Events {
    pub(crate) fn open(maps: &Maps) -> Events {
        let map = MapData::from_pin(maps.path("cilium_events")).unwrap();
        let mut array = PerfEventArray::try_from(Map::from_map_data(map).unwrap()).unwrap();
        let cpus = aya::util::online_cpus().unwrap();
        Events(cpus.into_iter().map(|cpu| array.open(cpu, Some(8)).unwrap()).collect())
    }

    /// Returns the events since the last call, by point: the order between CPUs is not kept.
    pub(crate) fn read(&mut self) -> Vec<SocketTrace> {
        let mut traces = Vec::new();
        for ring in &mut self.0 {
            ring.for_each(|event| {
                let PerfEvent::Sample { head, tail } = event else { panic!("events are lost") };
                let bytes = [head, tail].concat();
                let Ok(Event::Socket(trace)) = decode(&bytes) else { panic!("{bytes:?}") };
                traces.push(trace);
            });
        }
        traces.sort_by_key(|trace: &SocketTrace| trace.point);
        traces
    }

    /// Returns the points and addresses of the events since the last call.
    pub(crate) fn addresses(&mut self) -> Vec<(u8, SocketAddr)> {
        let traces = self.read().into_iter();
        traces.map(|trace| (trace.point, SocketAddr::new(trace.address, trace.port))).collect()
    }
}
