//! `bpf endpoint`: the endpoint map.

use super::format;
use super::pinned::{pairs, rows};
use crate::output::Output;
use datapath_abi::{EndpointInfo, EndpointKey};
use std::io::Write;

pub(super) fn list(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let rows = rows::<EndpointKey, EndpointInfo>("cilium_lxc")?;
    let show = |(key, info): &(EndpointKey, EndpointInfo)| {
        Some((format!("{}:{}", key.ip()?, key.cluster_id), vec![format::endpoint(info)]))
    };
    pairs("IP ADDRESS\tLOCAL ENDPOINT INFO", &rows.iter().filter_map(show).collect(), output, out)
}
