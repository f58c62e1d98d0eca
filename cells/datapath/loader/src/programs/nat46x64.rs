//! Translation between the IP families: for services with backends of the other one, and as a gateway.

use datapath_abi::NodeConfig;
use hive::Settings;
use maps::FamilyConfig;

/// The option of services.
const SERVICES: &str = "bpf-lb-nat46x64";
/// The option of the gateway.
const GATEWAY: &str = "enable-nat46x64-gateway";

/// Options that cannot be in force together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// There is no other family to translate to.
    #[error(
        "option {option}: 'true' needs both families; give enable-ipv4=true and enable-ipv6=true, or {option}=false"
    )]
    OneFamily {
        /// The option.
        option: &'static str,
    },
    /// A backend would reply to a client of another family itself.
    #[error(
        "option bpf-lb-nat46x64: 'true' is wrong with bpf-lb-mode={mode}; give bpf-lb-mode=snat or bpf-lb-nat46x64=false"
    )]
    Mode {
        /// The mode.
        mode: String,
    },
}

/// Which packets are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Translation {
    /// Those of services.
    services: bool,
    /// Those of other machines.
    gateway: bool,
}

impl Translation {
    /// Reads the options, which have no effect unless this agent serves clients outside of the node.
    pub(crate) fn new(settings: &Settings, families: &FamilyConfig) -> Result<Self, Error> {
        let value = |option: &str| settings.get(option).map_or("", |setting| setting.value.as_str());
        let is_on = |option| value(option) == "true";
        let asked = Self { services: is_on(SERVICES), gateway: is_on(GATEWAY) };
        let checked = asked.checked(value("bpf-lb-mode"), families.enable_ipv4 && families.enable_ipv6)?;
        Ok(if is_on("kube-proxy-replacement") { checked } else { Self::default() })
    }

    fn checked(self, mode: &str, has_both: bool) -> Result<Self, Error> {
        for (is_on, option) in [(self.gateway, GATEWAY), (self.services, SERVICES)] {
            if is_on && !has_both {
                return Err(Error::OneFamily { option });
            }
        }
        if self.services && mode != "snat" {
            return Err(Error::Mode { mode: mode.to_owned() });
        }
        Ok(self)
    }

    /// Writes the options into the constants of the programs.
    pub(crate) fn apply(&self, constants: &mut NodeConfig) {
        constants.nat46x64 = (self.services || self.gateway).into();
        constants.nat46x64_gateway = self.gateway.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_constants() {
        for (services, gateway, expected) in
            [(false, false, (0, 0)), (true, false, (1, 0)), (false, true, (1, 1)), (true, true, (1, 1))]
        {
            let mut constants = NodeConfig::default();
            Translation { services, gateway }.checked("snat", true).unwrap().apply(&mut constants);
            assert_eq!((constants.nat46x64, constants.nat46x64_gateway), expected);
        }
    }

    #[test]
    fn one_family_and_other_modes_are_refused() {
        let error = |services, gateway, mode, has_both| {
            Translation { services, gateway }.checked(mode, has_both).unwrap_err().to_string()
        };
        assert_eq!(
            error(false, true, "snat", false),
            "option enable-nat46x64-gateway: 'true' needs both families; give enable-ipv4=true and enable-ipv6=true, or \
             enable-nat46x64-gateway=false"
        );
        assert!(error(true, false, "snat", false).starts_with("option bpf-lb-nat46x64: "));
        assert_eq!(
            error(true, true, "hybrid", true),
            "option bpf-lb-nat46x64: 'true' is wrong with bpf-lb-mode=hybrid; give bpf-lb-mode=snat or \
             bpf-lb-nat46x64=false"
        );
        let gateway = Translation { services: false, gateway: true };
        assert_eq!(gateway.checked("dsr", true), Ok(gateway), "the gateway has no backends");
        assert_eq!(Translation::default().checked("dsr", false), Ok(Translation::default()));
    }
}
