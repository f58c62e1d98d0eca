//! Options in the models of `GET` and `PATCH /config`.

use api_models::{ConfigurationMap, DaemonConfigurationSpec};
use hive::Settings;
use runtime_options::{BadOption, POLICY_ENFORCEMENT, RuntimeOption};

use crate::error::Error;

/// Returns the values at the start. `setting` returns the text of an option of the agent, if it is set.
fn initial(setting: impl Fn(&str) -> Option<String>) -> Result<Vec<RuntimeOption>, Error> {
    RuntimeOption::initial(setting).map_err(|(key, value, wrong)| Error::Option {
        key,
        value,
        expected: wrong.expected(),
    })
}

/// Returns the values of the runtime options in the settings.
pub(crate) fn of_settings(settings: &Settings) -> Result<Vec<RuntimeOption>, Error> {
    initial(|key| {
        let unused = settings.unused().iter().find(|setting| setting.key == key);
        settings.get(key).or(unused).map(|setting| setting.value.clone())
    })
}

/// Returns the options of a request with canonical values, or the first error.
pub(crate) fn wanted(spec: &DaemonConfigurationSpec) -> Result<Vec<RuntimeOption>, BadOption> {
    // Policy enforcement is a separate field of the model.
    let mut wanted = Vec::new();
    for (name, value) in &spec.options {
        if name.eq_ignore_ascii_case(POLICY_ENFORCEMENT) {
            return Err(BadOption::Unknown(name.clone()));
        }
        wanted.push(RuntimeOption::new(name, value)?);
    }
    if !spec.policy_enforcement.is_empty() {
        wanted.push(RuntimeOption::new(POLICY_ENFORCEMENT, &spec.policy_enforcement)?);
    }
    Ok(wanted)
}

/// Returns the API's model of the options.
pub(crate) fn spec<'a>(options: impl Iterator<Item = &'a RuntimeOption>) -> DaemonConfigurationSpec {
    let mut all: ConfigurationMap =
        options.map(|option| (option.name.to_owned(), option.value.clone())).collect();
    let policy_enforcement = all.remove(POLICY_ENFORCEMENT).unwrap_or_default();
    DaemonConfigurationSpec { options: all, policy_enforcement }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_values_are_those_of_cilium() {
        let options = initial(|_| None).unwrap();
        let spec = spec(options.iter());
        let sample = include_str!("../../../infra/api/models/tests/samples/GET_config.json");
        let sample: api_models::DaemonConfiguration = serde_json::from_str(sample).unwrap();
        assert_eq!(Some(spec), sample.spec);
    }

    #[test]
    fn an_invalid_start_value_names_the_option_of_the_agent() {
        let error = initial(|key| (key == "enable-policy").then(|| "perhaps".to_owned())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "enable-policy: \"perhaps\" is wrong, expected default, always or never"
        );
    }

    #[test]
    fn policy_enforcement_is_a_separate_field() {
        let options = ConfigurationMap::from([(POLICY_ENFORCEMENT.to_owned(), "always".to_owned())]);
        let spec = DaemonConfigurationSpec { options, ..Default::default() };
        assert_eq!(wanted(&spec), Err(BadOption::Unknown(POLICY_ENFORCEMENT.to_owned())));
    }
}
