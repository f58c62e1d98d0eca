//! Random headers, options, fragments and cut packets at XDP, with a service and with translations of earlier packets: in
//! each form in which packets leave.

use crate::entry::*;
use crate::l4::*;
use crate::packet::eth;
use crate::random::Numbers;
use crate::random_xdp::{Counts, Frontend, Pair, Way, ensure_translated};
use crate::service::*;
use anyhow::{Result, ensure};
use std::net::SocketAddr;

/// Packets of a kind of frontend.
const ROUNDS: usize = 150;
const SEEDS: u64 = 2;

/// No run is aborted, each drop is counted with its reason, a packet that is passed on is unchanged or translated, of one
/// that leaves nothing is written but the fields of a translation and the header that its way needs, none is served that
/// the prefilter or the frontend denies, and all that XDP decides about is what becomes of the packet without XDP.
#[test]
fn random_packets_at_xdp_have_the_fate_of_those_without_xdp() -> Result<()> {
    test_kit::require_root!();
    let (slice, mut failures) = (test_kit::Slice::of(SEEDS), Vec::new());
    for seed in (0..SEEDS).filter(|seed| slice.covers(*seed)) {
        for way in Way::ALL {
            for (family, protocol) in
                FAMILIES.into_iter().zip(if seed % 2 == 0 { [TCP, UDP] } else { [UDP, TCP] })
            {
                if let Err(error) = feed(way, family, protocol, seed) {
                    failures.push(format!("{way:?} {family:?} {protocol}, seed {seed}: {error:#}"));
                }
            }
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

fn feed(way: Way, family: Family, protocol: u8, seed: u64) -> Result<()> {
    let (mut numbers, mut pair) = (Numbers::new(seed), Pair::new(way, family, protocol)?);
    let mut all = Counts::default();
    for frontend in Frontend::ALL {
        pair.renew(frontend)?;
        let mut rounds = 0..ROUNDS;
        pair.feed(&mut numbers, |_| rounds.next().is_some())?;
        pair.end()?;
        let counts = pair.counts;
        let denies = matches!(frontend, Frontend::ClusterIp | Frontend::ForListed | Frontend::ForUnlisted);
        ensure!((counts.denied > 0) == denies, "{frontend:?} {counts:?}");
        let serves = frontend != Frontend::ClusterIp;
        ensure!((counts.local > 0) == serves, "{frontend:?} {counts:?}");
        all.left += counts.left;
        all.local += counts.local;
        all.sent += counts.sent;
        all.replies += counts.replies;
        all.banned += counts.banned;
    }
    let enough = all.left > 200 && all.local > 20 && all.sent > 20 && all.banned > 20;
    ensure!(enough && (all.replies > 5) == way.has_replies(), "{all:?}");
    Ok(())
}

/// The control: a check that finds nothing would pass anything.
#[test]
fn a_byte_outside_of_the_translation_is_found() {
    let family = Family::V4;
    let packet = segment(SocketAddr::new(family.outside(), 1), family.vip(), TCP, SYN);
    let frame = eth(DEVICE, ROUTER_MAC, 0x0800, &packet);
    let differing = |at: usize| {
        let mut out = frame.clone();
        out[at] ^= 1;
        ensure_translated(&frame, &out, false).is_err()
    };
    let found: Vec<usize> = (0..54).filter(|at| differing(*at)).collect();
    let expected: Vec<usize> = [12..22, 23..24, 38..40, 42..50, 52..54].into_iter().flatten().collect();
    assert_eq!(found, expected);
}
