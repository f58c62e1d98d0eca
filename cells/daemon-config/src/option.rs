//! Options that can be changed while the agent runs: `PATCH /config`.

use std::fmt;

use api_models::{ConfigurationMap, DaemonConfigurationSpec};
use serde::Serialize;
use statedb::{Query, TableSpec};

use crate::error::Error;

/// The levels of monitor aggregation, in their order.
const LEVELS: [&str; 5] = ["None", "Lowest", "Low", "Medium", "Max"];

/// The option for which the API has a field of its own.
pub const POLICY_ENFORCEMENT: &str = "policy-enforcement";

/// What values an option has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Switch,
    Level,
}

/// An option that can be changed, with where its value at the start comes from.
struct Known {
    name: &'static str,
    form: Form,
    key: &'static str,
    default: &'static str,
}

const fn switch(name: &'static str, key: &'static str, default: &'static str) -> Known {
    Known { name, form: Form::Switch, key, default }
}

const KNOWN: [Known; 9] = [
    switch("Debug", "debug", "false"),
    switch("DebugLB", "", "false"),
    switch("DropNotification", "bpf-events-drop-enabled", "true"),
    Known { name: "MonitorAggregationLevel", form: Form::Level, key: "monitor-aggregation", default: "none" },
    switch("PolicyAuditMode", "policy-audit-mode", "false"),
    switch("PolicyTracing", "enable-tracing", "false"),
    switch("PolicyVerdictNotification", "bpf-events-policy-verdict-enabled", "true"),
    switch("SourceIPVerification", "enable-source-ip-verification", "false"),
    switch("TraceNotification", "bpf-events-trace-enabled", "true"),
];

/// A row of table `runtime-options`: an option and its value, as the API prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct RuntimeOption {
    /// Its name: `Debug`, `TraceNotification`, ..., or [`POLICY_ENFORCEMENT`].
    pub name: &'static str,
    /// Its value: `Enabled`, `Disabled`; a level; `default`, `always`, `never`.
    pub value: String,
}

impl RuntimeOption {
    /// The row of an option.
    pub fn by_name(name: &str) -> Query<Self> {
        Query::primary(name)
    }

    /// Whether a switch is on.
    pub fn enabled(&self) -> bool {
        self.value == "Enabled"
    }
}

impl TableSpec for RuntimeOption {
    const NAME: &'static str = "runtime-options";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        self.name
    }

    fn columns() -> &'static [&'static str] {
        &["Name", "Value"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.name.to_owned(), self.value.clone()]
    }
}

/// The values at the start. `setting` gives the text of an option of the agent, if it is set.
pub(crate) fn initial(setting: impl Fn(&str) -> Option<String>) -> Result<Vec<RuntimeOption>, Error> {
    let mut options = Vec::new();
    for known in &KNOWN {
        let text = setting(known.key).filter(|text| !text.is_empty()).unwrap_or(known.default.to_owned());
        let value = parse(known.form, &text).map_err(|wrong| Error::Option {
            key: known.key,
            value: text.clone(),
            expected: wrong.expected(),
        })?;
        options.push(RuntimeOption { name: known.name, value });
    }
    let enforcement = setting("enable-policy").unwrap_or("default".to_owned()).to_lowercase();
    if !["default", "always", "never"].contains(&enforcement.as_str()) {
        let expected = "default, always or never";
        return Err(Error::Option { key: "enable-policy", value: enforcement, expected });
    }
    options.push(RuntimeOption { name: POLICY_ENFORCEMENT, value: enforcement });
    Ok(options)
}

/// The options that a request wants, with their values as they are printed; all or none.
pub(crate) fn wanted(spec: &DaemonConfigurationSpec) -> Result<Vec<RuntimeOption>, BadOption> {
    let mut wanted = Vec::new();
    for (name, value) in &spec.options {
        let known = KNOWN.iter().find(|known| known.name.eq_ignore_ascii_case(name));
        let known = known.ok_or_else(|| BadOption::Unknown(name.clone()))?;
        let value = parse(known.form, value).map_err(BadOption::Value)?;
        wanted.push(RuntimeOption { name: known.name, value });
    }
    if !spec.policy_enforcement.is_empty() {
        wanted.push(RuntimeOption { name: POLICY_ENFORCEMENT, value: spec.policy_enforcement.clone() });
    }
    Ok(wanted)
}

/// The options as the API shows them.
pub(crate) fn spec<'a>(options: impl Iterator<Item = &'a RuntimeOption>) -> DaemonConfigurationSpec {
    let mut all: ConfigurationMap =
        options.map(|option| (option.name.to_owned(), option.value.clone())).collect();
    let policy_enforcement = all.remove(POLICY_ENFORCEMENT).unwrap_or_default();
    DaemonConfigurationSpec { options: all, policy_enforcement }
}

/// Why a request's options are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadOption {
    Unknown(String),
    Value(WrongValue),
}

impl fmt::Display for BadOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid configuration option: ")?;
        match self {
            Self::Unknown(name) => write!(f, "unknown option {name:?}"),
            Self::Value(WrongValue { form: Form::Switch, value }) => {
                write!(f, "invalid option value {value}")
            }
            Self::Value(WrongValue { form: Form::Level, value }) => match value.parse::<i64>() {
                Ok(_) => write!(f, "monitor aggregation level must be between 0 and {}", LEVELS.len() - 1),
                Err(_) => write!(f, "invalid monitor aggregation level {value:?}"),
            },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrongValue {
    form: Form,
    value: String,
}

impl WrongValue {
    fn expected(&self) -> &'static str {
        match self.form {
            Form::Switch => "true or false",
            Form::Level => "none, lowest, low, medium, max or 0 to 4",
        }
    }
}

/// A value as it is printed.
fn parse(form: Form, text: &str) -> Result<String, WrongValue> {
    let wrong = || WrongValue { form, value: text.to_owned() };
    let lower = text.to_lowercase();
    let printed = match form {
        Form::Switch => match lower.as_str() {
            "true" | "on" | "enable" | "enabled" | "1" => "Enabled",
            "false" | "off" | "disable" | "disabled" | "0" => "Disabled",
            _ => return Err(wrong()),
        },
        Form::Level => {
            let index = match lower.as_str() {
                "" | "disabled" => Some(0),
                "maximum" => Some(4),
                word => LEVELS.iter().position(|level| level.eq_ignore_ascii_case(word)),
            };
            let index = index.or_else(|| lower.parse().ok()).ok_or_else(wrong)?;
            LEVELS.get(index).ok_or_else(wrong)?
        }
    };
    Ok(printed.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(name: &str, value: &str) -> Result<String, String> {
        let options = ConfigurationMap::from([(name.to_owned(), value.to_owned())]);
        let spec = DaemonConfigurationSpec { options, ..Default::default() };
        let wanted = wanted(&spec).map_err(|error| error.to_string())?;
        Ok(format!("{}={}", wanted[0].name, wanted[0].value))
    }

    #[test]
    fn options_are_known_by_name_and_printed_in_one_form() {
        for (name, value, printed) in [
            ("Debug", "true", "Debug=Enabled"),
            ("debug", "OFF", "Debug=Disabled"),
            ("TraceNotification", "Enabled", "TraceNotification=Enabled"),
            ("PolicyAuditMode", "1", "PolicyAuditMode=Enabled"),
            ("MonitorAggregationLevel", "medium", "MonitorAggregationLevel=Medium"),
            ("MonitorAggregationLevel", "4", "MonitorAggregationLevel=Max"),
            ("MonitorAggregationLevel", "maximum", "MonitorAggregationLevel=Max"),
        ] {
            assert_eq!(want(name, value).unwrap(), printed);
        }
    }

    #[test]
    fn wrong_options_are_refused_with_the_original_texts() {
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
    fn the_start_values_are_those_of_the_original() {
        let options = initial(|_| None).unwrap();
        let spec = spec(options.iter());
        let sample = include_str!("../../api/models/tests/samples/GET_config.json");
        let sample: api_models::DaemonConfiguration = serde_json::from_str(sample).unwrap();
        assert_eq!(Some(spec), sample.spec);
    }

    #[test]
    fn the_start_values_follow_the_settings() {
        let setting = |key: &str| match key {
            "debug" => Some("true".to_owned()),
            "monitor-aggregation" => Some("medium".to_owned()),
            "enable-policy" => Some("always".to_owned()),
            _ => None,
        };
        let spec = spec(initial(setting).unwrap().iter());
        assert_eq!(spec.options["Debug"], "Enabled");
        assert_eq!(spec.options["MonitorAggregationLevel"], "Medium");
        assert_eq!(spec.policy_enforcement, "always");
        let error = initial(|key| (key == "enable-policy").then(|| "perhaps".to_owned())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "enable-policy: \"perhaps\" is wrong, expected default, always or never"
        );
    }
}
