//! A packet with its context, and its run through a program.

use anyhow::Result;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use datapath_abi::mark;

use super::IFINDEX;

/// The context a packet comes with.
#[derive(Clone, Copy, Default)]
pub(crate) struct Incoming {
    pub(crate) mark: u32,
    /// Zero: no interface received the packet.
    pub(crate) ingress_ifindex: u32,
    /// The interface it is at, if not [`IFINDEX`].
    pub(crate) at: Option<u32>,
    pub(crate) cb: [u32; 5],
    /// The payload of each segment that a device makes of it; zero for a packet that is sent as it is.
    pub(crate) gso_size: u32,
}

impl Incoming {
    /// A packet that the host's stack made, with the mark of the agent's rule in the output hook and a bit of others.
    pub(crate) fn of_host() -> Self {
        Self { mark: 0x4000 | mark::HOST, ..Self::default() }
    }
}

/// The outcome of a packet.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) verdict: u32,
    pub(crate) packet: Vec<u8>,
    pub(crate) mark: u32,
    pub(crate) cb: [u32; 5],
}

pub(super) fn run_program(program: &SchedClassifier, packet: &[u8], incoming: Incoming) -> Result<Outcome> {
    let context = context(incoming);
    let (mut packet_out, mut context_out) = (vec![0; 2048], vec![0; context.len()]);
    let mut options = TestRunOptions::new();
    options.data_in = Some(packet);
    options.data_out = Some(&mut packet_out);
    options.ctx_in = Some(&context);
    options.ctx_out = Some(&mut context_out);
    let result = program.test_run(options)?;
    packet_out.truncate(result.data_size_out as usize);
    let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| context_out[at + byte]));
    let cb = [0, 1, 2, 3, 4].map(|slot| word(CB + 4 * slot));
    Ok(Outcome { verdict: result.return_value, packet: packet_out, mark: word(MARK), cb })
}

/// Offsets in `struct __sk_buff` (linux/bpf.h).
const MARK: usize = 8;
const INGRESS_IFINDEX: usize = 36;
const IFINDEX_FIELD: usize = 40;
const CB: usize = 48;
const GSO_SIZE: usize = 176;
const CONTEXT_LEN: usize = 192;

/// The context a packet comes with, as the kernel takes it.
pub(crate) fn context(incoming: Incoming) -> Vec<u8> {
    let mut context = vec![0; CONTEXT_LEN];
    let mut put = |at: usize, value: u32| context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(MARK, incoming.mark);
    put(INGRESS_IFINDEX, incoming.ingress_ifindex);
    put(GSO_SIZE, incoming.gso_size);
    put(IFINDEX_FIELD, incoming.at.unwrap_or(IFINDEX));
    for (slot, value) in incoming.cb.into_iter().enumerate() {
        put(CB + 4 * slot, value);
    }
    context
}
