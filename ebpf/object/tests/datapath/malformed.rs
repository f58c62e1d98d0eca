//! Random headers, options, chains of extension headers, fragments and cut packets at every hook of tc.

use anyhow::{Context as _, Result, ensure};
use datapath_abi::NodeConfig;
use datapath_object::FROM_CONTAINER;

use crate::kit::*;
use crate::random::{Counts, Feed, HOOKS, Numbers, configurations, packet, policy};

const ROUNDS: usize = 2000;
/// Policies of sender and receiver in the rounds.
const POLICIES: usize = 40;
const SEEDS: u64 = 8;

/// No run fails, each drop is counted with its reason, nothing but forwarding's fields is written, a pod's packet that
/// cannot be parsed goes nowhere, and what the policy of the sender or of the receiver denies does not arrive.
#[test]
fn random_packets_are_forwarded_unchanged_or_counted() -> Result<()> {
    test_kit::require_root!();
    let slice = test_kit::Slice::of(SEEDS);
    for seed in (0..SEEDS).filter(|seed| slice.covers(*seed)) {
        for (name, config) in configurations() {
            let (mut datapath, peer) = (Datapath::with_pods(&config)?, Peer::new()?);
            for hook in HOOKS {
                feed(&mut datapath, &peer, &config, hook, seed)
                    .with_context(|| format!("{name}, seed {seed}, {hook}"))?;
            }
        }
    }
    Ok(())
}

/// Gives a hook the packets of a seed; those of the overlay have the tunnel's key with an identity.
fn feed(
    datapath: &mut Datapath,
    peer: &Peer,
    config: &NodeConfig,
    hook: &'static str,
    seed: u64,
) -> Result<()> {
    let mut numbers = Numbers::new(seed);
    let mut all = Counts::default();
    for round in 0..POLICIES {
        // One of the pods, both or none have a policy.
        let rows = [(OUT, 2), (IN, 1)].map(|(direction, bit)| match round & bit {
            0 => ALLOW_ALL.to_vec(),
            _ => policy(direction, &mut numbers),
        });
        let mut feed = Feed::new(datapath, peer, config, hook, rows)?;
        for _ in 0..ROUNDS / POLICIES {
            feed.packet(&packet(&mut numbers))?;
        }
        let (counts, _) = feed.end()?;
        all.passed += counts.passed;
        all.cut += counts.cut;
        all.denied += counts.denied;
        all.denied_to_sender += counts.denied_to_sender;
    }
    let denied = all.denied > 100 && all.denied_to_sender > 100;
    ensure!(hook != FROM_CONTAINER || all.cut > 20 && all.passed > 40 && denied, "{all:?}");
    Ok(())
}
