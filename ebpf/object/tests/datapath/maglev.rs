//! Maglev: a flow has the backend at the position of its hash, on every node.

use crate::kit::*;
use crate::l4::*;
use crate::nodeport::{CLIENT_PORT, NODE_PORT, from_network};
use crate::service::*;
use anyhow::Result;
use datapath_abi::{MAGLEV_TEMPLATE_SIZE, NodeConfig, lb_algorithm, lb_flag};
use std::collections::BTreeSet;
use std::net::SocketAddr;

const POSITIONS: usize = MAGLEV_TEMPLATE_SIZE as usize;
/// The port of the first backend.
const FIRST_PORT: u16 = 9000;
/// The last words of the default of `bpf-lb-maglev-hash-seed`.
const SEEDS: [u32; 2] = [0x71dc_da46, 0x9250_5688];

const RANDOM: u32 = lb_algorithm::RANDOM << lb_algorithm::SHIFT;
const MAGLEV: u32 = lb_algorithm::MAGLEV << lb_algorithm::SHIFT;

fn config(maglev: u8, algorithm_annotation: u8) -> NodeConfig {
    let [maglev_seed_ipv4, maglev_seed_ipv6] = SEEDS;
    NodeConfig {
        nodeport: 1,
        maglev,
        algorithm_annotation,
        maglev_table_size: MAGLEV_TEMPLATE_SIZE,
        maglev_seed_ipv4,
        maglev_seed_ipv6,
        ..host_routing_config()
    }
}

/// A node with a service of this number of backends, without a table.
fn node(config: &NodeConfig, family: Family, protocol: u8, backends: usize) -> Result<Node> {
    let backends: Vec<SocketAddr> = (0..backends).map(|at| family.b(FIRST_PORT + at as u16)).collect();
    Node::frontend(config, family, protocol, &backends)
}

impl Node {
    /// Returns the index of the backend of a client outside, at a device.
    fn backend_of(&self, family: Family, protocol: u8, port: u16) -> Result<usize> {
        let client = SocketAddr::new(family.outside(), port);
        let outcome = self.arrive(&from_network(client, family.vip(), protocol, SYN))?;
        let seen = seen_at(&outcome);
        assert_eq!((outcome.verdict, seen.checksums), (REDIRECT, true), "{family:?} {protocol} {port}");
        Ok(usize::from(seen.destination.port() - FIRST_PORT))
    }

    /// Returns the backends of many clients outside.
    fn backends_of(&self, family: Family, ports: std::ops::Range<u16>) -> Result<Vec<usize>> {
        ports.map(|port| self.backend_of(family, TCP, port)).collect()
    }
}

/// The positions are those of the hash that Cilium's programs compute, by another implementation of Bob Jenkins' lookup3.
#[test]
fn a_flow_has_the_backend_at_the_position_of_its_hash() -> Result<()> {
    test_kit::require_root!();
    for (family, protocol, positions) in [
        (Family::V4, TCP, [117, 122, 82]),
        (Family::V4, UDP, [175, 187, 32]),
        (Family::V6, TCP, [235, 59, 56]),
        (Family::V6, UDP, [246, 242, 133]),
    ] {
        let of_table = |config: NodeConfig| -> Result<Vec<usize>> {
            let mut node = node(&config, family, protocol, POSITIONS)?;
            node.set_table(|position| position)?;
            let ports = [CLIENT_PORT, CLIENT_PORT + 1, 55555];
            ports.into_iter().map(|port| node.backend_of(family, protocol, port)).collect()
        };
        assert_eq!(of_table(config(1, 0))?, positions, "{family:?} {protocol}");
        if protocol == TCP {
            // Another node, and the control: another seed has other positions.
            assert_eq!(of_table(config(1, 1))?, positions, "{family:?}");
            let seed = NodeConfig { maglev_seed_ipv4: 1, maglev_seed_ipv6: 1, ..config(1, 0) };
            assert_ne!(of_table(seed)?, positions, "{family:?}");
        }
    }
    Ok(())
}

/// Only flows of the backend that leaves get another one. With random backends most flows do.
#[test]
fn flows_of_other_backends_stay_when_one_leaves() -> Result<()> {
    test_kit::require_root!();
    const BACKENDS: usize = 5;
    const FLOWS: std::ops::Range<u16> = 20000..20200;
    for (family, maglev) in [(Family::V4, 1), (Family::V6, 1), (Family::V4, 0)] {
        let flows = |leaves: bool| -> Result<Vec<usize>> {
            let mut node = node(&config(maglev, 0), family, TCP, BACKENDS)?;
            let others = move |position| (position / BACKENDS) % (BACKENDS - 1);
            node.set_table(move |position| match position % BACKENDS {
                last if leaves && last == BACKENDS - 1 => others(position),
                stays => stays,
            })?;
            node.backends_of(family, FLOWS)
        };
        let (before, after) = (flows(false)?, flows(true)?);
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        if maglev == 0 {
            assert!(moved > 100, "the control: {moved}");
            continue;
        }
        let of_last = before.iter().filter(|backend| **backend == BACKENDS - 1).count();
        assert!((20..70).contains(&of_last), "{family:?}: {of_last} of 200, and not about a fifth");
        assert_eq!(moved, of_last, "{family:?}");
    }
    Ok(())
}

/// Scenario 56: a client with affinity has one backend, also before it is remembered: its port does not count.
#[test]
fn all_ports_of_a_client_with_affinity_have_one_position() -> Result<()> {
    test_kit::require_root!();
    for (family, position) in [(Family::V4, 112), (Family::V6, 245)] {
        let mut node = node(&config(1, 0), family, TCP, POSITIONS)?;
        node.set_table(|position| position)?;
        // No client is remembered for no time at all.
        node.set_first_word(NODE_PORT | lb_flag::SESSION_AFFINITY, 0)?;
        assert_eq!(node.backends_of(family, 30000..30003)?, [position; 3], "{family:?}");
        node.set_first_word(NODE_PORT, 0)?;
        let without: BTreeSet<usize> = node.backends_of(family, 30003..30013)?.into_iter().collect();
        assert!(without.len() > 5, "{family:?}: the control");
    }
    Ok(())
}

/// Without a table, or with one that names a removed backend, a random backend is chosen.
#[test]
fn a_service_without_a_table_has_random_backends() -> Result<()> {
    test_kit::require_root!();
    for family in FAMILIES {
        let mut node = node(&config(1, 0), family, TCP, 3)?;
        let reached = |node: &Node, ports| -> Result<BTreeSet<usize>> {
            Ok(node.backends_of(family, ports)?.into_iter().collect())
        };
        assert_eq!(reached(&node, 20000..20050)?, BTreeSet::from([0, 1, 2]), "{family:?}");
        node.set_table(|_| 1)?;
        assert_eq!(reached(&node, 21000..21010)?, BTreeSet::from([1]), "{family:?}: the control");
        node.remove_backend(1)?;
        assert_eq!(reached(&node, 22000..22050)?, BTreeSet::from([0, 2]), "{family:?}");
    }
    Ok(())
}

/// A service's algorithm is that of its annotation if services may choose, else the node's; for pods it is random, as only
/// an annotation gives their services tables.
#[test]
fn services_choose_their_algorithm() -> Result<()> {
    test_kit::require_root!();
    const UNKNOWN: u32 = 77 << lb_algorithm::SHIFT;
    // By configuration: first word, table at the device, table at a pod.
    for (maglev, annotation, family, cases) in [
        (0, 0, Family::V4, &[(MAGLEV, false, false)][..]),
        (0, 1, Family::V6, &[(MAGLEV, true, true), (0, false, false)]),
        (1, 0, Family::V4, &[(RANDOM, true, false)]),
        (1, 1, Family::V6, &[(RANDOM, false, false), (0, true, false), (UNKNOWN, true, false)]),
    ] {
        let mut node = node(&config(maglev, annotation), family, TCP, 4)?;
        // Only the table is that one-sided.
        node.set_table(|_| 3)?;
        for (ports, (first_word, at_device, at_pod)) in (20..).map(|n| n * 1000).zip(cases) {
            let case = format!("{family:?} {maglev} {annotation} {first_word:#x}");
            node.set_first_word(NODE_PORT, *first_word)?;
            let reached = node.backends_of(family, ports..ports + 30)?;
            assert_eq!(reached.into_iter().all(|backend| backend == 3), *at_device, "{case}");
            let mut by_table = true;
            for port in ports..ports + 30 {
                let client = SocketAddr::new(family.client().ip(), port);
                let packet = frame(A.node_mac, A.mac, &segment(client, family.vip(), TCP, SYN));
                let seen = seen_at(&node.datapath.sends(&packet)?);
                by_table &= seen.destination.port() == FIRST_PORT + 3;
            }
            assert_eq!(by_table, *at_pod, "{case}");
        }
    }
    Ok(())
}

/// The verifier admits no table that is smaller than the constant: the control of the check of positions.
#[test]
fn a_table_of_another_size_is_refused_with_the_programs() {
    test_kit::require_root!();
    let larger = NodeConfig { maglev_table_size: MAGLEV_TEMPLATE_SIZE + 1, ..config(1, 0) };
    assert!(Datapath::load(&config(1, 0)).is_ok());
    assert!(Datapath::load(&larger).is_err());
}
