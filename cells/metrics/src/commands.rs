//! The command `metrics` of scripts and of the shell.

use std::fmt::Write;
use std::sync::Arc;

use anyhow::bail;
use hive::prelude::*;
use hive_script::{Call, Command, Flag, FlagKind, Output, multi_line, render};

use crate::registry::Metrics;
use crate::samples::{Number, Sample, samples};

pub(crate) fn command(metrics: Arc<Metrics>) -> Member<Command> {
    let show = move |call: Call| {
        let metrics = metrics.clone();
        async move { show(&metrics, &call) }
    };
    Member(
        Command::new("metrics", "show the exported metrics", show)
            .takes("[match regex]")
            .detail("The expression is matched with the name followed by the labels.\nHistograms show p50 / p90 / p99, in JSON and YAML p90.")
            .regexp()
            .flag(Flag::text("out", "file to write to instead of the log").short('o'))
            .flag(Flag::new("format", FlagKind::Text, "table", "table, json or yaml").short('f'))
            .completes(|typed| match typed.flag.as_deref() {
                Some("format") => ["table", "json", "yaml"].map(str::to_owned).to_vec(),
                _ => vec![],
            }),
    )
}

fn show(metrics: &Metrics, call: &Call) -> anyhow::Result<Output> {
    let expression = multi_line(call.at_most_one()?.unwrap_or_default())?;
    let write = match call.flags.text("format") {
        "table" => table,
        "json" => json,
        "yaml" => yaml,
        other => bail!("unknown format \"{other}\""),
    };
    let mut found = samples(&metrics.text());
    found.retain(|sample| expression.is_match(format!("{}{}", sample.name, sample.labels_text()).as_bytes()));
    call.to_file_or_log("out", &write(&found))
}

fn table(samples: &[Sample]) -> String {
    let rows = samples.iter().map(|sample| {
        let value = match &sample.value {
            Number::Plain(value) => format!("{value:.6}"),
            Number::Histogram(histogram) => {
                let unit = if sample.name.ends_with("seconds") { "s" } else { "" };
                let [p50, p90, p99] =
                    [0.5, 0.9, 0.99].map(|q| format!("{}{unit}", with_prefix(histogram.quantile(q))));
                format!("{p50} / {p90} / {p99}")
            }
        };
        vec![sample.name.clone(), sample.labels_text(), value]
    });
    let header = ["Metric", "Labels", "Value"].map(str::to_owned).to_vec();
    render::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
}

fn json(samples: &[Sample]) -> String {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let objects: Vec<String> = samples
        .iter()
        .map(|sample| {
            let labels: Vec<String> =
                sample.labels.iter().map(|(name, value)| format!("{}:{}", text(name), text(value))).collect();
            let labels = if labels.is_empty() {
                String::new()
            } else {
                format!("\"labels\":{{{}}},", labels.join(","))
            };
            // JSON has no infinities; as text they are at least seen.
            let value = sample.value.single();
            let value = if value.is_finite() { number(value) } else { text(&number(value)) };
            format!("{{{labels}\"name\":{},\"value\":{value}}}", text(&sample.name))
        })
        .collect();
    render::json(&format!("[{}]", objects.join(",")))
}

fn yaml(samples: &[Sample]) -> String {
    samples.iter().fold(String::new(), |mut out, sample| {
        let labels = if sample.labels.is_empty() { " {}" } else { "" };
        let _ = writeln!(out, "- labels:{labels}");
        for (name, value) in &sample.labels {
            let _ = writeln!(out, "    {}: {}", render::yaml_text(name), render::yaml_text(value));
        }
        let _ = writeln!(out, "  name: {}\n  value: {}", sample.name, number(sample.value.single()));
        out
    })
}

/// A number without needless digits, as Go's JSON has it.
fn number(value: f64) -> String {
    match value {
        _ if value.is_nan() => ".nan".to_owned(),
        _ if value.is_infinite() => if value > 0.0 { ".inf" } else { "-.inf" }.to_owned(),
        _ if value != 0.0 && !(1e-6..1e21).contains(&value.abs()) => format!("{value:e}"),
        _ => value.to_string(),
    }
}

/// Four digits and the prefix of a unit.
fn with_prefix(value: f64) -> String {
    const PREFIXES: [(f64, &str); 9] = [
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1.0, ""),
        (1e-3, "m"),
        (1e-6, "\u{b5}"),
        (1e-9, "n"),
        (1e-12, "p"),
    ];
    let found = PREFIXES.iter().find(|(scale, _)| value.abs() >= *scale);
    let Some((scale, prefix)) = found.filter(|_| value.is_finite()) else {
        return if value.is_finite() { "0".to_owned() } else { value.to_string() };
    };
    let scaled = value / scale;
    let digits = if scaled.abs() >= 100.0 {
        1
    } else if scaled.abs() >= 10.0 {
        2
    } else {
        3
    };
    let text = format!("{scaled:.digits$}");
    format!("{}{prefix}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_and_a_prefix() {
        let shown = [0.01, 0.8, 0.98, 0.0, 12345.0, 1.0, 0.000_025_5, -2.5, 100.0].map(with_prefix);
        assert_eq!(shown, ["10m", "800m", "980m", "0", "12.35k", "1", "25.5\u{b5}", "-2.5", "100"]);
        assert_eq!([1.0, 0.8, 1e21, 1e-7].map(number), ["1", "0.8", "1e21", "1e-7"]);
    }
}
