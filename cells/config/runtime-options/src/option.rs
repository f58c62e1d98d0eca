//! Names and values of the options, and their row type.

use serde::Serialize;
use statedb::Table;

/// Debug lines in the agent's log.
pub const DEBUG: &str = "Debug";
/// Events of dropped packets.
pub const DROP_NOTIFICATION: &str = "DropNotification";
/// The aggregation level of events of forwarded packets.
pub const MONITOR_AGGREGATION_LEVEL: &str = "MonitorAggregationLevel";
/// Whether policy only reports what it would drop.
pub const POLICY_AUDIT_MODE: &str = "PolicyAuditMode";
/// Events of policy verdicts.
pub const POLICY_VERDICT_NOTIFICATION: &str = "PolicyVerdictNotification";
/// Whether pods may send from their own addresses only.
pub const SOURCE_IP_VERIFICATION: &str = "SourceIPVerification";
/// Events of forwarded packets.
pub const TRACE_NOTIFICATION: &str = "TraceNotification";
/// The option that is a separate field in the API.
pub const POLICY_ENFORCEMENT: &str = "policy-enforcement";

/// The levels of monitor aggregation, in their order.
const LEVELS: [&str; 5] = ["None", "Lowest", "Low", "Medium", "Max"];

/// The type of an option's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Switch,
    Level,
    Enforcement,
}

/// A runtime option, with the agent's option of its initial value.
struct Known {
    name: &'static str,
    form: Form,
    key: &'static str,
    default: &'static str,
    /// Whether it has an effect in this agent.
    effective: bool,
}

const fn switch_of(name: &'static str, key: &'static str, default: &'static str, effective: bool) -> Known {
    Known { name, form: Form::Switch, key, default, effective }
}

const KNOWN: [Known; 10] = [
    switch_of(DEBUG, "debug", "false", true),
    switch_of("DebugLB", "", "false", false),
    switch_of(DROP_NOTIFICATION, "bpf-events-drop-enabled", "true", true),
    Known {
        name: MONITOR_AGGREGATION_LEVEL,
        form: Form::Level,
        key: "monitor-aggregation",
        default: "none",
        effective: true,
    },
    switch_of(POLICY_AUDIT_MODE, "policy-audit-mode", "false", true),
    switch_of("PolicyTracing", "enable-tracing", "false", false),
    switch_of(POLICY_VERDICT_NOTIFICATION, "bpf-events-policy-verdict-enabled", "true", true),
    switch_of(SOURCE_IP_VERIFICATION, "enable-source-ip-verification", "false", true),
    switch_of(TRACE_NOTIFICATION, "bpf-events-trace-enabled", "true", true),
    Known {
        name: POLICY_ENFORCEMENT,
        form: Form::Enforcement,
        key: "enable-policy",
        default: "default",
        effective: true,
    },
];

/// A row of table `runtime-options`: an option and its value, as the API prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Table)]
#[table(name = "runtime-options")]
#[serde(rename_all = "PascalCase")]
pub struct RuntimeOption {
    /// Its name: [`DEBUG`], [`TRACE_NOTIFICATION`], ..., or [`POLICY_ENFORCEMENT`].
    #[primary]
    pub name: &'static str,
    /// Its value: `Enabled`, `Disabled`; a level; `default`, `always`, `never`.
    pub value: String,
}

/// The reason to refuse an option, with Cilium's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadOption {
    /// The option does not exist.
    #[error("invalid configuration option: unknown option {0:?}")]
    Unknown(String),
    /// The value is neither on nor off.
    #[error("invalid configuration option: invalid option value {0}")]
    Switch(String),
    /// The level does not exist.
    #[error("invalid configuration option: {}", match .0.parse::<i64>() {
        Ok(_) => format!("monitor aggregation level must be between 0 and {}", LEVELS.len() - 1),
        Err(_) => format!("invalid monitor aggregation level {:?}", .0),
    })]
    Level(String),
    /// The mode of policy enforcement does not exist.
    #[error("invalid configuration option: invalid policy enforcement {0:?}")]
    Enforcement(String),
}

impl BadOption {
    /// Returns a description of valid values.
    pub fn expected(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "the name of an option",
            Self::Switch(_) => "true or false",
            Self::Level(_) => "none, lowest, low, medium, max or 0 to 4",
            Self::Enforcement(_) => "default, always or never",
        }
    }
}

impl RuntimeOption {
    /// Parses an option's name and value in any of the accepted spellings.
    pub fn new(name: &str, value: &str) -> Result<Self, BadOption> {
        let known = KNOWN.iter().find(|known| known.name.eq_ignore_ascii_case(name));
        let known = known.ok_or_else(|| BadOption::Unknown(name.to_owned()))?;
        Ok(Self { name: known.name, value: known.form.print(value)? })
    }

    /// Returns all options with their initial values: from the agent's option if `setting` returns a text for it, else
    /// the default. The error of an invalid value has the key of the agent's option.
    pub fn initial(
        setting: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Self>, (&'static str, String, BadOption)> {
        let option = |known: &Known| {
            let text = setting(known.key).filter(|text| !text.is_empty()).unwrap_or(known.default.to_owned());
            let value = known.form.print(&text).map_err(|wrong| (known.key, text, wrong))?;
            Ok(Self { name: known.name, value })
        };
        KNOWN.iter().map(option).collect()
    }

    /// Returns the key of the agent's option for the initial value, empty if there is none.
    pub fn key(&self) -> &'static str {
        KNOWN.iter().find(|known| known.name == self.name).map_or("", |known| known.key)
    }

    /// Whether a switch is on.
    pub fn enabled(&self) -> bool {
        self.value == "Enabled"
    }

    /// Returns the level of monitor aggregation, 0 to 4; 0 for other options.
    pub fn level(&self) -> u32 {
        level(&self.value).filter(|_| self.name == MONITOR_AGGREGATION_LEVEL).unwrap_or(0)
    }

    /// Whether the option has an effect in this agent. Others are accepted and returned, for compatibility.
    pub fn is_effective(&self) -> bool {
        KNOWN.iter().any(|known| known.name == self.name && known.effective)
    }
}

/// Parses a switch in any spelling that Cilium accepts.
pub fn switch(text: &str) -> Option<bool> {
    match text.to_lowercase().as_str() {
        "true" | "on" | "enable" | "enabled" | "1" => Some(true),
        "false" | "off" | "disable" | "disabled" | "0" => Some(false),
        _ => None,
    }
}

/// Parses a level of monitor aggregation, 0 (`None`) to 4 (`Max`), in any spelling that Cilium accepts.
pub fn level(text: &str) -> Option<u32> {
    let lower = text.to_lowercase();
    let named = LEVELS.iter().zip(0..).find(|(level, _)| level.eq_ignore_ascii_case(&lower));
    match lower.as_str() {
        "" | "disabled" => Some(0),
        "maximum" => Some(4),
        word => named.map(|(_, number)| number).or_else(|| word.parse().ok()).filter(|number| *number <= 4),
    }
}

impl Form {
    /// Returns the canonical text of a value.
    fn print(self, text: &str) -> Result<String, BadOption> {
        match self {
            Self::Switch => match switch(text) {
                Some(true) => Ok("Enabled".to_owned()),
                Some(false) => Ok("Disabled".to_owned()),
                None => Err(BadOption::Switch(text.to_owned())),
            },
            Self::Level => {
                let word = level(text).and_then(|level| LEVELS.get(level as usize));
                word.map(|word| (*word).to_owned()).ok_or_else(|| BadOption::Level(text.to_owned()))
            }
            Self::Enforcement => {
                let lower = text.to_lowercase();
                let known = ["default", "always", "never"].contains(&lower.as_str());
                if known { Ok(lower) } else { Err(BadOption::Enforcement(text.to_owned())) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use statedb::{TableDisplay, TableSpec};

    use super::*;

    #[test]
    fn rows_are_formatted() {
        let option = RuntimeOption { name: DEBUG, value: "Enabled".to_owned() };
        assert_eq!(RuntimeOption::columns(), ["Name", "Value"]);
        assert_eq!(TableDisplay::row(&option), [DEBUG, "Enabled"]);
        assert_eq!(
            (RuntimeOption::NAME, RuntimeOption::PRIMARY, TableSpec::key(&option)),
            ("runtime-options", "primary", DEBUG)
        );
    }

    fn want(name: &str, value: &str) -> Result<String, String> {
        let option = RuntimeOption::new(name, value).map_err(|error| error.to_string())?;
        Ok(format!("{}={}", option.name, option.value))
    }

    #[test]
    fn options_are_parsed_and_printed_in_canonical_form() {
        for (name, value, printed) in [
            ("Debug", "true", "Debug=Enabled"),
            ("debug", "OFF", "Debug=Disabled"),
            ("TraceNotification", "Enabled", "TraceNotification=Enabled"),
            ("PolicyAuditMode", "1", "PolicyAuditMode=Enabled"),
            ("MonitorAggregationLevel", "medium", "MonitorAggregationLevel=Medium"),
            ("MonitorAggregationLevel", "4", "MonitorAggregationLevel=Max"),
            ("MonitorAggregationLevel", "maximum", "MonitorAggregationLevel=Max"),
            ("policy-enforcement", "Always", "policy-enforcement=always"),
        ] {
            assert_eq!(want(name, value).unwrap(), printed);
        }
    }

    #[test]
    fn invalid_options_are_refused_with_ciliums_messages() {
        for (name, value, text) in [
            ("Nope", "true", "invalid configuration option: unknown option \"Nope\""),
            ("Debug", "maybe", "invalid configuration option: invalid option value maybe"),
            (
                "MonitorAggregationLevel",
                "much",
                "invalid configuration option: invalid monitor aggregation level \"much\"",
            ),
            (
                "MonitorAggregationLevel",
                "5",
                "invalid configuration option: monitor aggregation level must be between 0 and 4",
            ),
        ] {
            assert_eq!(want(name, value).unwrap_err(), text);
        }
    }

    #[test]
    fn the_start_values_follow_the_settings() {
        let setting = |key: &str| match key {
            "debug" => Some("true".to_owned()),
            "monitor-aggregation" => Some("medium".to_owned()),
            "enable-policy" => Some("always".to_owned()),
            _ => None,
        };
        let options = RuntimeOption::initial(setting).unwrap();
        let value = |name| options.iter().find(|option| option.name == name).unwrap();
        assert!(value(DEBUG).enabled() && value(DROP_NOTIFICATION).enabled());
        assert_eq!((value(MONITOR_AGGREGATION_LEVEL).level(), value(DEBUG).level()), (3, 0));
        assert_eq!(value(POLICY_ENFORCEMENT).value, "always");
        let (key, text, wrong) =
            RuntimeOption::initial(|key| (key == "enable-policy").then(|| "perhaps".to_owned())).unwrap_err();
        assert_eq!(
            (key, text.as_str(), wrong.expected()),
            ("enable-policy", "perhaps", "default, always or never")
        );
    }
}
