//! The health report of options of a Cilium 1.20 agent that have no effect here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hive::prelude::*;
use hive::{LiveConfig, Setting, Settings};
use known_options::{features, is_of_operator};

/// Reports options without effect in health, one row per feature.
pub(crate) fn cell() -> Cell {
    module("options", "Options of features that this agent does not have", [invoke(start)])
}

fn start(live: Arc<LiveConfig>, health: Health, jobs: JobGroup) {
    let (features, mut settings, mut reported) = (features(), live.watch_settings(), BTreeSet::new());
    report_unused(&settings.get(), &features, &health, &mut reported);
    jobs.one_shot("options", move |cx: JobCx| async move {
        loop {
            tokio::select! {
                () = settings.changed() => report_unused(&settings.get(), &features, &health, &mut reported),
                () = cx.cancelled() => return Ok(()),
            }
        }
    })
    .add();
}

/// Updates the health rows. `reported`: features that have a row, which is closed once their options are unset.
fn report_unused(
    settings: &Settings,
    features: &BTreeMap<&'static str, &'static str>,
    health: &Health,
    reported: &mut BTreeSet<&'static str>,
) {
    let mut wanted: BTreeMap<&'static str, Vec<&Setting>> = BTreeMap::new();
    for setting in settings.unused().iter().filter(is_wanted) {
        wanted.entry(features.get(setting.key.as_str()).unwrap_or(&"other")).or_default().push(setting);
    }
    for gone in reported.iter().filter(|feature| !wanted.contains_key(*feature)) {
        health.child(gone).close();
    }
    reported.retain(|feature| wanted.contains_key(feature));
    let count: usize = wanted.values().map(Vec::len).sum();
    match count {
        0 => health.ok("Every option that is set is in force"),
        _ => health.ok(format!("{count} options of {} features have no effect in this agent", wanted.len())),
    }
    for (feature, settings) in wanted {
        let message = match settings.len() {
            1 => "1 option has no effect in this agent".to_owned(),
            count => format!("{count} options have no effect in this agent"),
        };
        health.child(feature).degraded(message, listed(&settings));
        reported.insert(feature);
    }
}

/// Whether the option is set to a value other than the default, and is not for the operator: both programs read one
/// ConfigMap.
fn is_wanted(setting: &&Setting) -> bool {
    !setting.is_default() && !is_of_operator(&setting.key)
}

/// Maximum bytes of a value and of the list: health truncates longer texts.
const MAX_SHOWN_BYTES: (usize, usize) = (60, 1900);

/// Formats options with their values; options beyond the capacity of the list are only counted.
fn listed(settings: &[&Setting]) -> String {
    let mut text = String::new();
    for (at, Setting { key, value, .. }) in settings.iter().enumerate() {
        let cut = (0..=MAX_SHOWN_BYTES.0.min(value.len()))
            .rev()
            .find(|at| value.is_char_boundary(*at))
            .unwrap_or(0);
        let dots = if cut < value.len() { "..." } else { "" };
        let item = format!("{}{key}={}{dots}", if at > 0 { ", " } else { "" }, &value[..cut]);
        if text.len() + item.len() > MAX_SHOWN_BYTES.1 {
            return format!("{text}, and {} more: see agent config", settings.len() - at);
        }
        text += &item;
    }
    text
}

#[cfg(test)]
mod tests {
    use hive::config::Kind;
    use hive::{Hive, Level};
    use known_options::known_options;

    use super::*;

    async fn report(options: &[(&str, &str)]) -> Vec<(String, Level, String, String)> {
        let builder = Hive::builder(cell()).foreign(known_options());
        let builder = options.iter().fold(builder, |builder, (key, value)| builder.set(*key, value));
        let mut hive = builder.build().unwrap();
        hive.populate().await.unwrap();
        let rows = hive.health().snapshot().into_iter().filter(|row| !row.message.is_empty());
        rows.map(|row| (row.path(), row.level, row.message, row.error)).collect()
    }

    #[tokio::test]
    async fn options_without_effect_are_named_by_feature() {
        let all_well = (
            "options".to_owned(),
            Level::Ok,
            "Every option that is set is in force".to_owned(),
            String::new(),
        );
        assert_eq!(report(&[]).await, std::slice::from_ref(&all_well));
        let defaults = [
            ("hubble-drop-events", "F"),
            ("k8s-client-burst", "20"),
            ("tofqdns-min-ttl", "0"),
            ("enable-node-ipam", "true"),
        ];
        assert_eq!(report(&defaults).await, [all_well]);
        let rows = report(&[
            ("hubble-drop-events", "true"),
            ("hubble-redact-enabled", "true"),
            ("http-retry-count", "5"),
            ("mesh-auth-gc-interval", "300s"),
        ])
        .await;
        let row = |path: &str, level, message: &str, error: &str| {
            (path.to_owned(), level, message.to_owned(), error.to_owned())
        };
        assert_eq!(
            rows,
            [
                row("options", Level::Ok, "3 options of 2 features have no effect in this agent", ""),
                row(
                    "options.hubble-monitor",
                    Level::Degraded,
                    "2 options have no effect in this agent",
                    "hubble-drop-events=true, hubble-redact-enabled=true"
                ),
                row(
                    "options.l7-dns",
                    Level::Degraded,
                    "1 option has no effect in this agent",
                    "http-retry-count=5"
                ),
            ]
        );
    }

    /// With all options set, each feature reports their count, and no list is truncated within an option.
    #[tokio::test]
    async fn many_options_stay_readable() {
        let set: Vec<(String, String)> = known_options()
            .map(|option| {
                let value = match option.kind {
                    Kind::Bool if option.default == "true" => "false".to_owned(),
                    Kind::Bool => "true".to_owned(),
                    Kind::Duration => "77h".to_owned(),
                    Kind::Map => format!("a={}", "x".repeat(300)),
                    Kind::Text | Kind::Strings => "x".repeat(300),
                    _ => "7".to_owned(),
                };
                (option.name, value)
            })
            .collect();
        let set: Vec<(&str, &str)> = set.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let rows = report(&set).await;
        let features: BTreeSet<&str> = features().into_values().collect();
        assert_eq!(rows.len(), 1 + features.len());
        let counted = |text: &str| text.split(' ').next().unwrap().parse::<usize>().unwrap();
        assert_eq!(rows[1..].iter().map(|row| counted(&row.2)).sum::<usize>(), counted(&rows[0].2));
        for (path, _, message, error) in &rows[1..] {
            assert!(error.len() < 2000 && !error.contains(&"x".repeat(100)), "{path}: {error}");
            let shown = error.matches('=').count() - error.matches("=a=").count();
            let more = error.split_once(", and ").map_or(0, |(_, rest)| counted(rest));
            assert_eq!(shown + more, counted(message), "{path}: {error}");
        }
    }
}
