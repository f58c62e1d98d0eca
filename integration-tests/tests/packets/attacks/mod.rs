//! Attacks on the datapath by frames of a pod or the world, each with the verdict of Cilium's semantics, and a
//! legitimate twin.

mod arena;
mod defects;
mod fragments;
mod icmp;
mod limits;
mod neighbours;
mod spoofed;
mod windows;

use arena::{Arena, FRIENDS, HOSTS, Place};
use test_kit::require_root;

#[test]
fn forged_sources_are_dropped() {
    require_root!();
    let mut arena = Arena::new();
    let cases = spoofed::sources(&arena);
    arena.check(&cases);
    // The control of packets forged as the host's: the host itself reaches its port and no other.
    for ipv6 in [false, true] {
        assert!(arena.host_reaches(Place::Victim, ipv6, HOSTS), "{}", arena.node.log());
        assert!(!arena.host_reaches(Place::Victim, ipv6, FRIENDS));
    }
}

#[test]
fn destinations_of_nobody_and_everybody_reach_no_pod() {
    require_root!();
    let mut arena = Arena::new();
    let cases = spoofed::destinations(&arena);
    arena.check(&cases);
}

#[test]
fn link_layers_marks_and_tunnels_give_no_rights() {
    require_root!();
    let mut arena = Arena::new();
    let mut cases = spoofed::link_layer(&arena);
    cases.extend(spoofed::encapsulated(&arena));
    arena.check(&cases);
}

#[test]
fn fragments_are_judged_by_the_ports_of_their_datagram() {
    require_root!();
    let mut arena = Arena::new();
    let mut cases = fragments::of_both_families(&arena);
    cases.extend(fragments::of_extension_headers(&arena));
    arena.check(&cases);
}

#[test]
fn headers_at_their_limits_open_no_port() {
    require_root!();
    let mut arena = Arena::new();
    let mut cases = limits::of_headers(&arena);
    cases.extend(limits::of_hops(&arena));
    arena.check(&cases);
}

#[test]
fn icmp_errors_need_a_connection() {
    require_root!();
    let mut arena = Arena::new();
    let mut cases = icmp::errors(&arena);
    cases.extend(icmp::related(&arena));
    arena.check(&cases);
}

#[test]
fn forged_neighbours_are_believed_by_nobody() {
    require_root!();
    let mut arena = Arena::new();
    let mut cases = neighbours::of_arp(&arena);
    cases.extend(neighbours::of_ndp(&arena));
    arena.check(&cases);
    neighbours::assert_unchanged(&mut arena);
}

#[test]
fn options_behind_the_fragment_header_do_not_part_a_datagram() {
    require_root!();
    let mut arena = Arena::new();
    let cases = defects::options_behind_the_fragment_header(&arena);
    arena.check(&cases);
}

#[test]
fn the_last_hop_to_the_node_and_the_world_is_enough() {
    require_root!();
    let mut arena = Arena::new();
    let cases = defects::hops_of_the_stack(&arena);
    arena.check(&cases);
}

#[test]
fn a_late_answer_is_no_new_connection() {
    require_root!();
    let mut arena = Arena::new();
    let cases = defects::late_answers(&arena);
    arena.check(&cases);
}

#[test]
fn the_host_answers_a_pod_that_solicits_its_address() {
    require_root!();
    let mut arena = Arena::new();
    defects::assert_host_is_a_neighbour(&mut arena);
}
