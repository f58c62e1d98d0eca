//! The option `log-opt`: format and level.

use std::collections::BTreeMap;
use std::str::FromStr;

use tracing_subscriber::filter::LevelFilter;

/// Options of the log.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Log")]
pub struct LogConfig {
    /// Form and level of the log
    #[flag(
        default = "",
        parse = "format=text|text-ts|json|json-ts and level=error|warn|info|debug|trace, by comma",
        live,
        joins
    )]
    pub log_opt: LogOptions,
}

/// The switch for debug lines, of programs where no other cell has it.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Log")]
pub struct DebugConfig {
    /// Log debug lines, whatever log-opt says
    #[flag(default = false, live)]
    pub debug: bool,
}

/// Format and level of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The form of lines.
    pub format: LogFormat,
    /// The lowest level that is logged.
    pub level: LevelFilter,
}

/// Line format: text or JSON, with or without a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFormat {
    pub(crate) json: bool,
    pub(crate) time: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { format: LogFormat { json: false, time: true }, level: LevelFilter::INFO }
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

#[cfg(test)]
mod tests {
    use super::*;

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
