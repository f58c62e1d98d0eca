//! Flags of lookups of routes.

use crate::kit::*;
use crate::l4::*;
use crate::nodeport_remote::{Entry, native};
use crate::service::*;
use crate::uplink::{UPLINK, routed};
use crate::xdp;
use anyhow::Result;
use datapath_abi::{NodeConfig, before_services, direction, drop, fib_flag};
use datapath_object::FROM_CONTAINER;
use std::net::SocketAddr;

/// A flag that no kernel has: lookups with it fail.
const UNKNOWN: u8 = 1 << 7;

/// Scenario 90: lookups have the node's flags where the kernel resolves next hops when it sends, and none at XDP, which
/// writes their MAC addresses itself.
#[test]
fn lookups_of_routes_have_the_flags_of_the_node() -> Result<()> {
    test_kit::require_root!();
    let ns = routed()?;
    for family in FAMILIES {
        for (fib_flags, works) in [(0, true), (fib_flag::SKIP_NEIGHBOUR, true), (UNKNOWN, false)] {
            let why = if works { None } else { Some(drop::FIB_LOOKUP_FAILED) };
            let mut entry = Entry::new(&NodeConfig { fib_flags, ..native() }, family, UDP)?;
            let request = entry.request(entry.client(41_000));
            assert_eq!(entry.dropped(direction::EGRESS, &request)?, why, "{family:?} {fib_flags}");

            let mut datapath = Datapath::with_pods(&NodeConfig { fib_flags, ..host_routing_config() })?;
            datapath.add_device(UPLINK)?;
            let outside = SocketAddr::new(family.outside(), 443);
            let sent = frame(A.node_mac, A.mac, &segment(family.client(), outside, UDP, 0));
            let run = |datapath: &Datapath| ns.run(|| datapath.run(FROM_CONTAINER, &sent));
            assert_eq!(datapath.dropped(direction::EGRESS, run)?, why, "{family:?} {fib_flags}");

            let before_services = before_services::XDP;
            let config = NodeConfig { fib_flags, before_services, ..native() };
            let entry = xdp::Entry::remote(&config, family, UDP)?;
            entry.sends_back(&entry.request(0))?;
        }
    }
    Ok(())
}
