//! Mutual authentication: packets of identities that must authenticate, and the signals that ask for it.

use crate::events::Ring;
use crate::kit::*;
use crate::packet::*;
use anyhow::{Context as _, Result};
use datapath_abi::signal::{self, AuthKey, AuthRequired};
use datapath_abi::{NodeConfig, Pod as Plain, direction, drop};
use std::net::IpAddr;

const PEER: u32 = 70_000;
const TYPE: u8 = 1;
const NODE: [IpAddr; 2] = [IpAddr::V4(HOST_V4), IpAddr::V6(HOST_V6)];
const AUTH: Option<u8> = Some(drop::AUTH_REQUIRED);
/// Later than any clock.
const FOREVER: u64 = u64::MAX;

fn datapath(mesh_auth: u8) -> Result<Datapath> {
    let config = NodeConfig { mesh_auth, policy_verdict_notify: 0, ..default_config() };
    let mut datapath = Datapath::load(&config)?;
    datapath.add(&A)?;
    datapath.set_utime_offset(1 << 40)?;
    let auth = |way| row(way, PEER, TCP, None, Kind::Auth(TYPE, true));
    datapath.set_policy(&A, &[auth(OUT), auth(IN)])?;
    for peer in [IpAddr::from(OUTSIDE_V4), OUTSIDE_V6.into()] {
        datapath.set_identity(peer, PEER)?;
    }
    Ok(datapath)
}

/// Returns the reasons of drops between the pod and the peer: both ways of both families.
fn reasons(datapath: &mut Datapath, sport: u16) -> Result<[Option<u8>; 4]> {
    let mut found = [None; 4];
    let families: [(IpAddr, IpAddr); 2] =
        [(A.ipv4.into(), OUTSIDE_V4.into()), (A.ipv6.into(), OUTSIDE_V6.into())];
    for (at, (pod, peer)) in families.into_iter().enumerate() {
        let sent = ip(pod, peer, TCP, &tcp(sport, 80, SYN));
        let received = ip(peer, pod, TCP, &tcp(sport, 80, SYN));
        found[2 * at] = datapath.dropped(direction::EGRESS, |d| d.sends(&sent))?;
        found[2 * at + 1] = datapath.dropped(direction::INGRESS, |d| d.receives(PEER, &received))?;
    }
    Ok(found)
}

fn key(remote_node: u16) -> AuthKey {
    AuthKey { local_identity: A.identity, remote_identity: PEER, remote_node, auth_type: TYPE, pad: 0 }
}

/// proxy.md, scenario 74: the first packet is dropped with 189 and signalled, and passes once there is an entry of exactly
/// this key that has not expired.
#[test]
fn packets_pass_after_authentication_until_it_expires() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = datapath(1)?;
    let mut ring = Ring::open_map(&mut datapath, "cilium_signals")?;
    assert_eq!(reasons(&mut datapath, 1)?, [AUTH; 4]);
    let signals = ring.read();
    assert_eq!(signals.len(), 4, "one of each packet");
    for message in signals {
        let message = AuthRequired::from_bytes(message.get(..16).context("short signal")?);
        assert_eq!(message, Some(AuthRequired { signal: signal::AUTH_REQUIRED, key: key(0) }));
    }
    // Entries that differ in one field.
    let twins = [
        AuthKey { local_identity: A.identity + 1, ..key(0) },
        AuthKey { remote_identity: PEER + 1, ..key(0) },
        AuthKey { remote_node: 1, ..key(0) },
        AuthKey { auth_type: TYPE + 1, ..key(0) },
    ];
    for twin in twins {
        datapath.set_auth(&twin, FOREVER)?;
    }
    assert_eq!(reasons(&mut datapath, 2)?, [AUTH; 4]);
    // The programs' clock is at least the offset, and has not reached twice the offset.
    datapath.set_auth(&key(0), 1 << 40)?;
    assert_eq!(reasons(&mut datapath, 3)?, [AUTH; 4], "expired");
    assert_eq!(ring.read().len(), 8);
    datapath.set_auth(&key(0), 1 << 41)?;
    assert_eq!(reasons(&mut datapath, 4)?, [None; 4]);
    assert!(ring.read().is_empty());
    // Expiry applies to established connections.
    datapath.set_utime_offset(1 << 41)?;
    assert_eq!(reasons(&mut datapath, 4)?, [AUTH; 4]);
    Ok(())
}

/// The node of the peer is part of the key: by the tunnel endpoint of the peer's address, whatever its family.
#[test]
fn the_peers_node_is_part_of_the_key() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = datapath(1)?;
    for (node, id) in NODE.into_iter().zip([7, 8]) {
        for peer in [IpAddr::from(OUTSIDE_V4), OUTSIDE_V6.into()] {
            datapath.set_ipcache(peer, &behind(PEER, node, 0))?;
        }
        assert_eq!(reasons(&mut datapath, id)?, [Some(drop::NO_NODE_ID); 4], "{node} has no id yet");
        datapath.set_node_id(node, id)?;
        datapath.set_auth(&key(0), FOREVER)?;
        assert_eq!(reasons(&mut datapath, id)?, [AUTH; 4]);
        datapath.set_auth(&key(id), FOREVER)?;
        assert_eq!(reasons(&mut datapath, id)?, [None; 4]);
    }
    Ok(())
}

/// proxy.md, scenario 77: while the agent's part is off, packets stay dropped and nothing is signalled.
#[test]
fn without_mesh_auth_packets_stay_dropped() -> Result<()> {
    test_kit::require_root!();
    let mut datapath = datapath(0)?;
    let mut ring = Ring::open_map(&mut datapath, "cilium_signals")?;
    datapath.set_auth(&key(0), FOREVER)?;
    assert_eq!(reasons(&mut datapath, 1)?, [AUTH; 4]);
    assert!(ring.read().is_empty());
    Ok(())
}
