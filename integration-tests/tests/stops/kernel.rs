//! The agent's state in the kernel: pins, map entries, attached programs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::Path;

use bpf::{Direction, Link, Map, ObjectMap, Program, RawMap, tc::Tc};
use datapath_abi::*;
use integration_tests::Node;

use crate::names::Names;
use crate::snapshot::{Snapshot, digits};

/// Adds all of it to a snapshot.
pub(crate) fn take(node: &Node, names: &Names, into: &mut Snapshot) -> bpf::Result<()> {
    let mut kernel = Kernel { node, names, into, programs: BTreeMap::new() };
    kernel.pins(&node.sandbox().bpf_root(), "");
    let settings = kernel.used::<EndpointConfig>("ep_config")?;
    kernel.endpoints(&settings)?;
    kernel.policies()?;
    kernel.ipcache()?;
    kernel.balancer::<u32>("cilium_lb4")?;
    kernel.balancer::<[u32; 4]>("cilium_lb6")?;
    kernel.others()?;
    kernel.slots(&settings)?;
    kernel.attachments()?;
    kernel.generations();
    Ok(())
}

struct Kernel<'a> {
    node: &'a Node,
    names: &'a Names,
    into: &'a mut Snapshot,
    /// Ids of attached programs by name.
    programs: BTreeMap<String, BTreeSet<u32>>,
}

impl Kernel<'_> {
    fn rows<K: Pod, V: Pod>(&self, map: &str) -> bpf::Result<Vec<(K, V)>> {
        Map::<K, V>::open(&self.node.pin(map))?.entries()
    }

    /// Rows of an array that are not zero.
    fn used<V: Pod>(&self, map: &str) -> bpf::Result<Vec<(u32, V)>> {
        let size = size_of::<V>();
        let mut zero = Vec::new();
        let mut found = Vec::new();
        RawMap::open(&self.node.pin(map))?.scan(|keys, values| {
            // Most of an array is: compared at once.
            zero.resize(zero.len().max(values.len()), 0);
            if values == &zero[..values.len()] {
                return;
            }
            for (key, value) in keys.chunks_exact(4).zip(values.chunks_exact(size)) {
                if value != &zero[..size] {
                    found.extend(u32::from_bytes(key).zip(V::from_bytes(value)));
                }
            }
        })?;
        Ok(found)
    }

    fn ip(&self, ip: Option<IpAddr>) -> String {
        ip.map_or("no address".to_owned(), |ip| self.names.of(&ip.to_string()))
    }

    fn mac(&self, word: u64) -> String {
        self.names.of(&mac_from_word(word).map(|byte| format!("{byte:02x}")).join(":"))
    }

    fn pins(&mut self, folder: &Path, prefix: &str) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = match prefix {
                // By the number of a load.
                "/cilium/programs" => "N".to_owned(),
                _ => digits(&self.names.of(&entry.file_name().to_string_lossy())),
            };
            // Folders of devices stay when they are empty, for the next link of that name. How many slots have a policy
            // map depends on when maps were made ahead.
            let path = format!("{prefix}/{name}");
            if path == "/cilium/policy_maps" {
                continue;
            }
            if entry.path().is_dir() {
                self.pins(&entry.path(), &path);
            } else {
                self.into.line("pins", path);
            }
        }
    }

    fn endpoints(&mut self, settings: &[(u32, EndpointConfig)]) -> bpf::Result<()> {
        let slots = ObjectMap::open(&self.node.pin("ep_policies"))?;
        for &(id, row) in settings {
            let pin =
                RawMap::open(&self.node.pin(&format!("cilium_policy_v2_{id:05}"))).and_then(|map| map.info());
            let in_slot = slots.id(row.policy_slot)?;
            let line = format!(
                "{} as {}: {} on {}, flags {:x}, {} {}, mac {} {}, its slot has the pinned map: {}",
                self.names.endpoint(id.into()),
                self.names.endpoint(row.id.into()),
                self.names.identity(row.identity.into()),
                self.names.link(row.ifindex.into()),
                row.flags,
                self.names.of(&ipv4_from_word(row.ipv4).to_string()),
                self.names.of(&ipv6_from_words(row.ipv6).to_string()),
                self.mac(row.mac),
                self.mac(row.node_mac),
                row.policy_slot != 0 && in_slot.is_some() && in_slot == pin.ok().map(|info| info.id),
            );
            self.into.line("map ep_config", line);
        }
        for (id, _) in self.rows::<u32, u32>("ep_ids")? {
            self.into.line("map ep_ids", self.names.endpoint(id.into()));
        }
        let mut interfaces = self.used::<u32>("ep_by_ifindex")?;
        interfaces.extend(self.rows::<u32, u32>("ep_by_ifindex_hi")?);
        for (index, id) in interfaces {
            let line = format!("{}: {}", self.names.link(index.into()), self.names.endpoint(id.into()));
            self.into.line("map ep_by_ifindex", line);
        }
        for (key, row) in self.rows::<EndpointKey, EndpointInfo>("cilium_lxc")? {
            let line = format!(
                "{}: {} {} on {}, flags {}, mac {} {}",
                self.ip(key.ip()),
                self.names.endpoint(row.lxc_id.into()),
                self.names.identity(row.sec_id.into()),
                self.names.link(row.ifindex.into()),
                row.flags,
                self.mac(row.mac),
                self.mac(row.node_mac)
            );
            self.into.line("map cilium_lxc", line);
        }
        let calls = RawMap::open(&self.node.pin("cilium_call_policy"))?;
        for id in self.names.endpoints.keys() {
            let mut program = [0; 4];
            if calls.lookup(&(*id as u32).to_ne_bytes(), &mut program)? {
                let program = u32::from_ne_bytes(program);
                let line = format!("{}: {}", self.names.endpoint(*id), self.program(program));
                self.into.line("map cilium_call_policy", line);
            }
        }
        Ok(())
    }

    fn policies(&mut self) -> bpf::Result<()> {
        for (id, pod) in &self.names.endpoints {
            let map = format!("cilium_policy_v2_{id:05}");
            for (key, row) in self.rows::<PolicyKey, PolicyEntry>(&map)? {
                let line = format!(
                    "{}/{} {} protocol {} port {}: flags {}, precedence {}",
                    key.prefixlen,
                    if key.egress == 0 { "ingress" } else { "egress" },
                    if key.sec_label == 0 { "all".into() } else { self.names.identity(key.sec_label.into()) },
                    key.protocol,
                    u16::from_be(key.dport),
                    row.flags,
                    row.precedence
                );
                self.into.line(&format!("map cilium_policy_v2 of {pod}"), line);
            }
        }
        Ok(())
    }

    fn ipcache(&mut self) -> bpf::Result<()> {
        for (key, row) in self.rows::<IpcacheKey, RemoteEndpointInfo>("cilium_ipcache_v2")? {
            let identity = self.names.identity(row.sec_identity.into());
            let line = format!("{}/{}: {identity}, flags {}", self.ip(key.ip()), key.bits(), row.flags);
            self.into.line("map cilium_ipcache_v2", line);
        }
        Ok(())
    }

    fn balancer<A: Address>(&mut self, prefix: &str) -> bpf::Result<()>
    where
        LbServiceKey<A>: Pod,
        LbBackend<A>: Pod,
        LbReverseNat<A>: Pod,
    {
        let address = |kernel: &Self, address: A, port: u16| {
            format!("{}:{}", kernel.names.of(&address.ip().to_string()), u16::from_be(port))
        };
        let mut backends = BTreeMap::new();
        for (id, row) in self.rows::<u32, LbBackend<A>>(&format!("{prefix}_backends_v3"))? {
            let line = format!("{}/{} state {}", address(self, row.address, row.port), row.proto, row.state);
            self.into.line(&format!("map {prefix}_backends_v3"), line.clone());
            if backends.insert(id, line.clone()).is_some_and(|other| other == line) {
                self.into.line(&format!("map {prefix}_backends_v3"), format!("twice: {line}"));
            }
        }
        let section = format!("map {prefix}_services_v2");
        for (key, row) in self.rows::<LbServiceKey<A>, LbService>(&section[4..])? {
            let backend = match (key.backend_slot, row.backend_id) {
                (0, word) => format!("{word}"),
                (_, id) => backends.get(&id).cloned().unwrap_or(format!("unknown backend {id}")),
            };
            let line = format!(
                "{}/{} scope {} slot {}: {backend}, count {}, service {}, flags {:x} {:x}, quarantined {}",
                address(self, key.address, key.dport),
                key.proto,
                key.scope,
                key.backend_slot,
                row.count,
                self.names.service(u16::from_be(row.rev_nat_index).into()),
                row.flags,
                row.flags2,
                row.qcount
            );
            self.into.line(&section, line);
        }
        for (id, row) in self.rows::<u16, LbReverseNat<A>>(&format!("{prefix}_reverse_nat"))? {
            let service = self.names.service(u16::from_be(id).into());
            let line = format!("{service}: {}", address(self, row.address, row.port));
            self.into.line(&format!("map {prefix}_reverse_nat"), line);
        }
        Ok(())
    }

    fn others(&mut self) -> bpf::Result<()> {
        for (index, row) in self.rows::<u32, DeviceValue>("cilium_devices")? {
            let line = format!("{}: {} {}", self.names.link(index.into()), self.mac(row.mac), row.l3);
            self.into.line("map cilium_devices", line);
        }
        // Ids of nodes are random: which addresses share one is what counts.
        let nodes = self.rows::<NodeKey, NodeValue>("cilium_node_map_v2")?;
        for (key, row) in &nodes {
            let first =
                nodes.iter().filter(|(_, other)| other.id == row.id).map(|(key, _)| self.ip(key.ip())).min();
            let line = format!("{}: as {}", self.ip(key.ip()), first.unwrap_or_default());
            self.into.line("map cilium_node_map_v2", line);
        }
        for map in ["cilium_lb_affinity_match", "cilium_lb4_source_range", "cilium_lb6_source_range"] {
            if !RawMap::open(&self.node.pin(map))?.is_empty()? {
                self.into.line(&format!("map {map}"), "is not empty");
            }
        }
        Ok(())
    }

    /// Maps of policies by slot.
    fn slots(&mut self, settings: &[(u32, EndpointConfig)]) -> bpf::Result<()> {
        // Maps of ready slots that are not empty would give their rows to the next endpoint.
        let used: BTreeSet<u32> = settings.iter().map(|(_, row)| row.policy_slot).collect();
        let slots = ObjectMap::open(&self.node.pin("ep_policies"))?;
        let folder = self.node.sandbox().bpf_root().join("cilium/policy_maps");
        let names = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|pin| pin.file_name());
        let pins: BTreeSet<_> = names.collect();
        for slot in 1..4096 {
            let map = slots.id(slot)?;
            if let Some(id) = map.filter(|_| !used.contains(&slot))
                && !RawMap::open_id(id)?.is_empty()?
            {
                self.into.line("maps of slots in reserve", "one is not empty");
            }
            let name = format!("slot_{slot:05}");
            // Most slots have no pin.
            let pin = pins.contains(OsStr::new(&name)).then(|| RawMap::open(&folder.join(name)));
            if map != pin.and_then(Result::ok).map(|map| map.id()) {
                self.into.line("pins of slots", "one is not what is in the slot");
            }
        }
        Ok(())
    }

    /// The name of a program; its id is recorded.
    fn program(&mut self, id: u32) -> String {
        let name = Program::open_id(id).map_or("unknown".to_owned(), |program| program.name().to_owned());
        self.programs.entry(name.clone()).or_default().insert(id);
        name
    }

    fn attachments(&mut self) -> bpf::Result<()> {
        let tc = Tc::new()?;
        for (index, name) in &self.names.links {
            for direction in [Direction::Ingress, Direction::Egress] {
                // Links without filters have no queueing discipline to ask.
                for filter in tc.filters(*index as u32, direction).unwrap_or_default() {
                    let program = self.program(filter.program);
                    let line =
                        format!("{name} {direction:?} {}: {program} as {}", filter.priority, filter.name);
                    self.into.line("filters", line);
                }
            }
        }
        let devices = self.node.sandbox().bpf_root().join("cilium/devices");
        for device in std::fs::read_dir(devices).into_iter().flatten().flatten() {
            for pin in std::fs::read_dir(device.path().join("links")).into_iter().flatten().flatten() {
                let info = Link::open(&pin.path())?.info()?;
                let program = self.program(info.program);
                let on = self.names.link(info.ifindex.unwrap_or(0).into());
                let (device, pin) = (device.file_name(), pin.file_name());
                let line = format!("{device:?}/{pin:?}: {program} on {on} {:?}", info.direction);
                self.into.line("links of programs", line);
            }
        }
        Ok(())
    }

    /// Two programs of one name would be two loads, of which one is older than what the maps are for. Links of the
    /// host have programs of the same name with other settings than those of devices.
    fn generations(&mut self) {
        for (name, ids) in &self.programs {
            if name.starts_with("cil_from_cont") || name.contains("policy") {
                self.into.line("programs", format!("{name}: {}", ids.len()));
            }
        }
    }
}

/// An address as load balancer maps hold it.
trait Address: Pod {
    fn ip(self) -> IpAddr;
}

impl Address for u32 {
    fn ip(self) -> IpAddr {
        ipv4_from_word(self).into()
    }
}

impl Address for [u32; 4] {
    fn ip(self) -> IpAddr {
        ipv6_from_words(self).into()
    }
}
