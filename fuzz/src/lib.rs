//! A fuzz target for every parser of untrusted input.
//!
//! A [`Target`] takes any bytes. It panics when the parser does, and when a property does not hold: a parsed value
//! survives a round trip, two ways to one result agree, refused input changes nothing. The engine around them is the
//! workspace `fuzz/engine` (`make fuzz`); the tests replay the inputs in `fuzz/corpus` without it.
//!
//! | target | source of the input | code under test |
//! |---|---|---|
//! | `http` | processes that may open the socket | the server with its layers, the handlers of the cells over fakes of the kernel |
//! | `bodies` | the same | the models of all operations |
//! | `cni` | the container runtime | variables, network configuration, results of other plugins |
//! | `config` | the operator | flags, variables, file and folder of options |
//! | `filter` | the operator | the option `labels` |
//! | `manifests` | processes with write access to the cluster's folder | documents, objects of every kind |
//! | `objects` | an API server | the types of all kinds, their schemas, YAML |
//! | `policies` | processes with write access to the cluster's folder | policies, from the text to rows and verdicts |
//! | `lb_state` | processes with write access to the services' file | services, slices, frontends, backends |
//! | `records` | a previous agent, or Cilium's | records of endpoints, queued deletions, files of identities |
//! | `tables` | processes that may open the socket or the shell | commands on tables, keys of indexes |
//! | `answers` | the API server, and proxies before it | lists and events, in chunks |
//! | `names` | all of these | short texts: addresses, labels, names, options, durations |
//! | `netlink` | the kernel | packets, attributes, responses to requests |
//! | `hubble` | clients of Hubble, and its options | requests of gRPC, filters, field masks, lines of flows |
//! | `envoy` | an Envoy, and an API server | requests of xDS, messages of the access log, Envoy configurations |
//! | `dns` | pods, and the servers that they ask | queries and answers through the DNS proxy, over UDP and TCP |
//! | `packets` | pods and the network | the programs of tc, by test runs: needs root |
//! | `xdp` | the network | the programs of XDP, by test runs, each packet beside a node without them: needs root |
//! | `events` | pods, by their packets; the server of the monitor's socket | events, the stream, the lines that are printed |

#[path = "../../ebpf/object/tests/datapath/entry.rs"]
#[allow(dead_code, reason = "a part of what the tests need")]
mod entry;
#[path = "../../ebpf/object/tests/datapath/kit.rs"]
#[allow(dead_code, reason = "a part of what the tests need")]
mod kit;
#[path = "../../ebpf/object/tests/datapath/l4.rs"]
#[allow(dead_code, reason = "a part of what the tests need")]
mod l4;
#[path = "../../ebpf/object/tests/datapath/packet.rs"]
#[allow(dead_code, reason = "a part of what the tests need")]
mod packet;
#[path = "../../ebpf/object/tests/datapath/random.rs"]
#[allow(dead_code, reason = "a part of what the tests need")]
mod random;
#[path = "../../ebpf/object/tests/datapath/random_xdp.rs"]
#[allow(dead_code, reason = "a part of what the tests need")]
mod random_xdp;
#[path = "../../ebpf/object/tests/datapath/service.rs"]
#[allow(dead_code, reason = "a part of what the tests need")]
mod service;
#[path = "../../ebpf/object/tests/datapath/uplink.rs"]
#[allow(dead_code, reason = "a part of what the tests need")]
mod uplink;

mod answers;
mod bodies;
mod cni;
mod config;
mod dns;
mod envoy;
mod events;
mod filter;
mod http;
mod hubble;
mod input;
mod lb_state;
mod manifests;
mod names;
mod netlink;
mod objects;
mod packets;
mod policies;
mod records;
mod tables;
mod xdp;

/// A parser with its properties.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is also that of its folder of inputs.
    pub name: &'static str,
    /// The maximum length of useful inputs.
    pub longest: usize,
    /// Checks one input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 20] = [
    Target { name: "http", longest: 2048, run: http::run },
    Target { name: "bodies", longest: 2048, run: bodies::run },
    Target { name: "cni", longest: 2048, run: cni::run },
    Target { name: "config", longest: 1024, run: config::run },
    Target { name: "filter", longest: 256, run: filter::run },
    Target { name: "manifests", longest: 4096, run: manifests::run },
    Target { name: "objects", longest: 4096, run: objects::run },
    Target { name: "policies", longest: 4096, run: policies::run },
    Target { name: "lb_state", longest: 4096, run: lb_state::run },
    Target { name: "records", longest: 4096, run: records::run },
    Target { name: "tables", longest: 1024, run: tables::run },
    Target { name: "answers", longest: 2048, run: answers::run },
    Target { name: "names", longest: 256, run: names::run },
    Target { name: "netlink", longest: 1024, run: netlink::run },
    Target { name: "hubble", longest: 512, run: hubble::run },
    Target { name: "events", longest: 512, run: events::run },
    Target { name: "envoy", longest: 4096, run: envoy::run },
    Target { name: "dns", longest: 2048, run: dns::run },
    Target { name: "packets", longest: 1024, run: packets::run },
    Target { name: "xdp", longest: 1024, run: xdp::run },
];

pub use packets::seeds as seeds_of_packets;
pub use xdp::seeds as seeds_of_xdp;

/// The number of places in programs of the kernel that inputs may reach.
pub const PLACES: usize = packets::PLACES;

/// Returns whether an input has reached a place in programs of the kernel since the last call for this place: coverage
/// that no instrumentation sees.
#[must_use]
pub fn has_reached(place: usize) -> bool {
    packets::REACHED[place].swap(0, std::sync::atomic::Ordering::Relaxed) != 0
}

/// Returns the target of this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
