//! A node whose cgroup has the test's process, and map entries of services.

mod events;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bpf::{Link, LinkInfo, Map, Program};
use datapath_abi::{
    FAMILY_V4, FAMILY_V6, IpcacheKey, LbAffinityMatch, LbBackend, LbReverseSkKey4, LbReverseSkKey6,
    LbService, LbServiceKey, Pod, RemoteEndpointInfo, SkipLb4Key, SkipLb6Key, ipv4_from_word, ipv4_word,
    ipv6_from_words, ipv6_words, lb_flag,
};
use datapath_api::{SocketCoverage, SocketLb};
use hive::TestHive;
use hive::prelude::*;
use loadbalancer_sockets::SocketConfig;
use maps::Maps;
use runtime_options::{Follower, MONITOR_AGGREGATION_LEVEL, RuntimeOption};
use statedb::RwTable;
use test_kit::{Sandbox, SandboxOptions};
use tokio::sync::{Mutex, MutexGuard};

pub(crate) use events::Events;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// The process is in one cgroup at a time.
static CGROUP: Mutex<()> = Mutex::const_new(());

pub(crate) fn on_a_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

/// A change of a link by another process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The pin is removed.
    Unpin,
    /// The program is detached.
    Detach,
    /// The link runs another program.
    Update,
    /// Something else is pinned in its place.
    Occupy,
}

/// A service as the load balancer writes it.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) frontend: SocketAddr,
    pub(crate) protocol: u8,
    pub(crate) backends: Vec<SocketAddr>,
    pub(crate) id: u16,
    pub(crate) flags: u8,
    pub(crate) flags2: u8,
    /// The count in its entry.
    pub(crate) count: u16,
    pub(crate) first_backend: u32,
    /// Seconds of session affinity.
    pub(crate) affinity: Option<u32>,
}

impl Service {
    pub(crate) fn new(frontend: &str, protocol: u8, backends: &[SocketAddr]) -> Service {
        Service {
            frontend: frontend.parse().unwrap(),
            protocol,
            backends: backends.to_vec(),
            id: u16::from(protocol),
            flags: 0,
            flags2: 0,
            count: backends.len() as u16,
            first_backend: u32::from(protocol) * 10,
            affinity: None,
        }
    }
}

/// Followers of runtime options.
struct Followers(Vec<Follower>);

/// A node with the cell. The test's process is in its cgroup until [`Node::finish`].
pub(crate) struct Node {
    hive: Option<TestHive>,
    maps: Arc<Maps>,
    /// The programs of the links before the last restart.
    programs: Vec<u32>,
    home: PathBuf,
    sandbox: Option<Sandbox>,
    _cgroup: MutexGuard<'static, ()>,
}

impl Node {
    pub(crate) async fn start(options: &[(&str, &str)]) -> Node {
        let guard = CGROUP.lock().await;
        let home = own_cgroup();
        let sandbox = Sandbox::with(&SandboxOptions { cgroup: true, ..SandboxOptions::default() }).unwrap();
        enter(&sandbox.cgroup().unwrap());
        let hive = run(&sandbox, options).await;
        let maps = hive.get::<Maps>();
        let node = Node {
            hive: Some(hive),
            maps,
            programs: Vec::new(),
            home,
            sandbox: Some(sandbox),
            _cgroup: guard,
        };
        node.until_attached().await;
        node
    }

    fn hive(&self) -> &TestHive {
        self.hive.as_ref().unwrap()
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        self.sandbox.as_ref().unwrap()
    }

    pub(crate) fn coverage(&self) -> SocketCoverage {
        self.hive().get::<SocketLb>().coverage()
    }

    /// Opens the rings of events.
    pub(crate) fn events(&self) -> Events {
        Events::open(&self.maps)
    }

    /// Changes the level of aggregation as `PATCH /config` does, which waits until it is in force.
    pub(crate) async fn patch_aggregation(&self, level: &str) {
        let option = RuntimeOption::new(MONITOR_AGGREGATION_LEVEL, level).unwrap();
        let table = self.hive().get::<RwTable<RuntimeOption>>();
        table.transact(|txn| drop(txn.insert(option)));
        let revision = table.revision(&table.snapshot());
        let followers = self.hive().get::<Followers>();
        assert_eq!(followers.0.len(), 1);
        followers.0[0].wait_for(revision, Duration::from_secs(20)).await.unwrap();
    }

    /// Returns the number of trace events that the interval has suppressed.
    pub(crate) fn suppressed_events(&self) -> u64 {
        let map = self.map::<u32, u64>("cilium_ratelimit_metrics");
        map.lookup(&datapath_abi::ratelimit::SOCKET_EVENTS).unwrap().unwrap_or_default()
    }

    /// Waits until the job has attached its programs.
    pub(crate) async fn until_attached(&self) {
        let socket_lb = self.hive().get::<SocketLb>();
        let attached = || socket_lb.coverage() != SocketCoverage::None;
        self.hive().until("programs to be attached", attached).await;
    }

    /// Stops the agent and starts another one.
    pub(crate) async fn restart(&mut self, options: &[(&str, &str)], killed: bool) {
        self.programs = self.program_ids();
        let mut old = self.hive.take().unwrap();
        if killed {
            old.kill();
        } else {
            old.stop().await;
        }
        let hive = run(self.sandbox(), options).await;
        self.maps = hive.get::<Maps>();
        self.hive = Some(hive);
    }

    fn links(&self) -> PathBuf {
        self.maps.fs().socket_links()
    }

    pub(crate) fn link_names(&self) -> Vec<String> {
        bpf::names_in(&self.links()).unwrap()
    }

    pub(crate) fn link_infos(&self) -> Vec<LinkInfo> {
        let open = |name: &String| Link::open(&self.links().join(name)).ok()?.info().ok();
        self.link_names().iter().filter_map(open).collect()
    }

    pub(crate) fn link_ids(&self) -> Vec<u32> {
        self.link_infos().iter().map(|info| info.id).collect()
    }

    fn program_ids(&self) -> Vec<u32> {
        self.link_infos().iter().map(|info| info.program).collect()
    }

    /// Waits until every link has a program of the running agent.
    pub(crate) async fn until_replaced(&self) {
        let is_replaced = || {
            let now = self.program_ids();
            now.len() == 9 && now.iter().all(|id| !self.programs.contains(id))
        };
        self.hive().until("programs to be replaced", is_replaced).await;
    }

    /// Waits until there are this many links.
    pub(crate) async fn until_links(&self, count: usize) {
        self.hive().until("links", || self.link_names().len() == count).await;
    }

    pub(crate) async fn until_links_are_gone(&self) {
        self.hive().until("links to be removed", || !self.links().exists()).await;
    }

    /// Pins a link that no agent of ours has, replaces one by a map, and removes one.
    pub(crate) fn spoil_links(&self) {
        let pin = |name: &str| self.links().join(name);
        Link::open(&pin("cil_sock4_connect")).unwrap().pin(&pin("cil_sock4_pre_bind")).unwrap();
        bpf::unpin(&pin("cil_sock_release")).unwrap();
        self.maps.ipcache().raw().pin(&pin("cil_sock_release")).unwrap();
        bpf::unpin(&pin("cil_sock6_sendmsg")).unwrap();
    }

    /// Makes a change to the link of `cil_sock4_connect`, as another process could.
    pub(crate) fn change(&self, change: Change) {
        let pin = self.links().join("cil_sock4_connect");
        let link = Link::open(&pin).unwrap();
        match change {
            Change::Unpin => drop(bpf::unpin(&pin).unwrap()),
            Change::Detach => link.detach().unwrap(),
            Change::Update => {
                let other = Link::open(&self.links().join("cil_sock4_sendmsg")).unwrap().info().unwrap();
                link.update(&Program::open_id(other.program).unwrap()).unwrap();
            }
            Change::Occupy => {
                bpf::unpin(&pin).unwrap();
                self.maps.ipcache().raw().pin(&pin).unwrap();
            }
        }
    }

    /// Waits until the links are repaired after more than `repairs` changes. Returns the number of changes in health.
    pub(crate) async fn until_repaired(&self, repairs: u64) -> u64 {
        let count = || {
            let message = self.hive().health("socket-lb.job-programs").message.to_string();
            let words =
                message.split_once(" after ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
            words.unwrap_or(0)
        };
        self.hive().until("a repair", || count() > repairs).await;
        let is_whole = || {
            let (infos, mut programs) = (self.link_infos(), self.program_ids());
            programs.sort_unstable();
            programs.dedup();
            let cgroup = infos.first().and_then(|info| info.cgroup);
            programs.len() == 9 && infos.iter().all(|info| info.cgroup == cgroup) && cgroup != Some(0)
        };
        self.hive().until("all links", is_whole).await;
        count()
    }

    /// Waits until sockets are not covered, which health explains. Returns the explanation.
    pub(crate) async fn until_uncovered(&self) -> String {
        self.hive().until("no coverage", || self.coverage() == SocketCoverage::None).await;
        let status = || self.hive().health("socket-lb.job-programs");
        self.hive().until("an explanation", || status().level == Level::Degraded).await;
        status().error.to_string()
    }

    /// Returns the cgroup of the node.
    pub(crate) fn cgroup(&self) -> PathBuf {
        self.sandbox().cgroup().unwrap()
    }

    pub(crate) async fn finish(mut self) {
        self.hive.take().unwrap().stop().await;
    }

    /// Returns the backend that a socket of health probes names, and its protocol.
    pub(crate) fn probed(&self, cookie: u64) -> Option<(SocketAddr, u8)> {
        let v4 = self.map::<u64, LbBackend<u32>>("cilium_lb4_health").lookup(&cookie).unwrap();
        let v6 = self.map::<u64, LbBackend<[u32; 4]>>("cilium_lb6_health").lookup(&cookie).unwrap();
        let v4 = v4.map(|row| (ipv4_from_word(row.address).into(), row.port, row.proto));
        let v6 = v6.map(|row| (ipv6_from_words(row.address).into(), row.port, row.proto));
        v4.or(v6).map(|(ip, port, protocol)| (SocketAddr::new(ip, u16::from_be(port)), protocol))
    }

    /// Lets sockets of this namespace reach a frontend without redirection.
    pub(crate) fn skip(&self, frontend: SocketAddr) {
        let (netns_cookie, port) = (bpf::netns_cookie().unwrap(), frontend.port().to_be());
        match frontend.ip() {
            IpAddr::V4(ip) => {
                let key = SkipLb4Key { netns_cookie, address: ipv4_word(ip), port, pad: 0 };
                self.map::<SkipLb4Key, u8>("cilium_skip_lb4").update(&key, &0).unwrap();
            }
            IpAddr::V6(ip) => {
                let key = SkipLb6Key { netns_cookie, address: ipv6_words(ip), pad: 0, port, pad2: 0 };
                self.map::<SkipLb6Key, u8>("cilium_skip_lb6").update(&key, &0).unwrap();
            }
        }
    }

    fn map<K: Pod, V: Pod>(&self, name: &str) -> Map<K, V> {
        Map::new(self.maps.shared(name).unwrap().unwrap()).unwrap()
    }

    /// Writes the entries of a service, its frontend last.
    pub(crate) fn put(&mut self, service: &Service) {
        match service.frontend.ip() {
            IpAddr::V4(ip) => self.put_family(service, ipv4_word(ip), "4", |ip| match ip {
                IpAddr::V4(ip) => ipv4_word(ip),
                IpAddr::V6(_) => unreachable!(),
            }),
            IpAddr::V6(ip) => self.put_family(service, ipv6_words(ip), "6", |ip| match ip {
                IpAddr::V6(ip) => ipv6_words(ip),
                IpAddr::V4(_) => unreachable!(),
            }),
        }
    }

    fn put_family<A: Copy>(&self, service: &Service, address: A, family: &str, words: impl Fn(IpAddr) -> A)
    where
        LbServiceKey<A>: Pod,
        LbBackend<A>: Pod,
    {
        let services = self.map::<LbServiceKey<A>, LbService>(&format!("cilium_lb{family}_services_v2"));
        let backends = self.map::<u32, LbBackend<A>>(&format!("cilium_lb{family}_backends_v3"));
        let mut key = LbServiceKey {
            address,
            dport: service.frontend.port().to_be(),
            backend_slot: 0,
            proto: service.protocol,
            scope: 0,
            pad: [0; 2],
        };
        let affinity = if service.affinity.is_some() { lb_flag::SESSION_AFFINITY } else { 0 };
        let value = LbService {
            backend_id: service.affinity.unwrap_or_default(),
            count: service.count,
            rev_nat_index: service.id.to_be(),
            flags: service.flags | affinity,
            flags2: service.flags2,
            qcount: 0,
        };
        for (backend, slot) in service.backends.iter().zip(1..) {
            let id = service.first_backend + u32::from(slot);
            let row = LbBackend {
                address: words(backend.ip()),
                port: backend.port().to_be(),
                proto: service.protocol,
                state: 0,
                cluster_id: 0,
                zone: 0,
                pad: 0,
            };
            backends.update(&id, &row).unwrap();
            key.backend_slot = slot;
            services.update(&key, &LbService { backend_id: id, ..value }).unwrap();
            if service.affinity.is_some() {
                let matches = LbAffinityMatch { backend_id: id, rev_nat_id: service.id.to_be(), pad: 0 };
                self.map::<LbAffinityMatch, u8>("cilium_lb_affinity_match").update(&matches, &0).unwrap();
            }
        }
        key.backend_slot = 0;
        services.update(&key, &value).unwrap();
    }

    /// Deletes a service with its backends.
    pub(crate) fn remove(&mut self, service: &Service) {
        let IpAddr::V4(ip) = service.frontend.ip() else { unreachable!() };
        let services = self.map::<LbServiceKey<u32>, LbService>("cilium_lb4_services_v2");
        let backends = self.map::<u32, LbBackend<u32>>("cilium_lb4_backends_v3");
        for slot in 0..=service.backends.len() as u16 {
            let key = LbServiceKey {
                address: ipv4_word(ip),
                dport: service.frontend.port().to_be(),
                backend_slot: slot,
                proto: service.protocol,
                scope: 0,
                pad: [0; 2],
            };
            services.delete(&key).unwrap();
            backends.delete(&(service.first_backend + u32::from(slot))).unwrap();
        }
    }

    /// Gives an address an identity.
    pub(crate) fn identify(&self, ip: &str, sec_identity: u32) {
        let (family, bits, address) = match ip.parse().unwrap() {
            IpAddr::V4(ip) => (FAMILY_V4, 32, [ipv4_word(ip), 0, 0, 0]),
            IpAddr::V6(ip) => (FAMILY_V6, 128, ipv6_words(ip)),
        };
        let prefixlen = IpcacheKey::STATIC_BITS + bits;
        let key = IpcacheKey { prefixlen, cluster_id: 0, pad1: 0, family, address };
        let info = RemoteEndpointInfo { sec_identity, ..RemoteEndpointInfo::default() };
        self.maps.ipcache().update(&key, &info).unwrap();
    }

    /// Returns the number of sockets with a row, by family.
    pub(crate) fn socket_rows(&self) -> (usize, usize) {
        let v4 = self.map::<LbReverseSkKey4, [u8; 8]>("cilium_lb4_reverse_sk").entries().unwrap().len();
        let v6 = self.map::<LbReverseSkKey6, [u8; 20]>("cilium_lb6_reverse_sk").entries().unwrap().len();
        (v4, v6)
    }

    /// Empties the maps of sockets.
    pub(crate) fn forget_sockets(&self) {
        let map = self.map::<LbReverseSkKey4, [u8; 8]>("cilium_lb4_reverse_sk");
        for (key, _) in map.entries().unwrap() {
            map.delete(&key).unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its own cgroup is a folder of the machine, which the sandbox hides.
        self.sandbox = None;
        enter(&self.home);
    }
}

async fn run(sandbox: &Sandbox, options: &[(&str, &str)]) -> TestHive {
    let others = [
        config::<SocketConfig>(),
        config::<loadbalancer::ServicesConfig>(),
        config::<loader::ServicesConfig>(),
        config::<loader::LoaderConfig>(),
        config::<loader::ConntrackConfig>(),
        statedb::table::<RuntimeOption>(),
        provide(|followers: Group<Follower>| Arc::new(Followers(followers.into_iter().collect()))),
        invoke(|_: Arc<Followers>| ()),
    ];
    let cells = [
        statedb::cell(),
        maps::cell(),
        module("options", "Options of other cells", others),
        socket_lb::cell(),
    ];
    let mut hive = TestHive::needing::<SocketLb>(cells)
        .set("bpf-root", sandbox.bpf_root().display())
        .set("cgroup-root", sandbox.cgroup().unwrap().display())
        .set("preallocate-bpf-maps", "false")
        .set("bpf-map-dynamic-size-ratio", "0")
        .set("bpf-sock-rev-map-max", "1024")
        .set("bpf-lb-map-max", "1024");
    for option in ["bpf-ct-global-tcp-max", "bpf-ct-global-any-max", "bpf-nat-global-max"] {
        hive = hive.set(option, "1024");
    }
    for (option, value) in options {
        hive = hive.set(option, value);
    }
    hive.start().await;
    hive
}

/// Returns the folder of the process's cgroup.
fn own_cgroup() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let is_root = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
    let root = mounts.lines().find(is_root).unwrap().split(' ').nth(1).unwrap().to_owned();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    PathBuf::from(root).join(path)
}

/// Moves the process into a cgroup.
pub(crate) fn enter(cgroup: &std::path::Path) {
    fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
}
