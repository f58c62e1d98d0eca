//! One load of the programs of XDP, and the options that ask for them.

use std::path::PathBuf;

use bpf::{BpfFs, Collection, ObjectFile, ObjectMap, Program, RawMap, UpdateMode, XdpMode, unpin};
use datapath_abi::{NodeConfig, Pod, before_services};
use datapath_api::{DatapathError, Step};
use datapath_object::xdp;
use hive::Settings;
use maps::Maps;
use tunnel::{Family, Tunnel};

use crate::programs::set::{shared_maps, with_stand_ins};

/// The prefix of the pins of program arrays; the array's kernel id follows. Not that of Cilium: an agent of an earlier
/// build removes those that it does not know.
pub(crate) const CALLS_PIN: &str = "ep_xdp_calls_";
/// Maps that belong to one load.
const OWN_MAPS: &str = "xdp_";
/// The one with the devices that packets may leave by.
const DEVICES: &str = "xdp_devices";

/// Options that cannot be in force together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// Cilium refuses it as well.
    #[error(
        "option bpf-lb-acceleration: '{value}' is wrong with underlay-protocol=ipv6; give disabled, or \
         underlay-protocol=ipv4"
    )]
    Underlay {
        /// The mode.
        value: String,
    },
}

/// The options of the programs of XDP, and how they are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acceleration {
    /// The mode; none without programs.
    pub(crate) mode: Option<XdpMode>,
    /// Devices that cannot are left out.
    pub(crate) is_best_effort: bool,
    /// Services are handled.
    pub(crate) services: bool,
    /// Packets of listed senders are dropped.
    pub(crate) prefilter: bool,
}

impl Acceleration {
    /// Reads the options, which the load balancer has checked for themselves.
    pub(crate) fn new(settings: &Settings, tunnel: &Tunnel) -> Result<Self, Error> {
        let value = |option: &str| settings.get(option).map_or("", |setting| setting.value.as_str());
        let is_on = |option| value(option) == "true";
        let prefilter = is_on("enable-xdp-prefilter");
        Self::checked(value("bpf-lb-acceleration"), is_on("kube-proxy-replacement"), prefilter, tunnel)
    }

    fn checked(mode: &str, services: bool, prefilter: bool, tunnel: &Tunnel) -> Result<Self, Error> {
        let (is_best_effort, xdp_mode) = match mode {
            "native" => (false, XdpMode::Native),
            "best-effort" => (true, XdpMode::Native),
            "testing-only" => (false, XdpMode::Generic),
            _ => return Ok(Self::default()),
        };
        if tunnel.is_tunnel() && tunnel.underlay == Family::Ipv6 {
            return Err(Error::Underlay { value: mode.to_owned() });
        }
        let mode = (services || prefilter).then_some(xdp_mode);
        Ok(Self { mode, is_best_effort, services, prefilter })
    }

    /// Writes the options into the constants of the programs.
    pub(crate) fn apply(&self, constants: &mut NodeConfig) {
        if self.services {
            constants.before_services |= before_services::XDP;
        }
        constants.xdp_prefilter = self.prefilter.into();
    }
}

/// Programs of one load. They stay as long as their array is pinned or this value exists; without them a packet is left to
/// the programs of tc.
#[derive(Debug)]
pub(crate) struct XdpSet {
    collection: Collection,
    config: NodeConfig,
    calls_pin: PathBuf,
}

impl XdpSet {
    /// Loads the programs with these node-wide settings, on `threads` threads, and pins their array. Attaches nothing.
    pub(crate) fn load(maps: &Maps, config: NodeConfig) -> Result<XdpSet, DatapathError> {
        let step = || "load the programs of XDP".to_owned();
        let mut object = ObjectFile::parse("xdp", xdp::object()).step(step)?;
        object.set_global(datapath_object::NODE_CONFIG, config.as_bytes()).step(step)?;
        if config.nodeport == 0 {
            object.retain_programs(|name| name == xdp::ENTRY);
        }
        let declared = object.maps();
        let mut names: Vec<&str> = declared.iter().map(|spec| &*spec.name).collect();
        names.retain(|name| *name != datapath_object::CALLS && !name.starts_with(OWN_MAPS));
        let shared = with_stand_ins(&object, shared_maps(names, maps)?)?;
        let shared: Vec<(&str, &RawMap)> = shared.iter().map(|(name, map)| (&**name, map)).collect();
        let collection = object.load(&shared, maps.load_threads()).step(step)?;
        let array = collection.maps.get(datapath_object::CALLS).ok_or(DatapathError::NotReady)?;
        let calls = array.try_clone().and_then(ObjectMap::new).step(step)?;
        for program in xdp::PROGRAMS {
            if let (Some(slot), Some(loaded)) = (program.slot, collection.programs.get(program.name)) {
                calls.set(slot, loaded).step(|| format!("put program {} into slot {slot}", program.name))?;
            }
        }
        let id = array.info().step(step)?.id;
        let calls_pin = maps.path(&format!("{CALLS_PIN}{id}"));
        unpin(&calls_pin).and_then(|_| array.pin(&calls_pin)).step(step)?;
        Ok(XdpSet { collection, config, calls_pin })
    }

    /// Returns the program of devices.
    pub(crate) fn entry(&self) -> Result<&Program, DatapathError> {
        self.collection.program(xdp::ENTRY).step(|| "choose a program".to_owned())
    }

    /// Lets packets of other devices leave by this one, which runs the programs.
    pub(crate) fn open(&self, ifindex: u32) -> Result<(), DatapathError> {
        let step = || format!("let packets leave by the device with index {ifindex}");
        let devices = self.collection.maps.get(DEVICES).ok_or(DatapathError::NotReady)?;
        devices.update(ifindex.as_bytes(), 1u32.as_bytes(), UpdateMode::Any).step(step)
    }

    /// Lets packets of other devices no longer leave by this one.
    pub(crate) fn close(&self, ifindex: u32) -> Result<(), DatapathError> {
        let step = || format!("let no packets leave by the device with index {ifindex}");
        let devices = self.collection.maps.get(DEVICES).ok_or(DatapathError::NotReady)?;
        devices.delete(ifindex.as_bytes()).map(drop).step(step)
    }

    /// Returns the constants of this load.
    pub(crate) fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Removes the pins of arrays other than this load's, or all without one.
    pub(crate) fn remove_others(fs: &BpfFs, current: Option<&XdpSet>) -> Result<(), DatapathError> {
        let names = fs.map_names().step(|| "list the pinned maps".to_owned())?;
        for name in names.iter().filter(|name| name.starts_with(CALLS_PIN)) {
            let path = fs.map(name);
            if current.is_none_or(|current| current.calls_pin != path) {
                unpin(&path).step(|| format!("remove the pin {name}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tunnel::{Protocol, RoutingMode};

    use super::*;

    fn tunnel(mode: RoutingMode, underlay: Family) -> Tunnel {
        Tunnel {
            mode,
            protocol: Protocol::Vxlan,
            port: 1,
            source_ports: (0, 0),
            underlay,
            is_ipv6_enabled: true,
        }
    }

    #[test]
    fn modes_say_how_and_features_whether_programs_are_attached() {
        let native = tunnel(RoutingMode::Native, Family::Ipv6);
        let read = |mode, services, prefilter| {
            let read = Acceleration::checked(mode, services, prefilter, &native).unwrap();
            let mut constants = NodeConfig::default();
            read.apply(&mut constants);
            (read.mode, read.is_best_effort, constants.before_services, constants.xdp_prefilter)
        };
        assert_eq!(read("disabled", true, true), (None, false, 0, 0));
        assert_eq!(read("native", true, false), (Some(XdpMode::Native), false, 1, 0));
        assert_eq!(read("best-effort", false, true), (Some(XdpMode::Native), true, 0, 1));
        assert_eq!(read("testing-only", true, true), (Some(XdpMode::Generic), false, 1, 1));
        assert_eq!(read("native", false, false).0, None, "nothing to do");
    }

    #[test]
    fn an_underlay_of_ipv6_is_refused() {
        let read = |mode, tunnel: &Tunnel| Acceleration::checked(mode, true, false, tunnel);
        let ipv6 = tunnel(RoutingMode::Tunnel, Family::Ipv6);
        let error = read("native", &ipv6).unwrap_err();
        assert_eq!(
            error.to_string(),
            "option bpf-lb-acceleration: 'native' is wrong with underlay-protocol=ipv6; give disabled, or \
             underlay-protocol=ipv4"
        );
        assert!(read("disabled", &ipv6).is_ok());
        assert!(read("native", &tunnel(RoutingMode::Tunnel, Family::Ipv4)).is_ok());
    }
}
