//! The options of services, in Cilium's spelling. Changes take effect at the next start.

use std::path::PathBuf;
use std::time::Duration;

/// Where services come from and how their rows are kept.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Services", check = |config: &Self| config.validate().map_err(|error| error.to_string()))]
pub struct ServicesConfig {
    /// File of Services and EndpointSlices (.yaml, .yml or .json), read again when it changes
    #[flag(default = "")]
    pub lb_state_file: String,
    /// How long that file must be left alone before it is read again
    #[flag(default = "1s", hidden)]
    pub lb_state_file_interval: Duration,
    /// How long services of an earlier run wait for all sources before any of them is changed
    #[flag(default = "1m", hidden)]
    pub lb_init_wait_timeout: Duration,
    /// First wait before rows that the kernel refused are written again
    #[flag(default = "1s", hidden)]
    pub lb_retry_backoff_min: Duration,
    /// Longest wait before rows that the kernel refused are written again
    #[flag(default = "1s", hidden)]
    pub lb_retry_backoff_max: Duration,
    /// Who gives addresses to load balancers without a class: lbipam, nodeipam or none
    #[flag(default = "lbipam")]
    pub default_lb_service_ipam: String,
}

impl Default for ServicesConfig {
    fn default() -> ServicesConfig {
        ServicesConfig {
            lb_state_file: String::new(),
            lb_state_file_interval: Duration::from_secs(1),
            lb_init_wait_timeout: Duration::from_secs(60),
            lb_retry_backoff_min: Duration::from_secs(1),
            lb_retry_backoff_max: Duration::from_secs(1),
            default_lb_service_ipam: "lbipam".to_owned(),
        }
    }
}

/// An option that the agent cannot start with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option {option}: '{value}' is wrong; {right}")]
pub struct WrongOption {
    /// The option's name.
    pub option: &'static str,
    /// Its value.
    pub value: String,
    /// What would be right.
    pub right: &'static str,
}

impl ServicesConfig {
    /// Checks what the options' types do not.
    pub fn validate(&self) -> Result<(), WrongOption> {
        let wrong = |option, value: &str, right| Err(WrongOption { option, value: value.to_owned(), right });
        if !["lbipam", "nodeipam", "none"].contains(&self.default_lb_service_ipam.as_str()) {
            let value = &self.default_lb_service_ipam;
            return wrong("default-lb-service-ipam", value, "give lbipam, nodeipam or none");
        }
        if let Some(path) = self.state_file() {
            let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
            if !["yaml", "yml", "json"].contains(&suffix) {
                let right = "give a file whose name ends in .yaml, .yml or .json";
                return wrong("lb-state-file", &self.lb_state_file, right);
            }
        }
        Ok(())
    }

    /// The state file, if there is to be one.
    pub fn state_file(&self) -> Option<PathBuf> {
        (!self.lb_state_file.is_empty()).then(|| PathBuf::from(&self.lb_state_file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_named_with_what_is_right() {
        ServicesConfig::default().validate().unwrap();
        for name in ["/run/lb.yaml", "lb.yml", "a.b.json"] {
            let config = ServicesConfig { lb_state_file: name.to_owned(), ..Default::default() };
            config.validate().unwrap();
        }
        for name in ["/run/lb.toml", "/run/lb", "/run/yaml"] {
            let config = ServicesConfig { lb_state_file: name.to_owned(), ..Default::default() };
            assert_eq!(
                config.validate().unwrap_err().to_string(),
                format!(
                    "option lb-state-file: '{name}' is wrong; give a file whose name ends in .yaml, .yml or .json"
                )
            );
        }
        let config = ServicesConfig { default_lb_service_ipam: "x".to_owned(), ..Default::default() };
        assert!(config.validate().unwrap_err().to_string().contains("give lbipam, nodeipam or none"));
    }
}
