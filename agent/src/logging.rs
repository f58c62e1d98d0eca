//! Log lines as the original writes them: `time=.. level=info msg=".." module=agent.ipam key=value`, or JSON.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// What `--log-opt format=..,level=..` and `--debug` ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogOptions {
    format: LogFormat,
    level: LevelFilter,
}

/// Text or JSON, with or without a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogFormat {
    json: bool,
    time: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { format: LogFormat { json: false, time: true }, level: LevelFilter::INFO }
    }
}

impl LogOptions {
    /// Reads one `key=value` of `--log-opt`. Names the key, the value and what is allowed when it is neither.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "format" => self.format = value.parse()?,
            "level" => {
                self.level = match value.to_ascii_lowercase().as_str() {
                    "error" | "fatal" | "panic" => LevelFilter::ERROR,
                    "warn" | "warning" => LevelFilter::WARN,
                    "info" => LevelFilter::INFO,
                    "debug" => LevelFilter::DEBUG,
                    "trace" => LevelFilter::TRACE,
                    _ => {
                        return Err(format!("log-opt level `{value}`: use error, warn, info, debug or trace"));
                    }
                }
            }
            _ => return Err(format!("log-opt has no key `{key}`: use format=FORMAT or level=LEVEL")),
        }
        Ok(())
    }

    /// `--debug` shows debug lines whatever the level says.
    pub(crate) fn debug(&mut self) {
        self.level = self.level.max(LevelFilter::DEBUG);
    }

    /// Sends the process's events to standard error in this form. The first call of a process counts.
    pub(crate) fn install(self) {
        let lines = tracing_subscriber::fmt()
            .with_max_level(self.level)
            .with_writer(std::io::stderr)
            .event_format(self.format)
            .finish();
        // A second installation (several agents in one process) keeps the first.
        let _ = tracing::subscriber::set_global_default(lines);
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
            _ => Err(format!("log-opt format `{s}`: use text, text-ts, json or json-ts")),
        }
    }
}

impl<S, N> FormatEvent<S, N> for LogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = Line { json: self.json, text: String::with_capacity(160) };
        if self.time {
            let mut now = String::new();
            SystemTime.format_time(&mut Writer::new(&mut now))?;
            line.pair("time", &now);
        }
        line.pair("level", level_name(event.metadata().level()));
        let mut fields = Fields::default();
        event.record(&mut fields);
        line.pair("msg", &fields.message);
        if !fields.others.iter().any(|(name, _)| *name == "module") {
            let target = event.metadata().target();
            line.pair("subsys", target.split("::").next().unwrap_or(target));
        }
        for (name, value) in &fields.others {
            line.pair(name, value);
        }
        if self.json { writeln!(out, "{{{}}}", line.text) } else { writeln!(out, "{}", line.text) }
    }
}

fn level_name(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// The fields of one event, in the order they were written.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Fields {
    fn push(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            // A raw identifier (`r#type`) is a field named without its mark.
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

/// A log line that grows by pairs.
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

    /// Quotes and control characters escaped, so that one event stays one line.
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
    fn options_say_what_is_allowed() {
        let mut options = LogOptions::default();
        options.set("format", "json-ts").unwrap();
        options.set("level", "warning").unwrap();
        assert_eq!(
            options,
            LogOptions { format: LogFormat { json: true, time: true }, level: LevelFilter::WARN }
        );
        assert_eq!(
            options.set("format", "xml").unwrap_err(),
            "log-opt format `xml`: use text, text-ts, json or json-ts"
        );
        assert_eq!(
            options.set("level", "loud").unwrap_err(),
            "log-opt level `loud`: use error, warn, info, debug or trace"
        );
        assert_eq!(
            options.set("colour", "red").unwrap_err(),
            "log-opt has no key `colour`: use format=FORMAT or level=LEVEL"
        );
    }
}
