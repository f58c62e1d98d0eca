//! Log lines as Cilium writes them: `time=.. level=info msg=".." module=agent.ipam key=value`, or JSON.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use crate::options::LogFormat;

/// A line format that may change concurrently with writers.
#[derive(Clone, Debug, Default)]
pub struct SharedFormat(Arc<AtomicU8>);

impl SharedFormat {
    pub(crate) fn set(&self, format: LogFormat) {
        self.0.store(u8::from(format.json) << 1 | u8::from(format.time), Ordering::Relaxed);
    }

    fn now(&self) -> LogFormat {
        let bits = self.0.load(Ordering::Relaxed);
        LogFormat { json: bits & 2 != 0, time: bits & 1 != 0 }
    }

    /// Returns a line that is no event of the program.
    pub(crate) fn line(&self, pairs: &[(&str, &str)]) -> String {
        let format = self.now();
        let mut line = Line::begin(format);
        pairs.iter().for_each(|(key, value)| line.pair(key, value));
        line.end()
    }
}

impl<S, N> FormatEvent<S, N> for SharedFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, cx: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let format = self.now();
        let mut line = Line::begin(format);
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
        out.write_str(&line.end())
    }
}

/// Suffix of the targets of events that are logged with level `fatal`, which tracing does not have: `agent::fatal`.
const FATAL_SUFFIX: &str = "::fatal";

/// Terminator of a field in the formatted fields of a span. A control character, because values may contain spaces.
pub(crate) const SEPARATOR: char = '\u{1e}';

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
        Level::ERROR if event.target().ends_with(FATAL_SUFFIX) => "fatal",
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
    fn begin(format: LogFormat) -> Self {
        let mut line = Self { json: format.json, text: String::with_capacity(160) };
        if format.time {
            let mut now = String::new();
            // Writing to a string cannot fail.
            let _ = SystemTime.format_time(&mut Writer::new(&mut now));
            line.pair("time", &now);
        }
        line
    }

    fn end(self) -> String {
        if self.json { format!("{{{}}}\n", self.text) } else { self.text + "\n" }
    }

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
}
