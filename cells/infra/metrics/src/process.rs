//! Metrics of the agent's process, read from `/proc` on request.

use std::fs;
use std::path::{Path, PathBuf};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Ticks per second in `/proc/PID/stat`: `USER_HZ` is 100 on all architectures that this agent supports.
const TICKS: f64 = 100.0;

/// Bytes of a page in `/proc/PID/stat`.
const PAGE: f64 = 4096.0;

/// Reads the metrics of a process.
#[derive(Debug)]
pub(crate) struct Process {
    proc: PathBuf,
}

impl Process {
    /// Returns the metrics of the calling process, read from the given `/proc`.
    pub(crate) fn new(proc: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into() }
    }

    fn read(&self) -> Option<Vec<Value>> {
        let own = self.proc.join("self");
        let stat = fs::read_to_string(own.join("stat")).ok()?;
        // The name in parentheses may hold spaces; field 3 follows the last parenthesis.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let boot = boot_time(&self.proc)?;
        let mut values = vec![
            Value::counter(
                "cpu_seconds",
                "CPU time in user and kernel mode",
                (field(14)? + field(15)?) / TICKS,
            ),
            Value::gauge("start_time_seconds", "When the process began", boot + field(22)? / TICKS),
            Value::gauge("virtual_memory_bytes", "Virtual memory", field(23)?),
            Value::gauge("resident_memory_bytes", "Resident memory", field(24)? * PAGE),
        ];
        if let Ok(open) = fs::read_dir(own.join("fd")) {
            values.push(Value::gauge("open_fds", "Open file descriptors", open.count() as f64));
        }
        if let Ok(limits) = fs::read_to_string(own.join("limits")) {
            let limit = |name| limit(&limits, name);
            values.extend(
                limit("Max open files").map(|n| Value::gauge("max_fds", "Limit of file descriptors", n)),
            );
            values.extend(
                limit("Max address space")
                    .map(|n| Value::gauge("virtual_memory_max_bytes", "Limit of virtual memory", n)),
            );
        }
        if let Ok(devices) = fs::read_to_string(own.join("net/dev")) {
            let (received, sent) = network(&devices);
            values.push(Value::counter(
                "network_receive_bytes",
                "Bytes received in this namespace",
                received,
            ));
            values.push(Value::counter("network_transmit_bytes", "Bytes sent in this namespace", sent));
        }
        Some(values)
    }
}

struct Value {
    name: &'static str,
    help: &'static str,
    number: f64,
    counts: bool,
}

impl Value {
    fn counter(name: &'static str, help: &'static str, number: f64) -> Self {
        Self { name, help, number, counts: true }
    }

    fn gauge(name: &'static str, help: &'static str, number: f64) -> Self {
        Self { name, help, number, counts: false }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for value in self.read().unwrap_or_default() {
            let name = format!("process_{}", value.name);
            if value.counts {
                let metric = ConstCounter::new(value.number);
                metric.encode(encoder.encode_descriptor(&name, value.help, None, metric.metric_type())?)?;
            } else {
                let metric = ConstGauge::new(value.number);
                metric.encode(encoder.encode_descriptor(&name, value.help, None, metric.metric_type())?)?;
            }
        }
        Ok(())
    }
}

fn boot_time(proc: &Path) -> Option<f64> {
    let stat = fs::read_to_string(proc.join("stat")).ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Returns the soft limit of a line such as `Max open files   20000   20000   files`; `unlimited` is `u64::MAX`.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX as f64),
        number => number.parse().ok(),
    }
}

/// Returns the bytes received and sent by all devices in the text of `net/dev`.
fn network(devices: &str) -> (f64, f64) {
    devices
        .lines()
        .filter_map(|line| {
            let counters: Vec<f64> =
                line.split_once(':')?.1.split_whitespace().filter_map(|n| n.parse().ok()).collect();
            Some((*counters.first()?, *counters.get(8)?))
        })
        .fold((0.0, 0.0), |(received, sent), (rx, tx)| (received + rx, sent + tx))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metrics;

    #[test]
    fn the_process_is_read_from_proc() {
        let metrics = Metrics::default();
        metrics.register_collector(Process::new("/proc"));
        let text = metrics.text();
        for name in [
            "process_cpu_seconds_total",
            "process_max_fds",
            "process_network_receive_bytes_total",
            "process_network_transmit_bytes_total",
            "process_open_fds",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_virtual_memory_bytes",
            "process_virtual_memory_max_bytes",
        ] {
            let line = text.lines().find(|line| line.starts_with(&format!("cilium_{name} ")));
            let value: f64 = line
                .unwrap_or_else(|| panic!("{name} in {text}"))
                .split(' ')
                .nth(1)
                .unwrap()
                .parse()
                .unwrap();
            assert!(value >= 0.0);
        }
    }

    #[test]
    fn lines_of_proc_are_parsed() {
        let limits = "Limit  Soft  Hard  Units\nMax open files            20000      40000   files\nMax address space         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(20000.0));
        assert_eq!(limit(limits, "Max address space"), Some(u64::MAX as f64));
        assert_eq!(limit(limits, "Max cpu time"), None);
        let devices = "Inter-|   Receive  |  Transmit\n face |bytes packets\n  lo: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\neth0:7 1 0 0 0 0 0 0 8 1 0 0 0 0 0 0\n";
        assert_eq!(network(devices), (107.0, 208.0));
    }

    #[test]
    fn without_proc_there_are_no_process_metrics() {
        let metrics = Metrics::default();
        metrics.register_collector(Process::new("/nonexistent"));
        assert_eq!(metrics.text(), "");
    }
}
