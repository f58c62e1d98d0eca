//! Packets of VLANs at the devices below them.

use crate::kit::*;
use crate::l4::*;
use crate::nodeport::*;
use crate::service::{FAMILIES, Family, Node, seen_at};
use anyhow::Result;
use datapath_abi::{NodeConfig, direction, drop, vlan_filter};
use datapath_object::{FROM_NETDEV, TO_NETDEV};

const ALLOWED: u16 = 100;
const OTHER: u16 = 101;

fn config(filter: u8) -> NodeConfig {
    let mut config = NodeConfig { nodeport: 1, vlan_filter: filter, ..host_routing_config() };
    config.vlans[NodeConfig::VLANS - 1] = ALLOWED;
    config
}

#[test]
fn packets_of_listed_vlans_pass_untouched_and_others_are_dropped() -> Result<()> {
    test_kit::require_root!();
    let tagger = Tagger::new()?;
    for family in FAMILIES {
        let mut node = Node::frontend(&config(vlan_filter::LISTED), family, TCP, &[family.b(BACKEND_PORT)])?;
        let packet = from_network(family.remote_client(), family.vip(), TCP, SYN);
        for (program, towards) in [(FROM_NETDEV, direction::INGRESS), (TO_NETDEV, direction::EGRESS)] {
            // The upper bits of a tag are its priority.
            for tag in [ALLOWED, 0xe000 | ALLOWED] {
                let outcome = tagger.run(&node.datapath, program, tag, &packet)?;
                assert_eq!((outcome.verdict, untagged(&outcome)), (PASS, packet.clone()), "{tag:#x}");
            }
            let datapath = &mut node.datapath;
            let run = |datapath: &Datapath| tagger.run(datapath, program, OTHER, &packet);
            assert_eq!(datapath.dropped(towards, run)?, Some(drop::VLAN_FILTERED));
        }
        // A priority without a VLAN is a packet of the device's own network, as is one without a tag.
        for outcome in [tagger.run(&node.datapath, FROM_NETDEV, 0x6000, &packet)?, node.arrive(&packet)?] {
            let seen = seen(&untagged(&outcome));
            assert_eq!((outcome.verdict, seen.destination), (REDIRECT, family.b(BACKEND_PORT)));
        }
    }
    Ok(())
}

#[test]
fn all_vlans_pass_if_the_id_zero_is_listed() -> Result<()> {
    test_kit::require_root!();
    let tagger = Tagger::new()?;
    let family = Family::V4;
    let packet = from_network(family.remote_client(), family.vip(), TCP, SYN);
    for (filter, verdict) in [(vlan_filter::ALL, PASS), (vlan_filter::OFF, REDIRECT)] {
        let node = Node::frontend(&config(filter), family, TCP, &[family.b(BACKEND_PORT)])?;
        let outcome = tagger.run(&node.datapath, FROM_NETDEV, OTHER, &packet)?;
        assert_eq!(outcome.verdict, verdict, "{filter}");
        assert_eq!(seen_at(&node.arrive(&packet)?).destination, family.b(BACKEND_PORT), "without a tag");
    }
    Ok(())
}

/// The frame of an outcome without the tag, which the kernel may have put back.
fn untagged(outcome: &Outcome) -> Vec<u8> {
    let mut frame = outcome.packet.clone();
    if frame[12..14] == [0x81, 0] {
        frame.drain(12..16);
    }
    frame
}
