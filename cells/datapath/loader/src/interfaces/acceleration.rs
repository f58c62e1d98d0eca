//! XDP on the devices of the node: loaded and attached after the programs of tc, which do all that it does.

use std::collections::{BTreeMap, BTreeSet};

use bpf::{BpfFs, Link};
use datapath_abi::NodeConfig;
use datapath_api::{DatapathError, Step};
use maps::Maps;

use crate::interfaces::desired::NativeDevice;
use crate::interfaces::xdp_links::{self, Device};
use crate::programs::xdp::{Acceleration, XdpSet};

/// The devices that run the programs, for health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accelerated {
    /// Names of devices with the programs.
    pub(crate) devices: Vec<String>,
    /// Names of those that cannot, with the kernel's error.
    pub(crate) refused: BTreeMap<String, String>,
}

/// The programs of XDP as they were applied last.
#[derive(Debug, Default)]
pub(crate) struct Accelerator {
    set: Option<XdpSet>,
    mode: Acceleration,
    /// The open descriptor keeps a link alive if its pin is removed.
    links: BTreeMap<Device, Link>,
    refused: BTreeMap<Device, String>,
}

impl Accelerator {
    /// Applies the differences from the last call. Returns `None` without acceleration.
    pub(crate) fn apply(
        &mut self,
        maps: &Maps,
        desired: Acceleration,
        constants: NodeConfig,
        devices: &BTreeMap<String, NativeDevice>,
    ) -> Result<Option<Accelerated>, DatapathError> {
        let Some(mode) = desired.mode else {
            self.remove(maps.fs())?;
            return Ok(None);
        };
        let is_current = self.set.as_ref().is_some_and(|set| *set.config() == constants);
        if !is_current || self.mode != desired {
            (self.links, self.refused) = Default::default();
            if !is_current {
                self.set = Some(XdpSet::load(maps, constants)?);
            }
            self.mode = desired;
        }
        let set = self.set.as_ref().ok_or(DatapathError::NotReady)?;
        // The programs read an Ethernet header.
        let devices = devices.iter().filter(|(_, device)| device.mac.is_some());
        let devices: BTreeSet<Device> =
            devices.map(|(name, device)| Device { name: name.clone(), ifindex: device.ifindex }).collect();
        let gone: Vec<Device> =
            self.links.keys().filter(|device| !devices.contains(*device)).cloned().collect();
        for device in gone {
            set.close(device.ifindex)?;
            self.links.remove(&device);
        }
        self.refused.retain(|device, _| devices.contains(device));
        for device in devices {
            if self.links.contains_key(&device) || self.refused.contains_key(&device) {
                continue;
            }
            match xdp_links::attach(maps.fs(), &device, mode, set.entry()?) {
                Ok(link) => {
                    tracing::info!(device = device.name, ?mode, "Attached XDP");
                    set.open(device.ifindex)?;
                    self.links.insert(device, link);
                }
                Err(source) if desired.is_best_effort => {
                    tracing::warn!(device = device.name, error = %source, "The device has no XDP: its services are as fast as without");
                    self.refused.insert(device, source.to_string());
                }
                Err(source) => return Err(DatapathError::NotAccelerated { device: device.name, source }),
            }
        }
        XdpSet::remove_others(maps.fs(), Some(set))?;
        let name = |device: &Device| device.name.clone();
        Ok(Some(Accelerated {
            devices: self.links.keys().map(name).collect(),
            refused: self.refused.iter().map(|(device, error)| (name(device), error.clone())).collect(),
        }))
    }

    /// Detaches the programs of this run or of a previous one.
    fn remove(&mut self, fs: &BpfFs) -> Result<(), DatapathError> {
        *self = Accelerator::default();
        for device in xdp_links::attached(fs)? {
            xdp_links::detach(fs, &device)?;
            tracing::info!(device, "Services are not accelerated any more");
        }
        XdpSet::remove_others(fs, None)
    }

    /// Compares the links with what other processes have left of them, and pins those again that have no pin. Returns
    /// descriptions of links that are not attached any more, which the next [`Accelerator::apply`] attaches, and of pins.
    pub(crate) fn check(&mut self, fs: &BpfFs) -> Result<(Vec<String>, Vec<String>), DatapathError> {
        let (mut lost, mut pins) = (Vec::new(), Vec::new());
        let Some(mode) = self.mode.mode else { return Ok((lost, pins)) };
        let mut gone = BTreeSet::new();
        for (device, link) in &self.links {
            let step = || format!("look for XDP on device {}", device.name);
            if link.info().step(step)?.ifindex != Some(device.ifindex) {
                lost.push(format!("XDP program of {}", device.name));
                gone.insert(device.clone());
            } else if xdp_links::pin_again(fs, device, mode, link).step(step)? {
                pins.push(format!("XDP link of {}", device.name));
            }
        }
        self.links.retain(|device, _| !gone.contains(device));
        Ok((lost, pins))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::time::Duration;

    use bpf::{RawMap, UpdateMode, XdpMode};
    use datapath_abi::{
        DIRECT_ROUTING, EndpointInfo, EndpointKey, LbBackend, LbService, LbServiceKey, MasqueradeAddresses,
        Pod, before_services, ipv4_word, lb_flag, lxc_flag,
    };
    use devices::Netlink;
    use maps::{FamilyConfig, MapsConfig, NatSwitches, Specs};
    use test_kit::{NetNs, PacketSocket, Sandbox, require_root, wait_until};

    use super::*;

    const NODE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
    const BACKEND: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 3);
    const FRONTEND: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
    const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const WORLD_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const UDP: u8 = 17;

    fn constants() -> NodeConfig {
        NodeConfig {
            enable_ipv4: 1,
            nodeport: 1,
            before_services: before_services::XDP,
            snat_min_port: 32768,
            ct_any_lifetime: 60,
            ct_service_any_lifetime: 60,
            ..NodeConfig::default()
        }
    }

    fn acceleration(mode: XdpMode, is_best_effort: bool) -> Acceleration {
        Acceleration { mode: Some(mode), is_best_effort, services: true, prefilter: false }
    }

    fn put(maps: &Maps, name: &str, key: &impl Pod, value: &impl Pod) {
        let map: RawMap = maps.shared(name).unwrap().unwrap();
        map.update(key.as_bytes(), value.as_bytes(), UpdateMode::Any).unwrap();
    }

    /// A node with a frontend, of which the backend is in the same network as the client.
    fn node(sandbox: &Sandbox, world: &NetNs) -> (Arc<Maps>, BTreeMap<String, NativeDevice>) {
        let host = sandbox.host();
        host.veth("eth0", world, "eth0").unwrap();
        let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        host.ip_batch(&format!(
            "link set eth0 address {}\nlink set eth0 up\naddr add {NODE}/24 dev eth0\n\
             neigh add {BACKEND} lladdr {mac} dev eth0 nud permanent\n\
             neigh add {CLIENT} lladdr {mac} dev eth0 nud permanent\n",
            text(NODE_MAC),
            mac = text(WORLD_MAC),
        ))
        .unwrap();
        world.ip_batch(&format!("link set eth0 address {}\nlink set eth0 up\n", text(WORLD_MAC))).unwrap();
        host.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
        let options = MapsConfig {
            bpf_root: sandbox.bpf_root().to_str().unwrap().to_owned(),
            preallocate_bpf_maps: false,
            ..MapsConfig::default()
        };
        let nat = NatSwitches { ipv4: true, ..NatSwitches::default() };
        let families = FamilyConfig { enable_ipv4: true, enable_ipv6: false };
        let maps = Maps::of(Specs::new(options, families).with_nat(nat));
        maps.open().unwrap();
        let own = EndpointInfo { flags: lxc_flag::HOST, ..EndpointInfo::default() };
        maps.lxc().update(&EndpointKey::from(std::net::IpAddr::from(NODE)), &own).unwrap();
        let row = MasqueradeAddresses { ipv4: ipv4_word(NODE), ..MasqueradeAddresses::default() };
        maps.masquerade().unwrap().unwrap().update(&DIRECT_ROUTING, &row).unwrap();
        let mut key = LbServiceKey {
            address: ipv4_word(FRONTEND),
            dport: 53u16.to_be(),
            backend_slot: 0,
            proto: UDP,
            scope: 0,
            pad: [0; 2],
        };
        let flags = lb_flag::LOAD_BALANCER | lb_flag::ROUTABLE;
        let service = LbService { count: 1, rev_nat_index: 1u16.to_be(), flags, ..LbService::default() };
        put(&maps, "cilium_lb4_services_v2", &key, &service);
        key.backend_slot = 1;
        put(&maps, "cilium_lb4_services_v2", &key, &LbService { backend_id: 7, ..LbService::default() });
        let backend = LbBackend {
            address: ipv4_word(BACKEND),
            port: 5353u16.to_be(),
            proto: UDP,
            ..LbBackend::default()
        };
        put(&maps, "cilium_lb4_backends_v3", &7u32, &backend);
        let ifindex = Netlink::open().unwrap().link_by_name("eth0").unwrap().index;
        let devices = [("eth0".to_owned(), NativeDevice { ifindex, mac: Some(NODE_MAC) })];
        (Arc::new(maps), devices.into())
    }

    /// A datagram of the client to the frontend, without a checksum.
    fn request(sport: u16) -> Vec<u8> {
        datagram(sport, FRONTEND, 53)
    }

    fn datagram(sport: u16, to: Ipv4Addr, dport: u16) -> Vec<u8> {
        let mut ip = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, UDP, 0, 0];
        ip.extend(CLIENT.octets());
        ip.extend(to.octets());
        let sum: u32 = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let udp = [sport.to_be_bytes(), dport.to_be_bytes(), 40u16.to_be_bytes(), [0; 2]].concat();
        [&NODE_MAC[..], &WORLD_MAC, &[8, 0], &ip, &udp, &[0x5a; 32]].concat()
    }

    /// Sends a request; whether the backend got it, with the node's address as its source.
    fn is_served(socket: &PacketSocket, sport: u16) -> bool {
        socket.send(&request(sport)).unwrap();
        arrives(socket, NODE, BACKEND)
    }

    /// Whether a packet from one address to port 5353 of another arrives.
    fn arrives(socket: &PacketSocket, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        let is_it = |frame: &[u8]| {
            frame.len() > 38
                && frame[26..30] == from.octets()
                && frame[30..34] == to.octets()
                && frame[36..38] == 5353u16.to_be_bytes()
        };
        let deadline = std::time::Instant::now() + Duration::from_millis(300);
        while std::time::Instant::now() < deadline {
            if socket.received().iter().any(|frame| is_it(frame)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn packets_of_clients_leave_by_xdp_across_restarts_until_it_is_switched_off() {
        require_root!();
        let sandbox = Sandbox::new().unwrap();
        let world = sandbox.netns("world").unwrap();
        let (maps, devices) = node(&sandbox, &world);
        // A veth receives frames that a driver sends by XDP only if it has a program itself.
        let passing = XdpSet::load(&maps, NodeConfig::default()).unwrap();
        let peer = world.ip("-o link show eth0").unwrap();
        let peer: u32 = peer.split(':').next().unwrap().trim().parse().unwrap();
        let _peer = world.run(|| Link::xdp(passing.entry().unwrap(), peer, XdpMode::Native)).unwrap();
        let socket = PacketSocket::open(&world, "eth0").unwrap();

        let native = acceleration(XdpMode::Native, false);
        let mut first = Accelerator::default();
        // The control.
        assert!(!is_served(&socket, 40_000));
        let done = first.apply(&maps, native, constants(), &devices).unwrap().unwrap();
        assert_eq!((done.devices, done.refused.len()), (vec!["eth0".to_owned()], 0));
        wait_until("the first packet", Duration::from_secs(10), || is_served(&socket, 40_000));
        let pin = maps.fs().device_links("eth0").join("cil_xdp_entry");
        let id = |pin| Link::open(pin).unwrap().info().unwrap().id;
        let link = id(&pin);
        assert!(first.apply(&maps, native, constants(), &devices).unwrap().is_some());
        // The agent ends; the next one replaces the programs in the same link.
        drop(first);
        assert!(is_served(&socket, 40_001));
        let mut second = Accelerator::default();
        second.apply(&maps, native, constants(), &devices).unwrap();
        assert_eq!(id(&pin), link);
        assert!(is_served(&socket, 40_002));
        let arrays = || {
            let names = maps.fs().map_names().unwrap();
            names.into_iter().filter(|name| name.starts_with(crate::programs::xdp::CALLS_PIN)).count()
        };
        assert_eq!(arrays(), 1);
        // A removed pin is made again, a detached link is reported and attached again.
        std::fs::remove_file(&pin).unwrap();
        assert_eq!(second.check(maps.fs()).unwrap().1, ["XDP link of eth0"]);
        assert_eq!(id(&pin), link);
        Link::open(&pin).unwrap().detach().unwrap();
        assert!(!is_served(&socket, 40_003));
        assert_eq!(second.check(maps.fs()).unwrap().0, ["XDP program of eth0"]);
        second.apply(&maps, native, constants(), &devices).unwrap();
        assert!(is_served(&socket, 40_003));
        // Another mode takes the place of this one.
        let generic = acceleration(XdpMode::Generic, false);
        second.apply(&maps, generic, constants(), &devices).unwrap();
        assert!(!pin.exists() && is_served(&socket, 40_004));
        assert_eq!(second.apply(&maps, Acceleration::default(), constants(), &devices).unwrap(), None);
        assert!(!is_served(&socket, 40_005));
        assert_eq!((xdp_links::attached(maps.fs()).unwrap(), arrays()), (Vec::<String>::new(), 0));
    }

    /// The program of a device only delivers packets that XDP has translated: it does not look for a frontend again.
    #[test]
    fn a_packet_for_a_pod_is_translated_once() {
        const POD: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
        const LOCAL_FRONTEND: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
        require_root!();
        let sandbox = Sandbox::new().unwrap();
        let (world, pod) = (sandbox.netns("world").unwrap(), sandbox.netns("pod").unwrap());
        let (maps, devices) = node(&sandbox, &world);
        sandbox.host().veth("lxc1", &pod, "eth0").unwrap();
        sandbox
            .host()
            .ip_batch(&format!(
                "link set lxc1 up\nroute add {POD} dev lxc1\n\
                 neigh add {POD} lladdr 02:00:00:00:00:03 dev lxc1 nud permanent\n"
            ))
            .unwrap();
        pod.ip("link set eth0 up").unwrap();
        let row = EndpointInfo::default();
        maps.lxc().update(&EndpointKey::from(std::net::IpAddr::from(POD)), &row).unwrap();
        let key = |ip: Ipv4Addr, port: u16, backend_slot| LbServiceKey {
            address: ipv4_word(ip),
            dport: port.to_be(),
            backend_slot,
            proto: UDP,
            scope: 0,
            pad: [0; 2],
        };
        let flags = lb_flag::LOAD_BALANCER | lb_flag::ROUTABLE;
        let service = LbService { count: 1, rev_nat_index: 2u16.to_be(), flags, ..LbService::default() };
        put(&maps, "cilium_lb4_services_v2", &key(LOCAL_FRONTEND, 53, 0), &service);
        let slot = LbService { backend_id: 8, ..LbService::default() };
        put(&maps, "cilium_lb4_services_v2", &key(LOCAL_FRONTEND, 53, 1), &slot);
        let backend =
            LbBackend { address: ipv4_word(POD), port: 5353u16.to_be(), proto: UDP, ..LbBackend::default() };
        put(&maps, "cilium_lb4_backends_v3", &8u32, &backend);
        // The backend's address is a frontend that refuses clients from outside.
        let refusing = LbService { rev_nat_index: 3u16.to_be(), ..LbService::default() };
        put(&maps, "cilium_lb4_services_v2", &key(POD, 5353, 0), &refusing);

        let programs = crate::ProgramSet::load(&maps, constants()).unwrap();
        let (name, eth0) = (datapath_object::FROM_NETDEV, devices["eth0"].ifindex);
        let program = programs.program(name).unwrap();
        let tc = bpf::tc::Tc::new().unwrap();
        tc.attach_with_clsact(eth0, bpf::Direction::Ingress, 1, name, program).unwrap();
        let (client, socket) =
            (PacketSocket::open(&world, "eth0").unwrap(), PacketSocket::open(&pod, "eth0").unwrap());
        let mut accelerator = Accelerator::default();
        let native = acceleration(XdpMode::Native, false);
        accelerator.apply(&maps, native, constants(), &devices).unwrap();
        wait_until("the first packet", Duration::from_secs(10), || {
            client.send(&datagram(41_000, LOCAL_FRONTEND, 53)).unwrap();
            arrives(&socket, CLIENT, POD)
        });
        // The control: the same packet, as XDP leaves it, without the flag.
        client.send(&datagram(41_001, POD, 5353)).unwrap();
        assert!(!arrives(&socket, CLIENT, POD));
    }

    #[test]
    fn a_device_that_cannot_is_named() {
        require_root!();
        let sandbox = Sandbox::new().unwrap();
        let world = sandbox.netns("world").unwrap();
        let (maps, mut devices) = node(&sandbox, &world);
        // The first driver has no XDP, and packets of the second no Ethernet header.
        devices.insert("lo".to_owned(), NativeDevice { ifindex: 1, mac: Some([0; 6]) });
        devices.insert("tun".to_owned(), NativeDevice { ifindex: 1, mac: None });
        let strict = acceleration(XdpMode::Native, false);
        let error =
            Accelerator::default().apply(&maps, strict, constants(), &devices).unwrap_err().to_string();
        assert!(error.starts_with("device lo cannot accelerate services: "), "{error}");
        assert!(error.contains("bpf-lb-acceleration=best-effort"), "{error}");
        let mut lenient = Accelerator::default();
        let lenient = lenient.apply(&maps, acceleration(XdpMode::Native, true), constants(), &devices);
        let done = lenient.unwrap().unwrap();
        assert_eq!(done.devices, ["eth0"]);
        assert_eq!(done.refused.keys().collect::<Vec<_>>(), ["lo"]);
    }
}
