//! `bpf metrics`: packets and bytes by reason and direction.

use super::pinned::open;
use crate::output::{Output, table};
use bpf::PerCpuMap;
use datapath_abi::{MetricsKey, MetricsValue, direction, drop, file, metric};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write;

/// A metric summed over the CPUs, for `-o`.
#[derive(Debug, Serialize)]
struct Metric {
    reason: String,
    direction: String,
    packets: u64,
    bytes: u64,
    line: u16,
    file: String,
}

pub(super) fn list(output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let map: PerCpuMap<MetricsKey, MetricsValue> = PerCpuMap::new(open("cilium_metrics")?)?;
    let mut rows: Vec<_> = map.entries()?.iter().map(|(key, values)| metric_row(key, values)).collect();
    if output.format.is_some() {
        for row in &mut rows {
            row.direction.make_ascii_lowercase();
        }
        output.write(&rows, out)?;
        return Ok(());
    }
    let mut lines: Vec<[String; 6]> = rows
        .into_iter()
        .map(|row| {
            [
                row.reason,
                row.direction,
                row.packets.to_string(),
                row.bytes.to_string(),
                row.line.to_string(),
                row.file,
            ]
        })
        .collect();
    lines.sort();
    let mut text = "REASON\tDIRECTION\tPACKETS\tBYTES\tLINE\tFILE\n".to_owned();
    for line in &lines {
        let _ = writeln!(text, "{}", line.join("\t"));
    }
    Ok(table(&text, 5, out)?)
}

fn metric_row(key: &MetricsKey, values: &[MetricsValue]) -> Metric {
    let label = if key.is_drop() { drop::label(key.reason) } else { metric::label(key.reason) };
    Metric {
        reason: label.map_or_else(|| key.reason.to_string(), str::to_owned),
        direction: direction::label(key.dir).to_owned(),
        packets: values.iter().map(|value| value.count).sum(),
        bytes: values.iter().map(|value| value.bytes).sum(),
        line: key.line,
        file: file::name(key.file).map_or_else(|| format!("unknown({})", key.file), str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_over_cpus() {
        let key = MetricsKey { reason: 133, dir: direction::INGRESS, line: 7, ..MetricsKey::default() };
        let row =
            metric_row(&key, &[MetricsValue { count: 2, bytes: 20 }, MetricsValue { count: 1, bytes: 10 }]);
        assert_eq!((row.reason.as_str(), row.direction.as_str()), ("Policy denied", "INGRESS"));
        assert_eq!((row.packets, row.bytes, row.line), (3, 30, 7));
    }
}
