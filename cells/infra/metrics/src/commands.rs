//! The commands `metrics`, `metrics/plot` and `metrics/html` of scripts and of the shell.

use std::fmt::Write;
use std::sync::Arc;

use anyhow::bail;
use hive::prelude::*;
use hive_command::{Call, Command, Flag, FlagKind, Output, render, whole_text};

use crate::number::{fixed, json as json_number, pretty, yaml as yaml_number};
use crate::plot::Plot;
use crate::registry::Metrics;
use crate::sampled;
use crate::sampler::{Sampler, Series, Values};
use crate::samples::{Number, Sample, samples};

pub(crate) fn commands(metrics: Arc<Metrics>, sampler: Arc<Sampler>) -> Members<Command> {
    let (plotted, paged) = (sampler.clone(), sampler.clone());
    let out = || Flag::text("out", "file to write to instead of the log").short('o');
    let shows = Command::new("metrics", "show the exported metrics, or samples of all", move |call: Call| {
        let (metrics, sampler) = (metrics.clone(), sampler.clone());
        async move { show(&metrics, &sampler, &call) }
    });
    let plots = Command::new("metrics/plot", "plot samples of a metric", move |call: Call| {
        let sampler = plotted.clone();
        async move { plot(&sampler, &call) }
    });
    let pages = Command::new("metrics/html", "write samples of all metrics as a page", move |call: Call| {
        let sampler = paged.clone();
        async move { call.to_file_or_log("out", &page(&sampler)) }
    });
    Members(vec![
        shows
            .takes("[match regex]")
            .detail("The expression is matched with the name followed by the labels.\nHistograms show p50 / p90 / p99, in JSON and YAML p90.")
            .regexp()
            .flag(out())
            .flag(Flag::switch("sampled", "samples over time, also of metrics that are off").short('s'))
            .flag(Flag::new("format", FlagKind::Text, "table", "table, json or yaml").short('f'))
            .completes(|typed| match typed.flag.as_deref() {
                Some("format") => ["table", "json", "yaml"].map(str::to_owned).to_vec(),
                _ => vec![],
            }),
        plots
            .takes("[match regex]")
            .detail("Plots the first metric with a name, followed by its labels, that the expression matches.")
            .regexp()
            .flag(out())
            .flag(Flag::switch("rate", "the change in a second instead of the values")),
        pages.flag(out()),
    ])
}

fn show(metrics: &Metrics, sampler: &Sampler, call: &Call) -> anyhow::Result<Output> {
    let expression = whole_text(call.args.first().map_or("", String::as_str))?;
    let matches = |name: &str, labels: &str| expression.is_match(format!("{name}{labels}").as_bytes());
    let format = call.flags.text("format");
    let text = if call.flags.is_on("sampled") {
        let (found, interval) = (sampler.samples(matches), sampler.interval);
        match format {
            "table" => sampled::table(&found, interval),
            "json" => sampled::json(&found, interval),
            "yaml" => sampled::yaml(&found, interval),
            other => bail!("unknown format \"{other}\""),
        }
    } else {
        let mut found = samples(&metrics.text());
        found.retain(|sample| matches(&sample.name, &sample.labels_text()));
        match format {
            "table" => table(&found),
            "json" => json(&found),
            "yaml" => yaml(&found),
            other => bail!("unknown format \"{other}\""),
        }
    };
    call.to_file_or_log("out", &text)
}

fn table(samples: &[Sample]) -> String {
    let rows = samples.iter().map(|sample| {
        let value = match &sample.value {
            Number::Plain(value) => fixed(*value),
            Number::Histogram(histogram) => {
                let unit = if sample.name.ends_with("seconds") { "s" } else { "" };
                histogram.percentiles().map(|value| pretty(value) + unit).join(" / ")
            }
        };
        vec![sample.name.clone(), sample.labels_text(), value]
    });
    let header = ["Metric", "Labels", "Value"].map(str::to_owned).to_vec();
    render::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
}

fn json(samples: &[Sample]) -> String {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let objects = samples.iter().map(|sample| {
        let labels: Vec<String> =
            sample.labels.iter().map(|(name, value)| format!("{}:{}", text(name), text(value))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("\"labels\":{{{}}},", labels.join(",")) };
        format!(
            "{{{labels}\"name\":{},\"value\":{}}}",
            text(&sample.name),
            json_number(sample.value.single())
        )
    });
    let objects: Vec<String> = objects.collect();
    render::json(&if objects.is_empty() { "null".to_owned() } else { format!("[{}]", objects.join(",")) })
}

fn yaml(samples: &[Sample]) -> String {
    if samples.is_empty() {
        return "[]\n".to_owned();
    }
    samples.iter().fold(String::new(), |mut out, sample| {
        let labels = if sample.labels.is_empty() { " {}" } else { "" };
        let _ = writeln!(out, "- labels:{labels}");
        for (name, value) in &sample.labels {
            let _ = writeln!(out, "    {}: {}", render::yaml_text(name), render::yaml_text(value));
        }
        let _ = writeln!(out, "  name: {}\n  value: {}", sample.name, yaml_number(sample.value.single()));
        out
    })
}

fn plot(sampler: &Sampler, call: &Call) -> anyhow::Result<Output> {
    let Some(pattern) = call.args.first() else {
        return call.to_file_or_log("out", "regexp needed to find metric\n");
    };
    let expression = whole_text(pattern)?;
    let found =
        sampler.samples(|name, labels| expression.is_match(format!("{name}{labels}").as_bytes())).into_iter();
    let text = match found.map(|(name, labels, series)| plots(sampler, call, &name, &labels, &series)).next()
    {
        Some(plots) => plots.join("\n"),
        None => format!("no metric found matching regexp {pattern:?}"),
    };
    call.to_file_or_log("out", &text)
}

/// Returns one plot; for a histogram one for each percentile.
fn plots(sampler: &Sampler, call: &Call, name: &str, labels: &str, series: &Series) -> Vec<String> {
    let plot = |title: String, ring| {
        let (interval, rate) = (sampler.interval, call.flags.is_on("rate"));
        Plot { title, name, labels, series, ring, interval, rate }.draw()
    };
    match &series.values {
        Values::Plain(ring) => vec![plot(name.to_owned(), ring)],
        Values::Histogram { percentiles, .. } => {
            let titles = ["p50", "p90", "p99"].map(|kind| format!("{name} ({kind})"));
            titles.into_iter().zip(percentiles.iter()).map(|(title, ring)| plot(title, ring)).collect()
        }
    }
}

/// Returns a self-contained page that lists and draws the samples.
fn page(sampler: &Sampler) -> String {
    let objects = sampled::objects(&sampler.samples(|_, _| true));
    // A label with `</script>` must not end the page's script.
    let lines: String =
        objects.iter().map(|object| format!("  {},\n", object.replace('<', "\\u003c"))).collect();
    include_str!("page.html")
        .replace("@INTERVAL@", &sampler.interval.as_secs_f64().to_string())
        .replace("@SAMPLES@", &lines)
}
