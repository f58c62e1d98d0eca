//! Shared parts of tests: sandboxes of namespaces, packets, counted skips.
//!
//! **Owns**: nothing of the machine. A [`Sandbox`] gives a test its own network
//! and mount namespace, BPF file system, run and state folder, and on request a
//! cgroup; all of it goes when the value is dropped.
//! **Needs**: root and iproute2 for sandboxes; [`require_root!`] turns their
//! absence into a counted skip.
//! **Provides**: [`Sandbox`], [`NetNs`], [`UdpFlow`] and [`TcpFlow`] (numbered
//! packets), [`FragmentedDatagram`] (IPv6 fragments from any source address), [`PacketSocket`] (frames byte for byte),
//! [`StallFlow`] (packets with times), [`Traced`] (a process killed
//! after its k-th write), [`Keeper`] (servers in a namespace of their own that end
//! with the test's process), [`wait_until`], [`MachineState`] (nothing outside was
//! touched), [`skip!`], [`Authority`] (certificates), [`Slice`] (the part of an exhaustive test that a run covers).
//!
//! Namespaces belong to threads: the thread that makes a sandbox is inside it
//! until the drop, and so are threads, processes and runtimes that it starts.
//!
//! ```no_run
//! use test_kit::{Sandbox, UdpFlow};
//!
//! let sandbox = Sandbox::new().unwrap();
//! let pod = sandbox.netns("pod").unwrap();
//! sandbox.host().veth("host0", &pod, "eth0").unwrap();
//! sandbox.host().ip("addr add 10.0.0.1/24 dev host0").unwrap();
//! pod.ip("addr add 10.0.0.2/24 dev eth0").unwrap();
//! let flow = UdpFlow::start(sandbox.host(), &pod, "10.0.0.2".parse().unwrap()).unwrap();
//! std::thread::sleep(std::time::Duration::from_millis(100));
//! let report = flow.stop();
//! assert!(report.is_perfect(), "{report:?}");
//! ```

mod certificates;
mod container;
mod fragments;
mod keeper;
mod machine;
mod memory_group;
mod netns;
mod packet_socket;
mod process;
mod sandbox;
mod skip;
mod slice;
mod stall;
mod sys;
mod tcp;
mod trace;
mod udp;
mod wait;

pub use certificates::{Authority, Identity, Valid};
pub use container::{Container, Mount, Propagation};
pub use fragments::FragmentedDatagram;
pub use keeper::Keeper;
pub use machine::MachineState;
pub use netns::NetNs;
pub use packet_socket::PacketSocket;
pub use process::Process;
pub use sandbox::{Sandbox, SandboxOptions};
pub use skip::{SkipValue, has_command, is_root, record_skip};
pub use slice::Slice;
pub use stall::{StallFlow, StallReport};
pub use sys::receive_buffer;
pub use tcp::{TcpFlow, TcpReport};
pub use trace::{Traced, Write};
pub use udp::{UdpFlow, UdpReport};
pub use wait::{free_port, try_wait_until, wait_until};
