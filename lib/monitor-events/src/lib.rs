//! Events of the datapath and of the agent: their bytes, the monitor's stream of them, and the lines that it prints.
//!
//! **Owns** nothing: pure functions without kernel, clock and sockets, which the agent's monitor and the command
//! `monitor` share. [`decode()`] reads an event of any version (drop, trace, policy verdict, debug message, capture,
//! socket trace, agent notification, record of a proxy); [`Printer`] formats it as `cilium-dbg monitor` does, by line,
//! with all layers of the packet, or as JSON; [`gob`] has the stream of `monitor1_2.sock`, [`record`] the records of
//! proxies.
//!
//! All functions are total: any bytes give an event or an error. Bytes of packets are printed as numbers and addresses
//! only, text of the agent without control characters, so that no pod can write to the operator's terminal.
//!
//! ```
//! use monitor_events::{Filter, Format, Printer};
//!
//! let printer = Printer { format: Format::Brief, ..Printer::default() };
//! // A drop of version 3 without packet bytes.
//! let mut event = vec![1, 133, 0xb8, 0x07];
//! event.resize(48, 0);
//! (event[14], event[30]) = (3, 2);
//! let line = printer.event(&event, 0, &Filter::default()).unwrap();
//! assert!(line.starts_with("xx drop (Policy denied) flow 0x0 to endpoint 0, ifindex 0, file bpf_lxc.c:0, "));
//! ```
//!
//! **Differences from Cilium**: ids of debug messages 66 to 68 have their own texts, packets of drops are printed by
//! layer with `-vv` and as hexadecimal numbers with `--hex` alone.

#![forbid(unsafe_code)]

mod decode;
mod format;
pub mod gob;
pub mod notification;
pub mod packet;
pub mod record;

pub use decode::{
    ACCESS_LOG, AGENT, Agent, Capture, Debug, DecodeError, Drop, Event, SocketTrace, Trace, Verdict, decode,
};
pub use format::{Filter, Format, Kind, LinkNames, PolicyTexts, Printer};
