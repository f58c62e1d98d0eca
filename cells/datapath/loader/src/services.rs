//! The options of services in the datapath, in Cilium's spelling; constants of the programs.

use hive::OptionError;

/// Options about packets that pods send to services.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Services")]
#[config(check = |config: &Self| config.settings().map(drop).map_err(|error| error.to_string()))]
pub struct ServicesConfig {
    /// Response to packets to services without backends: reject (ICMP error) or drop (silently)
    #[flag(default = "reject", live)]
    pub service_no_backend_response: String,
    /// Reject packets to services without backends instead of leaving them to the node's routes
    #[flag(default = true, live)]
    pub enable_no_service_endpoints_routable: bool,
}

/// The checked options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceSettings {
    /// Packets to a service without backends are answered with an ICMP error.
    pub(crate) reject: bool,
    /// Packets to a service without backends are not forwarded.
    pub(crate) drop_empty: bool,
}

impl ServicesConfig {
    pub(crate) fn settings(&self) -> Result<ServiceSettings, OptionError> {
        let wrong = |option, value: &str, expected| OptionError::new(option, value, expected);
        Ok(ServiceSettings {
            reject: match self.service_no_backend_response.as_str() {
                "reject" => true,
                "drop" => false,
                other => return Err(wrong("service-no-backend-response", other, "reject or drop")),
            },
            drop_empty: self.enable_no_service_endpoints_routable,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn config() -> ServicesConfig {
        ServicesConfig {
            service_no_backend_response: "reject".to_owned(),
            enable_no_service_endpoints_routable: true,
        }
    }

    #[test]
    fn wrong_values_are_named() {
        assert!(config().settings().unwrap().reject);
        let drop = ServicesConfig { service_no_backend_response: "drop".to_owned(), ..config() };
        assert!(!drop.settings().unwrap().reject);
        let wrong = ServicesConfig { service_no_backend_response: "refuse".to_owned(), ..config() };
        assert_eq!(
            wrong.settings().unwrap_err().to_string(),
            "option service-no-backend-response: 'refuse' is wrong; give reject or drop"
        );
    }
}
