//! Packets at a device with XDP beside one without, by runs of the programs: the way to other nodes, the frontend and packets
//! are chosen by the input.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::l4::{TCP, UDP};
use crate::packets::{Bytes, Recorder, reach};
use crate::random::{Choices, Numbers};
use crate::random_xdp::{Frontend, Pair, Way, random};
use crate::service::Family;

/// The maximum number of packets of an input.
const PACKETS: usize = 32;
/// The number of pairs of nodes.
const PAIRS: usize = Way::ALL.len() * PROTOCOLS.len();
/// The protocols of services.
const PROTOCOLS: [(Family, u8); 2] = [(Family::V4, TCP), (Family::V6, UDP)];

/// Returns the properties of a pair of nodes.
fn properties(pair: usize) -> (Way, Family, u8) {
    let (family, protocol) = PROTOCOLS[pair / Way::ALL.len()];
    (Way::ALL[pair % Way::ALL.len()], family, protocol)
}

/// Checks that the same becomes of packets with XDP and without it. Without root it does nothing.
pub(crate) fn run(data: &[u8]) {
    static LOADED: [OnceLock<Mutex<Pair>>; PAIRS] = [const { OnceLock::new() }; PAIRS];
    if !test_kit::is_root() {
        return;
    }
    let mut choices = Bytes(data);
    let at = choices.below(PAIRS);
    let (way, family, protocol) = properties(at);
    let pair = LOADED[at].get_or_init(|| Pair::new(way, family, protocol).unwrap().into());
    let mut pair = pair.lock().unwrap_or_else(PoisonError::into_inner);
    pair.renew(Frontend::ALL[choices.below(Frontend::ALL.len())]).unwrap();
    let mut left = PACKETS;
    let goes_on = |choices: &Bytes<'_>| {
        left = left.saturating_sub(1);
        left > 0 && !choices.0.is_empty()
    };
    pair.feed(&mut choices, goes_on).unwrap();
    reach(pair.end().unwrap());
}

/// Returns inputs with each way, and with each kind of frontend, with packets as the tests of the datapath have them.
pub fn seeds() -> Vec<Vec<u8>> {
    const PACKETS: usize = 6;
    let seed = |number: usize| {
        let (pair, frontend) = (number % Way::ALL.len(), number % Frontend::ALL.len());
        let (way, family, protocol) = properties(pair);
        let mut recorder = Recorder(Numbers::new(number as u64), vec![pair as u8, frontend as u8]);
        (0..PACKETS).for_each(|_| drop(random(&mut recorder, way, family, protocol)));
        recorder.1
    };
    (0..2 * Frontend::ALL.len()).map(seed).collect()
}
