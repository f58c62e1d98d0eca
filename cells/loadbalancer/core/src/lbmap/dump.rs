//! The load balancer maps as text, a line for each entry, in the format of Cilium's `lb/maps-dump`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use datapath_abi::{LbService, lb_flag, lb_flag2};

use crate::lbmap::rows::backend_state;
use crate::lbmap::rows::{Key, MapError, Value};
use crate::model::address::LbAddress;
use crate::model::backend::BackendState;

/// Returns all entries, sorted, a line each; empty if there are none.
pub fn dump(
    rows: &[(Key, Value)],
    table: impl Fn(&Key) -> Result<Option<Arc<[u32]>>, MapError>,
) -> Result<String, MapError> {
    let mut lines = Vec::with_capacity(rows.len());
    for (key, value) in rows {
        lines.push(match key {
            Key::Maglev(_, id) => maglev(*id, &table(key)?.unwrap_or_default()),
            key => line(key, value),
        });
    }
    lines.sort();
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

/// Formats a table by the share of each backend, largest first.
fn maglev(id: u16, table: &[u32]) -> String {
    let mut counts = BTreeMap::<u32, usize>::new();
    table.iter().for_each(|backend| *counts.entry(*backend).or_default() += 1);
    let mut counts: Vec<(u32, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let shares: Vec<String> = counts.iter().map(|(backend, count)| format!("{backend}({count})")).collect();
    format!("MAGLEV: ID={id} INNER=[{}]", shares.join(", "))
}

fn line(key: &Key, value: &Value) -> String {
    match (key, value) {
        (Key::Service(address, slot), Value::Service(row)) => service(address, *slot, row),
        (Key::Backend(_, id), Value::Backend(backend)) => {
            format!("BE: ID={id} ADDR={} STATE={}", backend.address, kernel_state(backend.state))
        }
        (Key::ReverseNat(_, id), Value::ReverseNat(ip, port)) => {
            format!("REV: ID={id} ADDR={}:{port}", bracketed(*ip))
        }
        (Key::AffinityMatch(id, backend), _) => format!("AFF: ID={id} BEID={backend}"),
        (Key::SourceRange(id, range), _) => format!("SRCRANGE: ID={id} CIDR={range}"),
        (key, value) => format!("{}: {key} {value:?}", key.map().name()),
    }
}

fn bracketed(ip: IpAddr) -> String {
    if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }
}

fn kernel_state(number: u8) -> &'static str {
    match backend_state(number) {
        BackendState::TerminatingNotServing => BackendState::Terminating.name(),
        state => state.name(),
    }
}

fn service(address: &LbAddress, slot: u16, row: &LbService) -> String {
    let id = u16::from_be(row.rev_nat_index);
    let (count, qcount) = (row.count, row.qcount);
    let first = match slot {
        0 if row.flags2 & lb_flag2::L7_LOAD_BALANCER != 0 => {
            format!("L7Proxy={}", u16::from_be(row.backend_id as u16))
        }
        0 => {
            let algorithm = match row.backend_id >> 24 {
                1 => "random",
                2 => "maglev",
                _ => "undef",
            };
            format!("LBALG={algorithm} AFFTimeout={}", row.backend_id & 0x00ff_ffff)
        }
        _ => format!("BEID={}", row.backend_id),
    };
    let flags = flags(row.flags, row.flags2);
    format!("SVC: ID={id} ADDR={address} SLOT={slot} {first} COUNT={count} QCOUNT={qcount} FLAGS={flags}")
}

fn flags(flags: u8, flags2: u8) -> String {
    let (has, has2) = (|bit: u8| flags & bit != 0, |bit: u8| flags2 & bit != 0);
    let kind = if has(lb_flag::EXTERNAL_IP) {
        "ExternalIPs"
    } else if has(lb_flag::NODE_PORT) {
        "NodePort"
    } else if has(lb_flag::LOAD_BALANCER) {
        "LoadBalancer"
    } else if has(lb_flag::HOST_PORT) {
        "HostPort"
    } else if has2(lb_flag2::LOCAL_REDIRECT) {
        "LocalRedirect"
    } else {
        "ClusterIP"
    };
    let ranged = has(lb_flag::SOURCE_RANGE);
    let shared = has2(lb_flag2::QUARANTINED_OR_DENY);
    let loopback = has2(lb_flag2::LOOPBACK);
    let words = [
        (true, kind),
        (has(lb_flag::EXT_LOCAL_SCOPE), "Local"),
        (has2(lb_flag2::INT_LOCAL_SCOPE), "InternalLocal"),
        (has2(lb_flag2::TWO_SCOPES), "two-scopes"),
        (has(lb_flag::SESSION_AFFINITY), "sessionAffinity"),
        (!has(lb_flag::ROUTABLE), "non-routable"),
        (ranged, "check source-range"),
        (ranged && shared, "deny"),
        (has2(lb_flag2::NAT_46X64), "46x64"),
        (has2(lb_flag2::L7_LOAD_BALANCER), "l7-load-balancer"),
        (loopback && has(lb_flag::HOST_PORT), "loopback"),
        (loopback && !has(lb_flag::HOST_PORT), "delegate-if-local"),
        (!ranged && shared, "quarantined"),
        (has2(lb_flag2::FORWARDING_DSR), "dsr"),
    ];
    words.into_iter().filter_map(|(set, word)| set.then_some(word)).collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lbmap::rows::{BackendValue, Family};

    #[test]
    fn entries_are_formatted_as_in_cilium() {
        let frontend: LbAddress = "[fd00::1]:80/TCP/i".parse().unwrap();
        let backend = BackendValue { address: "10.1.0.2:8080/UDP".parse().unwrap(), state: 3, zone: 0 };
        let flags = lb_flag::LOAD_BALANCER | lb_flag::SOURCE_RANGE | lb_flag::ROUTABLE;
        let row = LbService {
            backend_id: 2 << 24 | 10_800,
            count: 1,
            qcount: 2,
            rev_nat_index: 7u16.to_be(),
            flags,
            flags2: lb_flag2::QUARANTINED_OR_DENY | lb_flag2::LOOPBACK,
        };
        let slot = LbService { backend_id: 9, count: 0, qcount: 0, flags: 0, flags2: 0, ..row };
        let proxied = LbService {
            backend_id: 10_000u16.to_be().into(),
            flags: lb_flag::HOST_PORT,
            flags2: lb_flag2::L7_LOAD_BALANCER | lb_flag2::LOOPBACK | lb_flag2::QUARANTINED_OR_DENY,
            ..row
        };
        let rows = [
            (Key::Service(frontend, 0), Value::Service(row)),
            (Key::Service(frontend, 1), Value::Service(slot)),
            (Key::master("10.0.0.1:80/SCTP".parse().unwrap()), Value::Service(proxied)),
            (Key::Backend(Family::V4, 9), Value::Backend(backend)),
            (Key::ReverseNat(Family::V6, 7), Value::ReverseNat(frontend.ip, 80)),
            (Key::AffinityMatch(7, 9), Value::Present),
            (Key::SourceRange(7, "10.0.0.0/8".parse().unwrap()), Value::Present),
            (Key::Maglev(Family::V6, 7), Value::Maglev(0)),
        ];
        assert_eq!(
            dump(&rows, |_| Ok(Some([9, 4, 9, 3].into()))).unwrap(),
            "AFF: ID=7 BEID=9\n\
             BE: ID=9 ADDR=10.1.0.2:8080/UDP STATE=maintenance\n\
             MAGLEV: ID=7 INNER=[9(2), 3(1), 4(1)]\n\
             REV: ID=7 ADDR=[fd00::1]:80\n\
             SRCRANGE: ID=7 CIDR=10.0.0.0/8\n\
             SVC: ID=7 ADDR=10.0.0.1:80/SCTP SLOT=0 L7Proxy=10000 COUNT=1 QCOUNT=2 \
             FLAGS=HostPort+non-routable+l7-load-balancer+loopback+quarantined\n\
             SVC: ID=7 ADDR=[fd00::1]:80/TCP/i SLOT=0 LBALG=maglev AFFTimeout=10800 COUNT=1 QCOUNT=2 \
             FLAGS=LoadBalancer+check source-range+deny+delegate-if-local\n\
             SVC: ID=7 ADDR=[fd00::1]:80/TCP/i SLOT=1 BEID=9 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable\n"
        );
        assert_eq!(dump(&[], |_| Ok(None)).unwrap(), "");
    }
}
