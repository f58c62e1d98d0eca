//! `bpf ipmasq`: ranges of ip-masq-agent, packets to which keep the addresses of pods.

use std::collections::BTreeMap;
use std::io::Write;

use datapath_abi::{IpMasqKey, IpMasqKey4, IpMasqKey6};

use super::ct::Address as _;
use super::pinned::{is_missing, pairs, rows};
use crate::output::Output;

pub(super) fn list(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut found = None;
    let ipv4 = rows::<IpMasqKey4, u8>("cilium_ipmasq_v4").map(|rows| {
        let text = |(IpMasqKey { prefixlen, address }, _)| format!("{}/{prefixlen}", u32::address(address));
        rows.into_iter().map(text).collect::<Vec<_>>()
    });
    let ipv6 = rows::<IpMasqKey6, u8>("cilium_ipmasq_v6").map(|rows| {
        let text = |(IpMasqKey { prefixlen, address }, _): (IpMasqKey6, u8)| {
            format!("{}/{prefixlen}", <[u32; 4]>::address(address))
        };
        rows.into_iter().map(text).collect::<Vec<_>>()
    });
    for family in [ipv4, ipv6] {
        match family {
            Ok(ranges) => found.get_or_insert_with(Vec::new).extend(ranges),
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(ranges) = found else {
        // As Cilium's tool does; the hint is for people.
        writeln!(std::io::stderr(), "No entries found: an agent has ranges with enable-ip-masq-agent=true")?;
        return Ok(());
    };
    let ranges: BTreeMap<String, Vec<String>> =
        ranges.into_iter().map(|range| (range, vec![String::new()])).collect();
    pairs("IP PREFIX/ADDRESS", &ranges, output, out)
}
