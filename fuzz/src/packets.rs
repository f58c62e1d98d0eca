//! Packets at the hooks of tc, by runs of the programs: configuration, hook, policy and packets are chosen by the input.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use datapath_abi::NodeConfig;

use crate::kit::{Datapath, IN, OUT, Peer};
use crate::random::{Choices, Feed, HOOKS, Numbers, configurations, packet, policy};

/// The maximum number of packets of an input.
const PACKETS: usize = 32;
/// The number of configurations.
const NODES: usize = 3;
/// The number of places in the programs, by hash.
pub(crate) const PLACES: usize = 1024;

/// The places that the programs have counted packets at since the engine last looked.
pub(crate) static REACHED: [AtomicU8; PLACES] = [const { AtomicU8::new(0) }; PLACES];

/// The bytes of an input as choices; zeros after its end.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Choices for Bytes<'_> {
    fn below(&mut self, end: usize) -> usize {
        let (choice, rest) = self.0.split_at(self.0.len().min(width(end)));
        self.0 = rest;
        choice.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)) % end
    }
}

/// Returns the number of bytes of a choice.
fn width(end: usize) -> usize {
    if end <= 1 << 8 { 1 } else { 2 }
}

/// The programs with a configuration, loaded once.
struct Node {
    config: NodeConfig,
    datapath: Datapath,
    peer: Peer,
}

impl Node {
    fn new(config: NodeConfig) -> Mutex<Node> {
        let (datapath, peer) = (Datapath::with_pods(&config).unwrap(), Peer::new().unwrap());
        Mutex::new(Node { config, datapath, peer })
    }
}

/// Checks packets against the model of the tests of the datapath. Without root it does nothing.
pub(crate) fn run(data: &[u8]) {
    static LOADED: [OnceLock<Mutex<Node>>; NODES] = [const { OnceLock::new() }; NODES];
    if !test_kit::is_root() {
        return;
    }
    let mut choices = Bytes(data);
    let at = choices.below(NODES);
    let hook = HOOKS[choices.below(HOOKS.len())];
    let node = LOADED[at].get_or_init(|| Node::new(configurations()[at].1));
    let mut node = node.lock().unwrap_or_else(PoisonError::into_inner);
    let Node { config, datapath, peer } = &mut *node;
    let rows = [OUT, IN].map(|direction| policy(direction, &mut choices));
    let mut feed = Feed::new(datapath, peer, config, hook, rows).unwrap();
    for _ in 0..PACKETS {
        if choices.0.is_empty() {
            break;
        }
        feed.packet(&packet(&mut choices)).unwrap();
    }
    let (_, places) = feed.end().unwrap();
    reach(places);
}

/// Records places that have counted packets.
pub(crate) fn reach(places: BTreeSet<[u8; 8]>) {
    for place in places {
        // FNV-1a.
        let hash = place.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        REACHED[hash as usize % PLACES].store(1, Ordering::Relaxed);
    }
}

/// Records the choices of a seed.
pub(crate) struct Recorder(pub(crate) Numbers, pub(crate) Vec<u8>);

impl Choices for Recorder {
    fn below(&mut self, end: usize) -> usize {
        let choice = self.0.below(end);
        self.1.extend(&choice.to_le_bytes()[..width(end)]);
        choice
    }
}

/// Returns inputs with each hook and each configuration, with policies and packets as the tests of the datapath have them.
pub fn seeds() -> Vec<Vec<u8>> {
    const PACKETS: usize = 6;
    let seed = |number: usize| {
        let mut recorder = Recorder(Numbers::new(number as u64), Vec::new());
        recorder.1.extend([(number % NODES) as u8, (number % HOOKS.len()) as u8]);
        for direction in [OUT, IN] {
            policy(direction, &mut recorder);
        }
        (0..PACKETS).for_each(|_| drop(packet(&mut recorder)));
        recorder.1
    };
    (0..NODES * HOOKS.len()).map(seed).collect()
}
