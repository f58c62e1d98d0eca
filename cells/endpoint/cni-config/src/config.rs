//! The options, in Cilium's spelling.

use hive::config::{FlagValue, Kind, Parsed};

/// How this plugin shares a pod's interface with other plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChainingMode {
    /// It creates the interface.
    #[default]
    None,
    /// It creates the interface; `portmap` maps host ports after it.
    Portmap,
    /// `flannel` creates the interface.
    Flannel,
    /// The plugin of AWS creates it.
    AwsCni,
    /// The plugin of Azure creates it.
    Azure,
    /// Another plugin creates a veth pair.
    GenericVeth,
}

impl FlagValue for ChainingMode {
    const KIND: Kind = Kind::Text;
    const ZERO: &'static str = "none";
    const EXPECTED: Option<&'static str> = Some("none, portmap, flannel, aws-cni, azure or generic-veth");

    fn take(value: &Parsed<'_>) -> Result<ChainingMode, String> {
        ChainingMode::ALL.into_iter().find(|mode| mode.as_str() == value.text()).ok_or_else(String::new)
    }

    fn render(&self) -> String {
        self.as_str().to_owned()
    }
}

impl ChainingMode {
    const ALL: [ChainingMode; 6] = [
        ChainingMode::None,
        ChainingMode::Portmap,
        ChainingMode::Flannel,
        ChainingMode::AwsCni,
        ChainingMode::Azure,
        ChainingMode::GenericVeth,
    ];

    /// Returns the mode in the spelling of the option and of the plugin's configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ChainingMode::None => "none",
            ChainingMode::Portmap => "portmap",
            ChainingMode::Flannel => "flannel",
            ChainingMode::AwsCni => "aws-cni",
            ChainingMode::Azure => "azure",
            ChainingMode::GenericVeth => "generic-veth",
        }
    }
}

/// Options of the CNI configuration file. Changes take effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Pods and CNI")]
pub struct CniConfig {
    /// Path of the CNI configuration file that the agent writes; empty: none
    #[flag(default = "")]
    pub write_cni_conf_when_ready: String,
    /// File whose content becomes the CNI configuration, as it is
    #[flag(default = "")]
    pub read_cni_conf: String,
    /// Plugin to share pods' interfaces with: none, portmap, flannel, aws-cni, azure or generic-veth
    #[flag(default = ChainingMode::None)]
    pub cni_chaining_mode: ChainingMode,
    /// Network of another CNI configuration into which this plugin is inserted; *: the first one
    #[flag(default = "")]
    pub cni_chaining_target: String,
    /// Rename all other CNI configurations to NAME.cilium_bak
    #[flag(default = false)]
    pub cni_exclusive: bool,
    /// Log file of the CNI plugin
    #[flag(default = "/var/run/cilium/cilium-cni.log")]
    pub cni_log_file: String,
}

impl CniConfig {
    /// Returns mode and target of chaining: `aws-cni` has its target by default, and a target without a mode means a
    /// veth pair.
    pub(crate) fn chaining(&self) -> (ChainingMode, Option<&str>) {
        let target = Some(self.cni_chaining_target.as_str()).filter(|target| !target.is_empty());
        match (self.cni_chaining_mode, target) {
            (ChainingMode::AwsCni, None) => (ChainingMode::AwsCni, Some("aws-cni")),
            (ChainingMode::None, Some(target)) => (ChainingMode::GenericVeth, Some(target)),
            given => given,
        }
    }
}
