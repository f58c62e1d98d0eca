//! The specs of a node's maps, computed from options and the machine's memory, without system calls on maps.

use bpf::{Layout, MapFlags, MapSpec, MapType, possible_cpus};
use datapath_abi::{EP_CONFIG_ENTRIES, EndpointConfig, MasqueradeAddresses};
use hive::Settings;

use crate::catalog::{self, CATALOG, Existence, FlagRule, MapDef};
use crate::config::{FamilyConfig, MapsConfig};
use crate::fit::Fit;
use crate::footprint::footprint;
use crate::schema;
use crate::size::{Size, Sizes, memory_total};

/// The prefix of the pins of policy maps; the endpoint's id follows in five digits.
pub const POLICY_PREFIX: &str = "cilium_policy_v2_";

/// Names of Apiary's own maps, which hold the endpoints for the shared programs.
pub const OWN_MAPS: [&str; 6] =
    ["ep_config", "ep_ids", "ep_by_ifindex", "ep_by_ifindex_hi", "ep_policies", "ep_schema"];

/// Returns the name of an endpoint's policy map.
pub fn policy_name(endpoint: u16) -> String {
    format!("{POLICY_PREFIX}{endpoint:05}")
}

/// The maps of a node as its options define them.
#[derive(Debug)]
pub struct Specs {
    config: MapsConfig,
    families: FamilyConfig,
    nat: NatSwitches,
    maglev: Option<u32>,
    prefilter: bool,
    hybrid: bool,
    probes: bool,
    sizes: Sizes,
}

/// The families of which the programs translate source addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatSwitches {
    /// IPv4.
    pub ipv4: bool,
    /// IPv6.
    pub ipv6: bool,
    /// Ranges of a file of ip-masq-agent are not translated.
    pub ip_masq_agent: bool,
}

impl NatSwitches {
    fn from_settings(settings: &Settings) -> NatSwitches {
        let is_on = |option: &str| settings.get(option).is_some_and(|setting| setting.value == "true");
        let translates = |masquerade| {
            is_on("kube-proxy-replacement") || is_on("enable-bpf-masquerade") && is_on(masquerade)
        };
        NatSwitches {
            ipv4: translates("enable-ipv4-masquerade"),
            ipv6: translates("enable-ipv6-masquerade"),
            ip_masq_agent: is_on("enable-ip-masq-agent"),
        }
    }
}

/// Returns the number of positions of a Maglev table, if options let services have such tables.
fn maglev_positions(settings: &Settings) -> Option<u32> {
    let is = |option, value| settings.get(option).is_some_and(|setting| setting.value == value);
    let used = is("bpf-lb-algorithm", "maglev") || is("bpf-lb-algorithm-annotation", "true");
    settings.get("bpf-lb-maglev-table-size").filter(|_| used)?.value.parse().ok()
}

/// The own map of masquerade addresses, which exists with translations of sources only.
pub const MASQUERADE_MAP: &str = "ep_masquerade";
/// Entries of that map: devices, as in `cilium_devices`.
const MAX_DEVICES: u32 = 512;

impl Specs {
    /// Creates specs for the memory and CPUs of this machine.
    pub fn new(config: MapsConfig, families: FamilyConfig) -> Specs {
        let memory = memory_total(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
        let sizes = Sizes::new(&config, memory, possible_cpus());
        Specs {
            config,
            families,
            nat: NatSwitches::default(),
            maglev: None,
            prefilter: false,
            hybrid: false,
            probes: false,
            sizes,
        }
    }

    /// Returns the specs with the maps that options of other cells need: those cells are built on this one and check the
    /// values.
    #[must_use]
    pub fn with_settings(self, settings: &Settings) -> Specs {
        let is = |option, value| settings.get(option).is_some_and(|setting| setting.value == value);
        self.with_nat(NatSwitches::from_settings(settings))
            .with_maglev(maglev_positions(settings))
            .with_prefilter(is("enable-xdp-prefilter", "true"))
            .with_hybrid_routing(is("routing-mode", "hybrid"))
            .with_probes(is("kube-proxy-replacement", "true") && is("bpf-lb-ipip-sock-mark", "true"))
    }

    /// Returns the specs with the maps of translations of sources.
    #[must_use]
    pub fn with_nat(self, nat: NatSwitches) -> Specs {
        Specs { nat, ..self }
    }

    /// Returns the specs with the maps of Maglev tables of this number of positions, or without these maps.
    #[must_use]
    pub fn with_maglev(self, positions: Option<u32>) -> Specs {
        Specs { maglev: positions, ..self }
    }

    /// Returns the specs with the maps of the prefilter, or without them.
    #[must_use]
    pub fn with_prefilter(self, prefilter: bool) -> Specs {
        Specs { prefilter, ..self }
    }

    /// Returns the specs with the maps of health probes, or without them.
    #[must_use]
    pub fn with_probes(self, probes: bool) -> Specs {
        Specs { probes, ..self }
    }

    /// Returns the specs with the map of subnets, or without it.
    #[must_use]
    pub fn with_hybrid_routing(self, hybrid: bool) -> Specs {
        Specs { hybrid, ..self }
    }

    /// Returns the number of positions of a Maglev table, if the node has such tables.
    pub fn maglev(&self) -> Option<u32> {
        self.maglev
    }

    /// Creates specs within a budget of kernel memory in bytes, as [`Specs::fit`].
    pub fn within(config: MapsConfig, families: FamilyConfig, budget: u64) -> (Specs, Fit) {
        Specs::new(config, families).fit(budget)
    }

    /// Returns the specs within a budget of kernel memory in bytes. If the maps do not fit, preallocation is disabled
    /// where the kernel permits; then all sizes that no option sets are halved until the maps fit.
    pub fn fit(self, budget: u64) -> (Specs, Fit) {
        let mut specs = self;
        let wanted = specs.footprint();
        if wanted > budget {
            specs.config.preallocate_bpf_maps = false;
            while specs.footprint() > budget {
                let Some(half) = specs.sizes.half() else { break };
                specs.sizes = half;
            }
        }
        let (taken, divisor) = (specs.footprint(), specs.sizes.divisor());
        (specs, Fit { budget, wanted, taken, divisor })
    }

    /// Returns the kernel memory of all maps of the node before they have entries, in bytes.
    pub fn footprint(&self) -> u64 {
        let cpus = possible_cpus() as u64;
        let own = OWN_MAPS.into_iter().map(|name| self.own(name));
        self.of_node().into_iter().chain(own).map(|spec| footprint(&spec.layout, cpus)).sum()
    }

    /// Returns the spec of a map by its name, with this node's size and flags: a name of the catalog, of a policy map
    /// of an endpoint, or of Apiary's own.
    pub fn find(&self, name: &str) -> Option<MapSpec> {
        if OWN_MAPS.contains(&name) || name == MASQUERADE_MAP {
            return Some(self.own(name));
        }
        if let Some(id) = name.strip_prefix(POLICY_PREFIX) {
            return id.parse().ok().map(|id| self.policy(id));
        }
        catalog::find(name).map(|def| self.spec_of(def))
    }

    /// Returns the spec of an endpoint's policy map.
    pub fn policy(&self, endpoint: u16) -> MapSpec {
        self.policy_layout().named(policy_name(endpoint))
    }

    fn policy_layout(&self) -> MapSpec {
        let entries = self.sizes.entries(Size::Policy, false);
        MapSpec::new("cilium_policy_v2", MapType::LpmTrie, 12, 12, entries, MapFlags(0x81))
    }

    fn spec_of(&self, def: &MapDef) -> MapSpec {
        let flags = match def.flags {
            FlagRule::Always(flags) => flags,
            FlagRule::Prealloc(flags) if self.config.preallocate_bpf_maps => flags,
            FlagRule::Prealloc(flags) => flags | MapFlags::NO_PREALLOC.0,
            FlagRule::Lru if self.config.bpf_distributed_lru => MapFlags::NO_COMMON_LRU.0,
            FlagRule::Lru => 0,
        };
        let entries = self.sizes.entries(def.size, def.flags == FlagRule::Lru);
        let spec =
            MapSpec::new(def.name, def.map_type, def.key_size, def.value_size, entries, MapFlags(flags));
        match (def.existence, self.maglev) {
            (Existence::Maglev4 | Existence::Maglev6, Some(positions)) => {
                spec.with_inner(maglev_table(positions))
            }
            _ => spec,
        }
    }

    /// Returns the spec of one of [`OWN_MAPS`] or of [`MASQUERADE_MAP`].
    pub(crate) fn own(&self, name: &str) -> MapSpec {
        let entries = EP_CONFIG_ENTRIES;
        let row = size_of::<EndpointConfig>() as u32;
        let read_only = MapFlags::READ_ONLY_PROG;
        match name {
            "ep_config" => MapSpec::new("ep_config", MapType::Array, 4, row, entries, read_only),
            "ep_by_ifindex" => MapSpec::new("ep_by_ifindex", MapType::Array, 4, 4, entries, read_only),
            "ep_schema" => schema::SPEC,
            MASQUERADE_MAP => {
                let row = size_of::<MasqueradeAddresses>() as u32;
                MapSpec::new("ep_masquerade", MapType::Hash, 4, row, MAX_DEVICES, MapFlags(0x81))
            }
            "ep_ids" => MapSpec::new("ep_ids", MapType::Hash, 4, 4, entries, MapFlags::NO_PREALLOC),
            "ep_by_ifindex_hi" => {
                MapSpec::new("ep_by_ifindex_hi", MapType::Hash, 4, 4, entries, MapFlags(0x81))
            }
            // Without READ_ONLY_PROG: the kernel refuses the flag on arrays of maps.
            _ => MapSpec::new("ep_policies", MapType::ArrayOfMaps, 4, 4, entries, MapFlags::NONE)
                .with_inner(self.policy_layout().layout),
        }
    }

    /// Returns all maps that exist on this node by name, except those of endpoints and of loaded programs.
    pub fn of_node(&self) -> Vec<MapSpec> {
        let exists = |def: &&MapDef| match def.existence {
            Existence::Always => true,
            Existence::Family4 => self.families.enable_ipv4,
            Existence::Family6 => self.families.enable_ipv6,
            Existence::Fragments4 => self.families.enable_ipv4 && self.config.enable_ipv4_fragment_tracking,
            Existence::Fragments6 => self.families.enable_ipv6 && self.config.enable_ipv6_fragment_tracking,
            Existence::Nat4 => self.families.enable_ipv4 && self.nat.ipv4,
            Existence::Nat6 => self.families.enable_ipv6 && self.nat.ipv6,
            Existence::IpMasq4 => self.families.enable_ipv4 && self.nat.ipv4 && self.nat.ip_masq_agent,
            Existence::IpMasq6 => self.families.enable_ipv6 && self.nat.ipv6 && self.nat.ip_masq_agent,
            Existence::Maglev4 => self.families.enable_ipv4 && self.maglev.is_some(),
            Existence::Maglev6 => self.families.enable_ipv6 && self.maglev.is_some(),
            Existence::Prefilter4 => self.families.enable_ipv4 && self.prefilter,
            Existence::Prefilter6 => self.families.enable_ipv6 && self.prefilter,
            Existence::Hybrid => self.hybrid,
            Existence::Probes4 => self.families.enable_ipv4 && self.probes,
            Existence::Probes6 => self.families.enable_ipv6 && self.probes,
            Existence::Feature(_) | Existence::PerEndpoint | Existence::PerObject => false,
        };
        let masquerade = (self.nat != NatSwitches::default()).then(|| self.own(MASQUERADE_MAP));
        CATALOG.iter().filter(exists).map(|def| self.spec_of(def)).chain(masquerade).collect()
    }

    /// Returns the options from which the specs are computed.
    pub(crate) fn config(&self) -> &MapsConfig {
        &self.config
    }
}

/// Returns the layout of the map of one Maglev table: the table is its only value.
fn maglev_table(positions: u32) -> Layout {
    Layout {
        map_type: MapType::Array,
        key_size: 4,
        value_size: positions * size_of::<u32>() as u32,
        max_entries: 1,
        flags: MapFlags::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_follow_the_options() {
        let specs = |preallocate_bpf_maps, bpf_distributed_lru| {
            let config = MapsConfig { preallocate_bpf_maps, bpf_distributed_lru, ..MapsConfig::default() };
            Specs::new(config, FamilyConfig::default())
        };
        let flags = |specs: &Specs, name| specs.find(name).unwrap().layout.flags.0;
        let (on, off) = (specs(true, false), specs(false, true));
        assert_eq!((flags(&on, "cilium_lxc"), flags(&off, "cilium_lxc")), (0x80, 0x81));
        assert_eq!((flags(&on, "cilium_lb4_backends_v3"), flags(&off, "cilium_lb4_backends_v3")), (0, 1));
        assert_eq!((flags(&on, "cilium_ct4_global"), flags(&off, "cilium_ct4_global")), (0, 2));
        assert_eq!(flags(&on, "cilium_devices"), 1);
    }

    #[test]
    fn families_decide_which_maps_exist() {
        let names = |enable_ipv4, enable_ipv6| -> Vec<String> {
            let specs = Specs::new(MapsConfig::default(), FamilyConfig { enable_ipv4, enable_ipv6 });
            specs.of_node().into_iter().map(|s| s.name.into_owned()).collect()
        };
        let v4 = names(true, false);
        assert!(v4.iter().any(|n| n == "cilium_ct4_global"));
        assert!(!v4.iter().any(|n| n == "cilium_ct6_global" || n == "cilium_ipv6_frag_datagrams"));
        let both = names(true, true);
        assert!(both.len() > v4.len());
    }

    #[test]
    fn maps_of_translations_exist_with_them() {
        let names = |nat| -> Vec<String> {
            let specs = Specs::new(MapsConfig::default(), FamilyConfig::default()).with_nat(nat);
            specs.of_node().into_iter().map(|spec| spec.name.into_owned()).collect()
        };
        let is_of_nat = |name: &&String| name.contains("snat") || *name == MASQUERADE_MAP;
        assert_eq!(names(NatSwitches::default()).iter().filter(is_of_nat).count(), 0);
        let v4 = names(NatSwitches { ipv4: true, ..NatSwitches::default() });
        let v4: Vec<&String> = v4.iter().filter(is_of_nat).collect();
        assert_eq!(v4, ["cilium_snat_v4_alloc_retries", "cilium_snat_v4_external", "ep_masquerade"]);
        let both = NatSwitches { ipv4: true, ipv6: true, ip_masq_agent: false };
        assert_eq!(names(both).iter().filter(is_of_nat).count(), 5);
        let agent = |nat| names(NatSwitches { ip_masq_agent: true, ..nat });
        let ranges =
            |names: Vec<String>| names.into_iter().filter(|name| name.contains("ipmasq")).collect::<Vec<_>>();
        assert_eq!(ranges(names(both)), [] as [&str; 0]);
        assert_eq!(ranges(agent(both)), ["cilium_ipmasq_v4", "cilium_ipmasq_v6"]);
        assert_eq!(ranges(agent(NatSwitches { ipv6: false, ..both })), ["cilium_ipmasq_v4"]);
        assert_eq!(ranges(agent(NatSwitches::default())), [] as [&str; 0]);
    }

    #[test]
    fn maps_of_the_prefilter_exist_with_it() {
        let names = |prefilter, families| -> Vec<String> {
            let specs = Specs::new(MapsConfig::default(), families).with_prefilter(prefilter).of_node();
            let names = specs.into_iter().map(|spec| spec.name.into_owned());
            names.filter(|name| name.starts_with("cilium_cidr")).collect()
        };
        assert_eq!(names(false, FamilyConfig::default()), [] as [&str; 0]);
        assert_eq!(names(true, FamilyConfig::default()).len(), 4);
        let only_ipv4 = FamilyConfig { enable_ipv4: true, enable_ipv6: false };
        assert_eq!(names(true, only_ipv4), ["cilium_cidr_v4_dyn", "cilium_cidr_v4_fix"]);
    }

    #[test]
    fn maps_of_health_probes_exist_with_them() {
        let names = |probes, families| -> Vec<String> {
            let specs = Specs::new(MapsConfig::default(), families).with_probes(probes).of_node();
            let names = specs.into_iter().map(|spec| spec.name.into_owned());
            names.filter(|name| name.ends_with("_health")).collect()
        };
        assert_eq!(names(false, FamilyConfig::default()), [] as [&str; 0]);
        assert_eq!(names(true, FamilyConfig::default()), ["cilium_lb4_health", "cilium_lb6_health"]);
        let only_ipv6 = FamilyConfig { enable_ipv4: false, enable_ipv6: true };
        assert_eq!(names(true, only_ipv6), ["cilium_lb6_health"]);
    }

    #[test]
    fn the_map_of_subnets_exists_with_hybrid_routing() {
        let has = |hybrid| {
            let specs =
                Specs::new(MapsConfig::default(), FamilyConfig::default()).with_hybrid_routing(hybrid);
            specs.of_node().iter().any(|spec| spec.name == "cilium_subnet_map")
        };
        assert_eq!((has(false), has(true)), (false, true));
    }

    #[test]
    fn maps_of_maglev_tables_have_tables_of_the_size_of_the_option() {
        let of_tables = |positions, families| -> Vec<(String, Option<u32>)> {
            let specs = Specs::new(MapsConfig::default(), families).with_maglev(positions).of_node();
            let tables = specs.into_iter().filter(|spec| spec.name.ends_with("maglev"));
            tables.map(|spec| (spec.name.into_owned(), spec.inner.map(|inner| inner.value_size))).collect()
        };
        assert_eq!(of_tables(None, FamilyConfig::default()), []);
        let both = ["cilium_lb4_maglev", "cilium_lb6_maglev"].map(|name| (name.to_owned(), Some(65_524)));
        assert_eq!(of_tables(Some(16_381), FamilyConfig::default()), both);
        let only_ipv6 = FamilyConfig { enable_ipv4: false, enable_ipv6: true };
        assert_eq!(of_tables(Some(16_381), only_ipv6), both[1..]);
    }

    #[test]
    fn maps_fit_into_the_memory_that_is_left_to_them() {
        let within = |config: MapsConfig, mib: u64| Specs::within(config, FamilyConfig::default(), mib << 20);
        let entries = |specs: &Specs, name| specs.find(name).unwrap().layout.max_entries;
        let (roomy, fit) = within(MapsConfig::default(), 1 << 12);
        assert_eq!((fit.wanted, fit.divisor), (fit.taken, 1));
        assert_eq!(roomy.of_node(), Specs::new(MapsConfig::default(), FamilyConfig::default()).of_node());

        let (tight, fit) = within(MapsConfig::default(), 24);
        assert!(fit.fits(), "{fit:?}");
        assert!(tight.footprint() > 12 << 20, "halved too often: {fit:?}");
        assert!(entries(&tight, "cilium_ct4_global") * 2 <= entries(&roomy, "cilium_ct4_global"));
        assert!(tight.find("cilium_lxc").unwrap().layout.flags.contains(MapFlags::NO_PREALLOC));

        // A size that an option sets is kept, and reported.
        let asked = MapsConfig { bpf_ct_global_tcp_max: 1 << 20, ..MapsConfig::default() };
        let (asked, fit) = within(asked, 24);
        assert_eq!(entries(&asked, "cilium_ct4_global"), 1 << 20);
        assert!(!fit.fits());
    }

    #[test]
    fn names_of_ours_cannot_be_taken_for_policies() {
        assert!(OWN_MAPS.iter().all(|name| !name.starts_with("cilium_policy")));
        assert_eq!(policy_name(135), "cilium_policy_v2_00135");
        let specs = Specs::new(MapsConfig::default(), FamilyConfig::default());
        assert_eq!(specs.find("cilium_policy_v2_00135").unwrap(), specs.policy(135));
        assert_eq!(specs.find("cilium_policy_v2_x"), None);
    }
}
