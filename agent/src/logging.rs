//! Log lines as Cilium writes them: `time=.. level=info msg=".." module=agent.ipam key=value`, or JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use daemon_config::RuntimeConfig;
use hive::{ConfigError, Hive};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;

use crate::log_level::{LogFilter, LogLevel};

/// Options of the log.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Log")]
pub(crate) struct LogConfig {
    /// Form and level of the log
    #[flag(
        default = "",
        parse = "format=text|text-ts|json|json-ts and level=error|warn|info|debug|trace, by comma",
        live,
        joins
    )]
    pub(crate) log_opt: LogOptions,
}

impl LogConfig {
    /// Returns format and level of `log-opt`, and the option `debug`. Call it before any cell is built, so that errors
    /// of constructors are logged in the configured format.
    pub(crate) fn options(hive: &Hive) -> Result<(LogOptions, bool), ConfigError> {
        Ok((hive.config::<Self>()?.log_opt, hive.config::<RuntimeConfig>()?.debug))
    }
}

/// Format and level of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogOptions {
    pub(crate) format: LogFormat,
    pub(crate) level: LevelFilter,
}

/// Line format: text or JSON, with or without a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogFormat {
    json: bool,
    time: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { format: LogFormat { json: false, time: true }, level: LevelFilter::INFO }
    }
}

impl LogOptions {
    /// Installs a subscriber that writes events to standard error in this format. Only the first call of a process has
    /// an effect on the subscriber.
    pub(crate) fn install(self, filter: LogFilter, level: &LogLevel, debug: bool) {
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .fmt_fields(debug_fn(|out, field, value| write!(out, "{field}={value:?}{SEPARATOR}")))
            .event_format(level.format());
        // A second installation (several agents in one process) keeps the first.
        let _ =
            tracing::subscriber::set_global_default(tracing_subscriber::registry().with(filter).with(lines));
        level.set(self, debug);
    }
}

impl FromStr for LogOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A map in a configuration file arrives as a JSON object.
        let pairs: Vec<String> = if text.starts_with('{') {
            let object: BTreeMap<String, String> =
                serde_json::from_str(text).map_err(|error| error.to_string())?;
            object.into_iter().map(|(key, value)| format!("{key}={value}")).collect()
        } else {
            text.split(',').map(str::to_owned).collect()
        };
        let mut options = Self::default();
        for pair in pairs.iter().filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("format", value)) => options.format = value.parse()?,
                Some(("level", value)) => {
                    options.level = match value.to_ascii_lowercase().as_str() {
                        "error" | "fatal" | "panic" => LevelFilter::ERROR,
                        "warn" | "warning" => LevelFilter::WARN,
                        "info" => LevelFilter::INFO,
                        "debug" => LevelFilter::DEBUG,
                        "trace" => LevelFilter::TRACE,
                        _ => return Err(format!("level {value}: use error, warn, info, debug or trace")),
                    }
                }
                _ => return Err(format!("{pair}: use format=FORMAT or level=LEVEL")),
            }
        }
        Ok(options)
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (kind, time) = match s.strip_suffix("-ts") {
            Some(kind) => (kind, true),
            None => (s, false),
        };
        match kind {
            "text" => Ok(Self { json: false, time }),
            "json" => Ok(Self { json: true, time }),
            _ => Err(format!("format {s}: use text, text-ts, json or json-ts")),
        }
    }
}

/// A line format that may change concurrently with writers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFormat(Arc<AtomicU8>);

impl SharedFormat {
    pub(crate) fn set(&self, format: LogFormat) {
        self.0.store(u8::from(format.json) << 1 | u8::from(format.time), Ordering::Relaxed);
    }

    fn now(&self) -> LogFormat {
        let bits = self.0.load(Ordering::Relaxed);
        LogFormat { json: bits & 2 != 0, time: bits & 1 != 0 }
    }
}

impl<S, N> FormatEvent<S, N> for SharedFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, cx: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let format = self.now();
        let mut line = Line { json: format.json, text: String::with_capacity(160) };
        if format.time {
            let mut now = String::new();
            SystemTime.format_time(&mut Writer::new(&mut now))?;
            line.pair("time", &now);
        }
        line.pair("level", level_name(event.metadata()));
        let mut fields = Fields::default();
        event.record(&mut fields);
        line.pair("msg", &fields.message);
        if !fields.others.iter().any(|(name, _)| *name == "module") {
            match module(cx) {
                Some(module) => line.pair("module", &module),
                None => {
                    let target = event.metadata().target();
                    line.pair("subsys", target.split("::").next().unwrap_or(target));
                }
            }
        }
        for (name, value) in &fields.others {
            line.pair(name, value);
        }
        if format.json { writeln!(out, "{{{}}}", line.text) } else { writeln!(out, "{}", line.text) }
    }
}

/// Target of events that are logged with level `fatal`, which tracing does not have.
pub(crate) const FATAL: &str = "agent::fatal";

/// Terminator of a field in the formatted fields of a span. A control character, because values may contain spaces.
const SEPARATOR: char = '\u{1e}';

/// Returns the module of the event: the hive records it in the span around constructors, hooks and jobs.
fn module<S, N>(cx: &FmtContext<'_, S, N>) -> Option<String>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    cx.event_scope()?.find_map(|span| {
        let extensions = span.extensions();
        let fields = &extensions.get::<FormattedFields<N>>()?.fields;
        fields.split(SEPARATOR).find_map(|field| field.strip_prefix("module=")).map(str::to_owned)
    })
}

fn level_name(event: &Metadata<'_>) -> &'static str {
    match *event.level() {
        Level::ERROR if event.target() == FATAL => "fatal",
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// Fields of one event, in recording order.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Fields {
    fn push(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            // tracing keeps the prefix of raw identifiers (`r#type`); log readers expect `type`.
            name => self.others.push((name.strip_prefix("r#").unwrap_or(name), value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, value.to_owned());
    }
}

/// A log line under construction.
struct Line {
    json: bool,
    text: String,
}

impl Line {
    fn pair(&mut self, key: &str, value: &str) {
        if !self.text.is_empty() {
            self.text.push(if self.json { ',' } else { ' ' });
        }
        if self.json {
            self.quoted(key);
            self.text.push(':');
            self.quoted(value);
            return;
        }
        self.text.push_str(key);
        self.text.push('=');
        if value.is_empty() || value.chars().any(|c| c <= ' ' || c == '=' || c == '"' || c == '\u{7f}') {
            self.quoted(value);
        } else {
            self.text.push_str(value);
        }
    }

    /// Appends a quoted value with control characters escaped, so that one event stays one line.
    fn quoted(&mut self, value: &str) {
        self.text.push('"');
        for c in value.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                c if u32::from(c) < 0x20 || c == '\u{7f}' => {
                    // Writing to a string cannot fail.
                    let _ = write!(self.text, "\\u{:04x}", u32::from(c));
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(json: bool, pairs: &[(&str, &str)]) -> String {
        let mut line = Line { json, text: String::new() };
        for (key, value) in pairs {
            line.pair(key, value);
        }
        line.text
    }

    #[test]
    fn values_are_quoted_where_they_would_break_the_line() {
        let pairs = [("level", "info"), ("msg", "a \"b\"\nc"), ("empty", ""), ("path", "/run/x")];
        assert_eq!(line(false, &pairs), r#"level=info msg="a \"b\"\nc" empty="" path=/run/x"#);
        assert_eq!(line(true, &pairs), r#""level":"info","msg":"a \"b\"\nc","empty":"","path":"/run/x""#);
    }

    #[test]
    fn errors_of_options_list_valid_values() {
        let parse = |text: &str| text.parse::<LogOptions>();
        assert_eq!(
            parse("format=json-ts,level=warning"),
            Ok(LogOptions { format: LogFormat { json: true, time: true }, level: LevelFilter::WARN })
        );
        assert_eq!(parse(r#"{"format":"json-ts","level":"warning"}"#), parse("format=json-ts,level=warning"));
        assert!(parse("{}").is_ok() && parse("{").is_err());
        assert_eq!(parse(""), Ok(LogOptions::default()));
        assert_eq!(parse("format=xml").unwrap_err(), "format xml: use text, text-ts, json or json-ts");
        assert_eq!(parse("level=loud").unwrap_err(), "level loud: use error, warn, info, debug or trace");
        assert_eq!(parse("colour=red").unwrap_err(), "colour=red: use format=FORMAT or level=LEVEL");
    }
}
