//! `bpf config`: values that the agent writes for programs while it runs.

use std::collections::BTreeMap;
use std::io::Write;

use datapath_abi::runtime_config::{AGENT_LIVENESS, UTIME_OFFSET};

use super::pinned::{pairs, rows};
use crate::output::Output;

pub(super) fn list(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let name = |index: u32| match index {
        UTIME_OFFSET => Some("UTimeOffset"),
        AGENT_LIVENESS => Some("AgentLiveness"),
        _ => None,
    };
    // An array: the entries of no meaning are zero.
    let entries = rows::<u32, u64>("cilium_runtime_config")?;
    let named = entries.into_iter().filter_map(|(index, value)| Some((name(index)?, value)));
    let entries: BTreeMap<String, Vec<String>> =
        named.map(|(name, value)| (name.to_owned(), vec![value.to_string()])).collect();
    pairs("KEY\tVALUE", &entries, output, out)
}
