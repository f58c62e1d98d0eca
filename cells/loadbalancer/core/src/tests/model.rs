//! The expected entries, computed in the simplest way from the source's content, and the actual ones, without ids.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::*;
use crate::lbmap::maglev::{Share, digest};
use crate::model::backend::{Backend, BackendState as S};
use crate::model::frontend::FrontendParams;
use crate::model::service::{Algorithm, TrafficPolicy};
use crate::testing::FakeRows;

/// Returns the expected maps of a state, each frontend and backend as a line with addresses instead of ids.
pub(super) fn expected(state: &State) -> BTreeSet<String> {
    expected_at(state, &BTreeMap::new())
}

/// Returns the expected maps on a node with these addresses, those for node ports marked.
pub(super) fn expected_at(state: &State, node: &BTreeMap<IpAddr, bool>) -> BTreeSet<String> {
    expected_where(state, node, |_, backend| backend.unhealthy)
}

/// Returns the expected maps with a predicate for the unhealthy backends of a frontend.
pub(super) fn expected_where(
    state: &State,
    node: &BTreeMap<IpAddr, bool>,
    unhealthy: impl Fn(&LbAddress, &Backend) -> bool,
) -> BTreeSet<String> {
    let owned: BTreeSet<LbAddress> = state
        .services
        .iter()
        .flat_map(|(_, frontends)| frontends.iter().map(|frontend| frontend.address))
        .collect();
    let mut lines = BTreeSet::new();
    let mut states: BTreeMap<LbAddress, S> = BTreeMap::new();
    for (service, frontends) in &state.services {
        let at_node = |frontend: &FrontendParams| {
            let ports: Vec<IpAddr> = match frontend.kind.name() {
                "NodePort" | "HostPort" if frontend.address.ip.is_unspecified() => {
                    node.iter().filter(|(_, port)| **port).map(|(ip, _)| *ip).collect()
                }
                _ => Vec::new(),
            };
            let at = ports.into_iter().map(|ip| FrontendParams {
                address: LbAddress { ip, ..frontend.address },
                ..frontend.clone()
            });
            at.filter(|at| {
                at.address.ip.is_ipv4() == frontend.address.ip.is_ipv4() && !owned.contains(&at.address)
            })
            .collect::<Vec<_>>()
        };
        for frontend in frontends.iter().flat_map(|one| at_node(one).into_iter().chain([one.clone()])) {
            let internal =
                frontend.kind.name() == "ClusterIP" || frontend.address.to_string().ends_with("/i");
            let policy = if internal { service.int_traffic_policy } else { service.ext_traffic_policy };
            let mut used: Vec<_> = state.backends.iter().filter(|b| b.service_name == service.name).collect();
            used.retain(|b| b.address.protocol == frontend.address.protocol);
            used.retain(|b| b.address.ip.is_ipv4() == frontend.address.ip.is_ipv4());
            // Host ports are forwarded to their pods, independent of the policies.
            let obeys = frontend.kind.name() != "HostPort";
            used.retain(|b| {
                !obeys || policy == TrafficPolicy::Cluster || ["", NODE].contains(&&*b.node_name)
            });
            for backend in &used {
                let state = states.entry(backend.address).or_insert(backend.state);
                *state = backend.state.min(*state);
            }
            let of = |wanted: &[S], healthy: bool| {
                let mut found: Vec<_> = used
                    .iter()
                    .filter(|b| wanted.contains(&b.state) && !(healthy && unhealthy(&frontend.address, b)))
                    .map(|b| (unhealthy(&frontend.address, b), b.state as u8, b.address))
                    .collect();
                found.sort();
                found.into_iter().map(|(_, _, address)| address.to_string()).collect::<Vec<_>>()
            };
            let (active, terminating) = (of(&[S::Active], true), of(&[S::Terminating], true));
            let slots = of(&[S::Active, S::Terminating, S::TerminatingNotServing], false);
            let count = if active.is_empty() { terminating.len() } else { active.len() };
            let sticky = service.session_affinity.is_some();
            let matches = if sticky { active } else { Vec::new() };
            let algorithm = match service.algorithm() {
                None => 0,
                Some(Algorithm::Random) => 1,
                Some(Algorithm::Maglev) => 2,
            };
            let timeout = service.session_affinity.map_or(0, |timeout| timeout.as_secs()) | algorithm << 24;
            let ranges: BTreeSet<String> = service
                .source_ranges
                .iter()
                .filter(|range| range.is_ipv4() == frontend.address.ip.is_ipv4())
                .map(ToString::to_string)
                .collect();
            let outside = frontend.kind.name() != "ClusterIP";
            let chosen = service.algorithm().map_or(outside, |algorithm| algorithm == Algorithm::Maglev);
            let table =
                if chosen && !frontend.address.ip.is_unspecified() && count > 0 { "right" } else { "none" };
            lines.insert(frontend_line(&frontend.address, count, timeout, &slots, &matches, &ranges, table));
            if ["ClusterIP", "LoadBalancer"].contains(&frontend.kind.name())
                && !frontend.address.to_string().ends_with("/i")
                && !node.contains_key(&frontend.address.ip)
            {
                lines.insert(format!("wildcard {}", frontend.address.ip));
            }
        }
    }
    for (address, state) in states {
        let state = match state {
            S::Active => 0,
            S::Maintenance => 3,
            _ => 1,
        };
        lines.insert(format!("backend {address} {state}"));
    }
    lines
}

fn frontend_line(
    address: &LbAddress,
    count: usize,
    timeout: u64,
    slots: &[String],
    matches: &[String],
    ranges: &BTreeSet<String>,
    table: &str,
) -> String {
    format!(
        "frontend {address} count {count} timeout {timeout} slots {slots:?} matches {matches:?} ranges {ranges:?} \
         table {table}"
    )
}

/// Returns the actual maps, in the same notation. Orphaned entries are lines of their own.
pub(super) fn actual(rows: &BTreeMap<Key, Value>) -> BTreeSet<String> {
    let mut left = rows.clone();
    let mut lines = BTreeSet::new();
    let mut backends = BTreeMap::new();
    for (key, value) in rows {
        if let (Key::Backend(_, id), Value::Backend(row)) = (key, value) {
            backends.insert(*id, row.address.to_string());
            left.remove(key);
            assert!(
                lines.insert(format!("backend {} {}", row.address, row.state)),
                "one address, one number"
            );
        }
    }
    let name = |id: &u32| backends.get(id).cloned().unwrap_or_else(|| format!("missing {id}"));
    for (key, value) in rows {
        let (Key::Service(address, 0), Value::Service(row)) = (key, value) else { continue };
        left.remove(key);
        let id = u16::from_be(row.rev_nat_index);
        if id == 0 {
            lines.insert(format!("wildcard {}", address.ip));
            continue;
        }
        let (mut slots, mut shares) = (Vec::new(), Vec::new());
        for slot in 1..=row.count + row.qcount {
            match left.remove(&Key::Service(*address, slot)) {
                Some(Value::Service(of)) => {
                    let name = name(&of.backend_id);
                    if slot <= row.count
                        && let Ok(address) = name.parse()
                    {
                        shares.push(Share { address, weight: 100, id: of.backend_id });
                    }
                    slots.push(name);
                }
                other => slots.push(format!("{other:?}")),
            }
        }
        let (mut matches, mut ranges) = (BTreeMap::new(), BTreeSet::new());
        for key in rows.keys() {
            match key {
                Key::AffinityMatch(of, backend) if *of == id => {
                    let address = name(backend);
                    matches.insert(slots.iter().position(|slot| *slot == address), address);
                }
                Key::SourceRange(of, range) if *of == id => _ = ranges.insert(range.to_string()),
                Key::ReverseNat(_, of)
                    if *of == id && rows[key] != Value::ReverseNat(address.ip, address.port) =>
                {
                    continue;
                }
                Key::ReverseNat(_, of) if *of == id => {}
                _ => continue,
            }
            left.remove(key);
        }
        let matches: Vec<String> = matches.into_values().collect();
        let (count, timeout) = (usize::from(row.count), row.backend_id.into());
        let family = crate::lbmap::rows::Family::of(address.ip);
        let table = match left.remove(&Key::Maglev(family, id)) {
            None => "none",
            Some(Value::Maglev(found)) if found == digest(&tables().table(&shares)) => "right",
            Some(_) => "wrong",
        };
        assert!(lines.insert(frontend_line(address, count, timeout, &slots, &matches, &ranges, table)));
    }
    lines.extend(left.iter().map(|(key, value)| format!("stray {}", line(key, value))));
    lines
}

/// Returns the backends in slots that take no new connections, by frontend.
pub(super) fn behind(rows: &BTreeMap<Key, Value>) -> BTreeSet<(LbAddress, LbAddress)> {
    let of_slot = |(key, value): (&Key, &Value)| {
        let (Key::Service(address, slot @ 1..), Value::Service(row)) = (key, value) else { return None };
        let Some(Value::Service(master)) = rows.get(&Key::master(*address)) else { return None };
        let family = crate::lbmap::rows::Family::of(address.ip);
        match rows.get(&Key::Backend(family, row.backend_id)) {
            Some(Value::Backend(backend)) if *slot > master.count => Some((*address, backend.address)),
            _ => None,
        }
    };
    rows.iter().filter_map(of_slot).collect()
}

/// Whether every slot that takes connections refers to an existing backend, and every entry that forwards clients of
/// the cluster to the internal scope refers to an existing entry.
pub(super) fn leads_nowhere(rows: &FakeRows) -> Option<String> {
    rows.iter().find_map(|(key, value)| {
        let (Key::Service(address, 0), Value::Service(row)) = (key, value) else { return None };
        let internal = LbAddress { scope: crate::Scope::Internal, ..*address };
        // External IPs have the bit without an internal scope, as in Cilium.
        let sends_on = row.flags & datapath_abi::lb_flag::EXTERNAL_IP == 0
            && row.flags2 & datapath_abi::lb_flag2::TWO_SCOPES != 0
            && address.scope == crate::Scope::External;
        if sends_on && !rows.contains_key(&Key::master(internal)) {
            return Some(format!("{address} has no internal scope"));
        }
        let family = crate::lbmap::rows::Family::of(address.ip);
        (1..=row.count).find_map(|slot| match rows.get(&Key::Service(*address, slot)) {
            Some(Value::Service(row)) if rows.contains_key(&Key::Backend(family, row.backend_id)) => None,
            other => Some(format!("{address} slot {slot} of {}: {other:?}", row.count)),
        })
    })
}
