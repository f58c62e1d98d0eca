//! A loaded datapath, two pods on it, and packets to run through it.

use anyhow::{Context as _, Result, bail};
use aya::maps::{
    Array, ArrayOfMaps, HashMap, HashOfMaps, LpmTrie, Map, MapData, PerCpuHashMap, ProgramArray, lpm_trie,
};
use aya::programs::tc::qdisc_add_clsact;
use aya::programs::xdp::XdpLink;
use aya::programs::{SchedClassifier, TcAttachType, TestRun, TestRunOptions, Xdp, XdpMode};
use aya::{EbpfLoader, VerifierLogLevel};
use datapath_abi::signal::AuthKey;
use datapath_abi::{
    DeviceValue, EP_CONFIG_ENTRIES, EndpointConfig, EndpointInfo, EndpointKey, IpcacheKey,
    MAGLEV_TEMPLATE_SIZE, MetricsKey, NodeConfig, NodeKey, NodeValue, Pod as Plain, PolicyEntry, PolicyKey,
    RemoteEndpointInfo, SubnetKey, ep_flag, identity, ipv4_word, ipv6_words, lxc_flag, mac_word, mark,
    runtime_config,
};
use datapath_object::{CALLS, NODE_CONFIG, PROGRAMS};
use std::collections::BTreeMap;
use std::net::IpAddr;

#[path = "kit/packets.rs"]
mod packets;
#[path = "kit/peer.rs"]
mod peer;
#[path = "kit/pool.rs"]
mod pool;
#[path = "kit/rows.rs"]
mod rows;
#[path = "kit/scene.rs"]
mod scene;

use pool::Object;
#[allow(unused_imports, reason = "some benchmarks need a part of the kit")]
pub(crate) use {packets::*, peer::*, rows::*, scene::*};

/// Everybody, both ways.
pub(crate) const ALLOW_ALL: [PolicyRow; 2] =
    [(PolicyKey::any(true), PolicyEntry::allow(0)), (PolicyKey::any(false), PolicyEntry::allow(0))];

const LARGE_MAPS: [&str; 8] = [
    "cilium_auth_map",
    "cilium_ct4_global",
    "cilium_ct_any4_global",
    "cilium_ct6_global",
    "cilium_ct_any6_global",
    "cilium_policystats",
    "cilium_snat_v4_external",
    "cilium_snat_v6_external",
];

/// The object in the kernel, with empty maps, attached to nothing.
pub(crate) struct Datapath {
    /// The device of XDP: dropping it detaches the entry.
    _device: Option<XdpLink>,
    object: Object,
}

/// Ids of backends by position.
pub(crate) type MaglevTable = [u32; MAGLEV_TEMPLATE_SIZE as usize];

type PolicyMap = LpmTrie<MapData, [u8; 8], [u8; 12]>;

/// A row of policy.
pub(crate) type PolicyRow = (PolicyKey, PolicyEntry);

impl Datapath {
    /// Loads the object, or empties one that another test has used.
    pub(crate) fn load(config: &NodeConfig) -> Result<Self> {
        let object = Object::shared("datapath", config, || {
            let mut loader = EbpfLoader::new();
            loader
                .override_global(NODE_CONFIG, config.as_bytes(), true)
                .verifier_log_level(VerifierLogLevel::DISABLE);
            Ok(Self::load_with(&mut loader)?.object)
        })?;
        Ok(Self { _device: None, object })
    }

    pub(crate) fn load_with(loader: &mut EbpfLoader<'_>) -> Result<Self> {
        Self::load_object(loader, datapath_object::datapath())
    }

    /// Loads another form of the object.
    pub(crate) fn load_object(loader: &mut EbpfLoader<'_>, object: &[u8]) -> Result<Self> {
        // The sizes of a large node take most of the time of a test.
        for name in LARGE_MAPS {
            loader.map_max_entries(name, 4096);
        }
        let mut ebpf = loader.load(object)?;
        let mut calls = ProgramArray::try_from(ebpf.take_map(CALLS).context("no map of calls")?)?;
        for program in PROGRAMS {
            let loaded: &mut SchedClassifier =
                ebpf.program_mut(program.name).with_context(|| program.name)?.try_into()?;
            loaded.load().with_context(|| program.name)?;
            if let Some(slot) = program.slot {
                calls.set(slot, loaded.fd()?, 0)?;
            }
        }
        Ok(Self { _device: None, object: Object::new(ebpf, calls) })
    }

    /// Loads the programs of XDP, with maps of their own, and attaches the entry to a device of this namespace: only then may test
    /// runs name the device.
    pub(crate) fn load_xdp(config: &NodeConfig, device: &str) -> Result<Self> {
        let mut object = Object::shared("xdp", config, || Self::load_xdp_object(config))?;
        let entry = object.ebpf.program_mut(datapath_object::xdp::ENTRY).context("no program")?;
        let entry: &mut Xdp = entry.try_into()?;
        let link = entry.attach(device, XdpMode::Driver)?;
        Ok(Self { _device: Some(entry.take_link(link)?), object })
    }

    fn load_xdp_object(config: &NodeConfig) -> Result<Object> {
        let mut loader = EbpfLoader::new();
        loader
            .override_global(NODE_CONFIG, config.as_bytes(), true)
            .verifier_log_level(VerifierLogLevel::DISABLE);
        for name in LARGE_MAPS[1..].iter().chain(&["cilium_cidr_v4_fix", "cilium_cidr_v6_fix"]) {
            loader.map_max_entries(name, 4096);
        }
        let mut ebpf = loader.load(datapath_object::xdp::object())?;
        let mut calls = ProgramArray::try_from(ebpf.take_map(CALLS).context("no map of calls")?)?;
        for program in datapath_object::xdp::PROGRAMS {
            let loaded: &mut Xdp = ebpf.program_mut(program.name).context("no program")?.try_into()?;
            loaded.load().with_context(|| program.name)?;
            if let Some(slot) = program.slot {
                calls.set(slot, loaded.fd()?, 0)?;
            }
        }
        Ok(Object::new(ebpf, calls))
    }

    /// Runs a packet of a device through the program of XDP; the mark of the outcome is the flags of its metadata.
    pub(crate) fn run_xdp(&self, device: u32, packet: &[u8]) -> Result<Outcome> {
        const CONTEXT_LEN: usize = 24;
        let mut context = [0; CONTEXT_LEN];
        context[4..8].copy_from_slice(&(packet.len() as u32).to_ne_bytes());
        context[12..16].copy_from_slice(&device.to_ne_bytes());
        let (mut packet_out, mut context_out) = (vec![0; 2048], [0; CONTEXT_LEN]);
        let mut options = TestRunOptions::new();
        options.data_in = Some(packet);
        options.data_out = Some(&mut packet_out);
        options.ctx_in = Some(&context);
        options.ctx_out = Some(&mut context_out);
        let result = self.xdp()?.test_run(options)?;
        packet_out.truncate(result.data_size_out as usize);
        let data = u32::from_ne_bytes([context_out[0], context_out[1], context_out[2], context_out[3]]);
        let metadata: Vec<u8> = packet_out.drain(..data as usize).collect();
        let mark = metadata.try_into().map_or(0, u32::from_ne_bytes);
        Ok(Outcome { verdict: result.return_value, packet: packet_out, mark, cb: [0; 5] })
    }

    /// The entry of XDP.
    pub(crate) fn xdp(&self) -> Result<&Xdp> {
        self.xdp_program(datapath_object::xdp::ENTRY)
    }

    pub(crate) fn xdp_program(&self, name: &str) -> Result<&Xdp> {
        Ok(self.object.ebpf.program(name).with_context(|| format!("no program {name}"))?.try_into()?)
    }

    /// A datapath with both pods, the host's addresses, and what the ipcache says of them.
    pub(crate) fn with_pods(config: &NodeConfig) -> Result<Self> {
        let mut datapath = Self::load(config)?;
        datapath.add_pods_and_host()?;
        Ok(datapath)
    }

    /// Adds both pods and the host's addresses.
    pub(crate) fn add_pods_and_host(&mut self) -> Result<()> {
        for pod in [A, B] {
            self.add(&pod)?;
        }
        for ip in [IpAddr::from(HOST_V4), HOST_V6.into()] {
            self.add_host(ip)?;
        }
        Ok(())
    }

    /// Gives a pod an empty policy map if it has none: everything is denied.
    pub(crate) fn deny(&mut self, pod: &Pod) -> Result<()> {
        const FLAGS: u32 = 0x81;
        if let Some(policy) = self.object.policies.get_mut(&pod.id) {
            for key in policy.keys().collect::<Result<Vec<_>, _>>()? {
                policy.remove(&key)?;
            }
            return Ok(());
        }
        let policy = PolicyMap::create(16384, FLAGS)?;
        let mut slots = ArrayOfMaps::<_, PolicyMap>::try_from(self.map("ep_policies")?)?;
        slots.set(u32::from(pod.id), &policy, 0)?;
        self.object.policies.insert(pod.id, policy);
        self.object.indexes.insert(pod.id.into());
        Ok(())
    }

    /// Gives a pod these rows of policy and no others.
    pub(crate) fn set_policy(&mut self, pod: &Pod, rows: &[PolicyRow]) -> Result<()> {
        self.deny(pod)?;
        let policy = self.object.policies.get_mut(&pod.id).context("no policy map")?;
        for (key, row) in rows {
            let mut data = [0; 8];
            data.copy_from_slice(&key.as_bytes()[4..]);
            policy.insert(&lpm_trie::Key::new(key.prefixlen, data), bytes::<_, 12>(row), 0)?;
        }
        Ok(())
    }

    /// An address of the host.
    pub(crate) fn add_host(&mut self, ip: IpAddr) -> Result<()> {
        self.set_address(ip, &EndpointInfo { flags: lxc_flag::HOST, ..Plain::zeroed() })?;
        self.set_identity(ip, identity::HOST)
    }

    /// Attaches a program to an interface of this namespace.
    pub(crate) fn attach(&mut self, program: &str, interface: &str, at: TcAttachType) -> Result<()> {
        self.object.own();
        let program: &mut SchedClassifier = self
            .object
            .ebpf
            .program_mut(program)
            .with_context(|| format!("no program {program}"))?
            .try_into()?;
        // Kernels before 6.6 attach by tc filters, below a qdisc. If it is there already this fails; without it `attach` does.
        let _ = qdisc_add_clsact(interface);
        program.attach(interface, at)?;
        Ok(())
    }

    pub(crate) fn add(&mut self, pod: &Pod) -> Result<()> {
        let flags = ep_flag::LIVE | ep_flag::SOURCE_CHECK;
        self.set_policy(pod, &ALLOW_ALL)?;
        self.set_settings(pod, flags)?;
        if pod.ifindex < EP_CONFIG_ENTRIES {
            self.object.indexes.insert(pod.ifindex);
            Array::<_, u32>::try_from(self.map("ep_by_ifindex")?)?.set(pod.ifindex, u32::from(pod.id), 0)?;
        } else {
            let mut high = HashMap::<_, u32, u32>::try_from(self.map("ep_by_ifindex_hi")?)?;
            high.insert(pod.ifindex, u32::from(pod.id), 0)?;
        }
        let row = EndpointInfo {
            ifindex: pod.ifindex,
            lxc_id: pod.id,
            mac: mac_word(pod.mac),
            node_mac: mac_word(pod.node_mac),
            sec_id: pod.identity,
            ..Plain::zeroed()
        };
        for ip in [IpAddr::from(pod.ipv4), pod.ipv6.into()] {
            self.set_address(ip, &row)?;
            self.set_identity(ip, pod.identity)?;
        }
        Ok(())
    }

    /// The pod's settings row with other flags.
    pub(crate) fn set_settings(&mut self, pod: &Pod, flags: u32) -> Result<()> {
        self.write_settings(pod, flags, pod.id)
    }

    /// Makes another slot the place of a pod's policy.
    pub(crate) fn move_policy_slot(&mut self, pod: &Pod, slot: u16) -> Result<()> {
        self.write_settings(pod, ep_flag::LIVE | ep_flag::SOURCE_CHECK, slot)
    }

    fn write_settings(&mut self, pod: &Pod, flags: u32, slot: u16) -> Result<()> {
        let row = EndpointConfig {
            id: u32::from(pod.id),
            identity: pod.identity,
            ifindex: pod.ifindex,
            flags,
            ipv4: ipv4_word(pod.ipv4),
            policy_slot: u32::from(slot),
            ipv6: ipv6_words(pod.ipv6),
            mac: mac_word(pod.mac),
            node_mac: mac_word(pod.node_mac),
            netns_cookie: pod.netns_cookie,
            parent_ifindex: 0,
        };
        self.object.indexes.insert(pod.id.into());
        let mut settings = Array::<_, [u8; 64]>::try_from(self.map("ep_config")?)?;
        Ok(settings.set(u32::from(pod.id), bytes::<_, 64>(&row), 0)?)
    }

    pub(crate) fn set_address(&mut self, ip: IpAddr, row: &EndpointInfo) -> Result<()> {
        let mut addresses = HashMap::<_, [u8; 20], [u8; 48]>::try_from(self.map("cilium_lxc")?)?;
        Ok(addresses.insert(bytes::<_, 20>(&EndpointKey::from(ip)), bytes::<_, 48>(row), 0)?)
    }

    pub(crate) fn remove_address(&mut self, ip: IpAddr) -> Result<()> {
        let mut addresses = HashMap::<_, [u8; 20], [u8; 48]>::try_from(self.map("cilium_lxc")?)?;
        Ok(addresses.remove(&bytes::<_, 20>(&EndpointKey::from(ip)))?)
    }

    pub(crate) fn set_identity(&mut self, ip: IpAddr, identity: u32) -> Result<()> {
        self.set_ipcache(ip, &RemoteEndpointInfo { sec_identity: identity, ..Plain::zeroed() })
    }

    /// Sets the id of a node's address.
    pub(crate) fn set_node_id(&mut self, ip: IpAddr, id: u16) -> Result<()> {
        let mut nodes = HashMap::<_, [u8; 20], [u8; 4]>::try_from(self.map("cilium_node_map_v2")?)?;
        Ok(nodes.insert(array(&NodeKey::from(ip)), array(&NodeValue { id, ..Plain::zeroed() }), 0)?)
    }

    /// Sets the end of an authentication, in the units of the map.
    pub(crate) fn set_auth(&mut self, key: &AuthKey, expiration: u64) -> Result<()> {
        let mut rows = HashMap::<_, [u8; 12], u64>::try_from(self.map("cilium_auth_map")?)?;
        Ok(rows.insert(array::<12>(key), expiration, 0)?)
    }

    /// Sets the offset from the monotonic clock to UTC, in the units of the map.
    pub(crate) fn set_utime_offset(&mut self, offset: u64) -> Result<()> {
        let map = self.map("cilium_runtime_config")?;
        Ok(Array::<_, u64>::try_from(map)?.set(runtime_config::UTIME_OFFSET, offset, 0)?)
    }

    pub(crate) fn set_ipcache(&mut self, ip: IpAddr, row: &RemoteEndpointInfo) -> Result<()> {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let key = bytes::<_, 24>(&IpcacheKey::new(ip, bits));
        let mut data = [0u8; 20];
        data.copy_from_slice(&key[4..]);
        let key = lpm_trie::Key::new(IpcacheKey::STATIC_BITS + u32::from(bits), data);
        let mut ipcache = LpmTrie::<_, [u8; 20], [u8; 24]>::try_from(self.map("cilium_ipcache_v2")?)?;
        Ok(ipcache.insert(&key, bytes::<_, 24>(row), 0)?)
    }

    /// Adds a subnet to a group of the topology.
    pub(crate) fn set_subnet(&mut self, ip: IpAddr, bits: u8, group: u32) -> Result<()> {
        let mut data = [0; 20];
        data.copy_from_slice(&SubnetKey::new(ip, bits).as_bytes()[4..]);
        let key = lpm_trie::Key::new(SubnetKey::STATIC_BITS + u32::from(bits), data);
        let mut subnets = LpmTrie::<_, [u8; 20], u32>::try_from(self.map("cilium_subnet_map")?)?;
        Ok(subnets.insert(&key, group, 0)?)
    }

    /// Says that a device's packets have no Ethernet header.
    pub(crate) fn set_l3_device(&mut self, ifindex: u32) -> Result<()> {
        self.set_device(ifindex, DeviceValue { l3: 1, ..Plain::zeroed() })
    }

    /// Adds an Ethernet device that faces the network.
    pub(crate) fn add_device(&mut self, ifindex: u32) -> Result<()> {
        self.set_device(ifindex, DeviceValue { mac: mac_word([2, 0, 0, 0, 0, 0x40]), ..Plain::zeroed() })
    }

    fn set_device(&mut self, ifindex: u32, row: DeviceValue) -> Result<()> {
        let mut devices = HashMap::<_, u32, [u8; 16]>::try_from(self.map("cilium_devices")?)?;
        Ok(devices.insert(ifindex, bytes::<_, 16>(&row), 0)?)
    }

    /// Takes the program out of a slot of the private array.
    pub(crate) fn empty_slot(&mut self, slot: u32) -> Result<()> {
        self.object.own();
        Ok(self.object.calls.clear_index(&slot)?)
    }

    /// Takes a map out, for tests that read it themselves.
    pub(crate) fn take_map(&mut self, name: &str) -> Result<Map> {
        self.object.own();
        self.object.ebpf.take_map(name).with_context(|| format!("no map {name}"))
    }

    /// Returns the kernel's id of a map.
    pub(crate) fn map_id(&self, name: &str) -> Result<u32> {
        let map = self.object.ebpf.map(name).with_context(|| format!("no map {name}"))?;
        let Map::PerfEventArray(map) = map else { bail!("{name} is of another type") };
        Ok(map.info()?.id())
    }

    fn map(&mut self, name: &str) -> Result<&mut Map> {
        self.object.ebpf.map_mut(name).with_context(|| format!("no map {name}"))
    }

    pub(crate) fn program(&self, name: &str) -> Result<&SchedClassifier> {
        Ok(self.object.ebpf.program(name).with_context(|| format!("no program {name}"))?.try_into()?)
    }

    /// Runs a packet of another machine, or of a pod, through a program.
    pub(crate) fn run(&self, program: &str, packet: &[u8]) -> Result<Outcome> {
        self.run_with(program, packet, Incoming { ingress_ifindex: IFINDEX, ..Incoming::default() })
    }

    pub(crate) fn run_with(&self, program: &str, packet: &[u8], incoming: Incoming) -> Result<Outcome> {
        run_program(self.program(program)?, packet, incoming)
    }

    /// Packets counted under a reason and a direction, on all CPUs and from all places.
    pub(crate) fn counted(&mut self, reason: u8, direction: u8) -> Result<u64> {
        Ok(self
            .counters()?
            .iter()
            .filter(|(key, ..)| key.reason == reason && key.dir == direction)
            .map(|c| c.1)
            .sum())
    }

    /// Forgets connections and first fragments.
    pub(crate) fn forget_flows(&mut self) -> Result<()> {
        self.clear::<14, 56>("cilium_ct4_global")?;
        self.clear::<14, 56>("cilium_ct_any4_global")?;
        self.clear::<38, 56>("cilium_ct6_global")?;
        self.clear::<38, 56>("cilium_ct_any6_global")?;
        self.clear::<12, 4>("cilium_ipv4_frag_datagrams")?;
        self.clear::<40, 4>("cilium_ipv6_frag_datagrams")
    }

    /// Forgets translations of sources.
    pub(crate) fn forget_translations(&mut self) -> Result<()> {
        self.clear::<14, 40>("cilium_snat_v4_external")?;
        self.clear::<38, 56>("cilium_snat_v6_external")
    }

    fn clear<const K: usize, const V: usize>(&mut self, map: &str) -> Result<()> {
        let mut rows = HashMap::<_, [u8; K], [u8; V]>::try_from(self.map(map)?)?;
        let keys = rows.keys().collect::<Result<Vec<_>, _>>()?;
        Ok(keys.iter().try_for_each(|key| rows.remove(key))?)
    }

    /// Every row of the metrics map: key, packets, bytes.
    pub(crate) fn counters(&mut self) -> Result<Vec<(MetricsKey, u64, u64)>> {
        let metrics = PerCpuHashMap::<_, [u8; 8], [u64; 2]>::try_from(self.map("cilium_metrics")?)?;
        let mut rows = Vec::new();
        for row in metrics.iter() {
            let (key, values) = row?;
            let key = MetricsKey::from_bytes(&key).context("short key")?;
            rows.push((key, values.iter().map(|v| v[0]).sum(), values.iter().map(|v| v[1]).sum()));
        }
        Ok(rows)
    }
}

/// Packets at pod A.
impl Datapath {
    /// One that the pod sends.
    pub(crate) fn sends(&self, packet: &[u8]) -> Result<Outcome> {
        self.run(datapath_object::FROM_CONTAINER, packet)
    }

    /// One that somebody with an identity sends to the pod.
    pub(crate) fn receives(&self, from: u32, packet: &[u8]) -> Result<Outcome> {
        let cb = [from, u32::from(A.id) << mark::delivery::ENDPOINT_SHIFT, 0, 0, 0];
        let incoming = Incoming { ingress_ifindex: IFINDEX, cb, ..Incoming::default() };
        self.run_with(datapath_object::LXC_POLICY, packet, incoming)
    }

    /// The reason of the drop that `packet` ends with, `None` if it passes.
    pub(crate) fn dropped(
        &mut self,
        direction: u8,
        run: impl FnOnce(&Self) -> Result<Outcome>,
    ) -> Result<Option<u8>> {
        let drops = |datapath: &mut Self| -> Result<BTreeMap<u8, u64>> {
            let mut drops = BTreeMap::new();
            let rows = datapath.counters()?;
            for (key, packets, _) in rows.into_iter().filter(|r| r.0.is_drop() && r.0.dir == direction) {
                *drops.entry(key.reason).or_default() += packets;
            }
            Ok(drops)
        };
        let before = drops(self)?;
        let outcome = run(self)?;
        let after = drops(self)?;
        let new = |(reason, count): (&u8, &u64)| (before.get(reason) != Some(count)).then_some(*reason);
        let reason = after.iter().find_map(new);
        anyhow::ensure!((outcome.verdict == SHOT) == reason.is_some(), "{outcome:?} with drop {reason:?}");
        Ok(reason)
    }
}

/// Rows of a hash map with keys of `K` and values of `V` bytes.
impl Datapath {
    pub(crate) fn rows<const K: usize, const V: usize>(
        &mut self,
        map: &str,
    ) -> Result<Vec<([u8; K], [u8; V])>> {
        let rows = HashMap::<_, [u8; K], [u8; V]>::try_from(self.map(map)?)?;
        Ok(rows.iter().collect::<Result<_, _>>()?)
    }

    pub(crate) fn remove<const K: usize, const V: usize>(
        &mut self,
        map: &str,
        key: &impl Plain,
    ) -> Result<()> {
        let mut rows = HashMap::<_, [u8; K], [u8; V]>::try_from(self.map(map)?)?;
        Ok(rows.remove(&array(key))?)
    }

    pub(crate) fn put<const K: usize, const V: usize>(
        &mut self,
        map: &str,
        key: &impl Plain,
        value: &impl Plain,
    ) -> Result<()> {
        let mut rows = HashMap::<_, [u8; K], [u8; V]>::try_from(self.map(map)?)?;
        Ok(rows.insert(array(key), array(value), 0)?)
    }
}

impl Datapath {
    /// Gives a service, by its big-endian id, a Maglev table.
    pub(crate) fn put_maglev(&mut self, map: &str, id: u16, ids: MaglevTable) -> Result<()> {
        let mut table = Array::<_, MaglevTable>::create(1, 0)?;
        table.set(0, ids, 0)?;
        let mut tables = HashOfMaps::<_, u16, Array<MapData, MaglevTable>>::try_from(self.map(map)?)?;
        Ok(tables.insert(id, &table, 0)?)
    }

    /// Inserts a prefix, with a value of one byte; `key` has `K` bytes after the length.
    pub(crate) fn put_prefix<const K: usize>(
        &mut self,
        map: &str,
        prefixlen: u32,
        key: &impl Plain,
    ) -> Result<()> {
        let mut data = [0; K];
        data.copy_from_slice(&key.as_bytes()[4..]);
        let mut rows = LpmTrie::<_, [u8; K], [u8; 1]>::try_from(self.map(map)?)?;
        Ok(rows.insert(&lpm_trie::Key::new(prefixlen, data), [0], 0)?)
    }
}

fn bytes<T: Plain, const N: usize>(value: &T) -> [u8; N] {
    const { assert!(size_of::<T>() == N) };
    array(value)
}

fn array<const N: usize>(value: &impl Plain) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(value.as_bytes());
    array
}
