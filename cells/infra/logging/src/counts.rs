//! Counters of logged warnings and errors.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The subsystem whose counters exist from the start, as in Cilium.
const INIT: &str = "init";

/// The labels of a counter of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LineLabels {
    level: &'static str,
    subsystem: &'static str,
}

/// The numbers of logged lines by level, `ERROR` (which includes `fatal`) or `WARN`, and the crate that logged them.
pub type LineCounts = Family<LineLabels, Counter>;

/// Counts the events of a subscriber. Clones share the counters.
#[derive(Clone, Debug)]
pub(crate) struct Counts(LineCounts);

impl Default for Counts {
    fn default() -> Self {
        let counts = LineCounts::default();
        for level in ["ERROR", "WARN"] {
            let _zero = counts.get_or_create(&LineLabels { level, subsystem: INIT });
        }
        Self(counts)
    }
}

impl Counts {
    /// Returns the counters, for a registry of metrics.
    pub(crate) fn all(&self) -> LineCounts {
        self.0.clone()
    }
}

impl<S: Subscriber> Layer<S> for Counts {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let level = match *metadata.level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARN",
            _ => return,
        };
        let subsystem = metadata.target().split("::").next().unwrap_or_default();
        self.0.get_or_create(&LineLabels { level, subsystem }).inc();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn warnings_and_errors_that_pass_the_filter_are_counted_by_crate() {
        let counted = |filter: LevelFilter| {
            let counts = Counts::default();
            let subscriber = tracing_subscriber::registry().with(filter).with(counts.clone());
            tracing::subscriber::with_default(subscriber, || {
                tracing::info!(target: "ipcache::writer", "not counted");
                tracing::warn!(target: "ipcache::writer", "once");
                tracing::warn!(target: "ipcache", "twice");
                tracing::error!(target: "agent::fatal", "once");
            });
            let mut registry = Registry::default();
            registry.register("lines", "Lines", counts.all());
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let mut samples: Vec<String> =
                text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
            samples.sort();
            samples
        };
        let [error, init_error, init_warn, warn] = [
            r#"lines_total{level="ERROR",subsystem="agent"} 1"#,
            r#"lines_total{level="ERROR",subsystem="init"} 0"#,
            r#"lines_total{level="WARN",subsystem="init"} 0"#,
            r#"lines_total{level="WARN",subsystem="ipcache"} 2"#,
        ];
        assert_eq!(counted(LevelFilter::INFO), [error, init_error, init_warn, warn]);
        assert_eq!(counted(LevelFilter::ERROR), [error, init_error, init_warn]);
    }
}
