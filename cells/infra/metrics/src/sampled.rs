//! Samples as table, JSON and YAML.

use std::fmt::Write;
use std::time::Duration;

use hive_command::render;

use crate::number::{json_short, pretty, yaml_short};
use crate::sampler::{KEPT, Ring, Series, Values};

/// Positions of the samples in the table: the newest, and those at a quarter, half and all of the time.
const SHOWN: [usize; 4] = [0, KEPT / 4 - 1, KEPT / 2 - 1, KEPT - 1];

/// Name, labels, samples.
pub(crate) type Named = (String, String, Series);

/// Formats a line for each metric with four of its samples.
pub(crate) fn table(samples: &[Named], interval: Duration) -> String {
    let ages = SHOWN.map(|at| statedb::age::of(interval * (at as u32 + 1)));
    let header = ["Metric", "Labels"].map(str::to_owned).into_iter().chain(ages).collect();
    let rows = samples.iter().map(|(name, labels, series)| {
        let shown = SHOWN.map(|at| shown(name, series, at));
        [name.clone(), labels.clone()].into_iter().chain(shown).collect()
    });
    render::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
}

/// Formats a sample.
fn shown(name: &str, series: &Series, at: usize) -> String {
    match &series.values {
        Values::Plain(ring) => pretty(ring[at].into()),
        Values::Histogram { percentiles, .. } => {
            percentiles.each_ref().map(|ring| pretty(ring[at].into()) + seconds(name)).join(" / ")
        }
    }
}

/// Returns the unit of a metric: `s` if its name contains `seconds`.
pub(crate) fn seconds(name: &str) -> &'static str {
    if name.contains("seconds") { "s" } else { "" }
}

/// Returns one JSON object for each metric.
pub(crate) fn objects(samples: &[Named]) -> Vec<String> {
    let list = |ring: &Ring| format!("[{}]", ring.map(json_short).join(","));
    let objects = samples.iter().map(|(name, labels, series)| {
        let mut object = format!("{{\"name\":{}", text(name));
        if !labels.is_empty() {
            let _ = write!(object, ",\"labels\":{}", text(labels));
        }
        let _ = match &series.values {
            Values::Plain(ring) => write!(object, ",\"gaugeOrCounter\":{{\"samples\":{}}}", list(ring)),
            Values::Histogram { percentiles, .. } => {
                let [p50, p90, p99] = percentiles.each_ref().map(list);
                write!(object, ",\"histogram\":{{\"p50\":{p50},\"p90\":{p90},\"p99\":{p99}}}")
            }
        };
        let _ = write!(object, ",\"latest\":{}}}", text(&shown(name, series, 0)));
        object
    });
    objects.collect()
}

fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(crate) fn json(samples: &[Named], interval: Duration) -> String {
    let list =
        if samples.is_empty() { "null".to_owned() } else { format!("[{}]", objects(samples).join(",")) };
    let seconds = interval.as_secs();
    render::json(&format!("{{\"nsamples\":{KEPT},\"interval_seconds\":{seconds},\"samples\":{list}}}"))
}

pub(crate) fn yaml(samples: &[Named], interval: Duration) -> String {
    let mut out = format!("nsamples: {KEPT}\ninterval_seconds: {}\nsamples:", interval.as_secs());
    out.push_str(if samples.is_empty() { " []\n" } else { "\n" });
    for (name, labels, series) in samples {
        let _ = writeln!(out, "    - name: {}", render::yaml_text(name));
        if !labels.is_empty() {
            let _ = writeln!(out, "      labels: {}", render::yaml_text(labels));
        }
        match &series.values {
            Values::Plain(ring) => {
                out.push_str("      gaugeOrCounter:\n");
                list_in(&mut out, "samples", ring);
            }
            Values::Histogram { percentiles, .. } => {
                out.push_str("      histogram:\n");
                for (kind, ring) in ["p50", "p90", "p99"].into_iter().zip(percentiles.iter()) {
                    list_in(&mut out, kind, ring);
                }
            }
        }
        let _ = writeln!(out, "      latest: {}", render::yaml_text(&shown(name, series, 0)));
    }
    out
}

fn list_in(out: &mut String, name: &str, ring: &Ring) {
    let _ = writeln!(out, "        {name}:");
    for value in ring {
        let _ = writeln!(out, "            - {}", yaml_short(*value));
    }
}
