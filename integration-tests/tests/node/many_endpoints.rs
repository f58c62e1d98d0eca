//! 200 endpoints on a node: a restart makes only necessary changes, and deletions leave nothing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::Stdio;
use std::time::Duration;

use bpf::Map;
use bpf::tc::{Filter, Tc};
use datapath_abi::{EndpointInfo, EndpointKey, lxc_flag};
use integration_tests::Node;
use integration_tests::measure::{Candidate, from_clients};
use test_kit::{Process, require_root, wait_until};

const ENDPOINTS: usize = 200;
const CLIENTS: usize = 8;
const LIMIT: Duration = Duration::from_secs(120);

/// Returns the names with this prefix in a folder of the bpf file system.
fn pins(node: &Node, start: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(node.pin("")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(start)).collect()
}

/// Endpoints by state, without the host's own.
fn states(node: &Node) -> Vec<String> {
    let all = node.get("/v1/endpoint");
    let pods = all.as_array().unwrap().iter().filter(|endpoint| endpoint["status"]["identity"]["id"] != 1);
    pods.map(|endpoint| endpoint["status"]["state"].as_str().unwrap().to_owned()).collect()
}

/// The filters of the pods' interfaces.
fn filters(node: &Node) -> Vec<Filter> {
    node.host().run(|| {
        let tc = Tc::new().unwrap();
        let index = |entry: fs::DirEntry| -> Option<u32> {
            let lxc = entry.file_name().to_str()?.starts_with("lxc");
            fs::read_to_string(entry.path().join("ifindex")).ok()?.trim().parse().ok().filter(|_| lxc)
        };
        let links = fs::read_dir("/sys/class/net").unwrap().filter_map(|entry| index(entry.ok()?));
        links.flat_map(|link| tc.filters(link, bpf::Direction::Ingress).unwrap()).collect()
    })
}

/// Returns id and program of each link of the host's side.
fn links(node: &Node) -> Vec<(u32, u32)> {
    let pins = [
        "cilium_host/links/cil_from_host",
        "cilium_host/links/cil_to_host",
        "cilium_net/links/cil_to_host",
        "eth0/links/cil_from_netdev",
    ];
    let info =
        |pin| bpf::Link::open(&node.sandbox().bpf_root().join("cilium/devices").join(pin)).unwrap().info();
    pins.map(info).into_iter().map(|link| link.unwrap()).map(|link| (link.id, link.program)).collect()
}

fn loads(node: &Node) -> usize {
    node.log().matches("Loaded the datapath").count()
}

/// A recording of the kernel's notifications about filters.
struct Changes {
    monitor: Process,
    reported: std::path::PathBuf,
}

impl Changes {
    fn follow(node: &Node) -> Self {
        let reported = node.sandbox().dir().join("tc-monitor");
        let mut command = node.host().command("tc");
        command.arg("monitor").stdin(Stdio::null()).stdout(File::create(&reported).unwrap());
        let changes = Self { monitor: Process::start(&mut command).unwrap(), reported };
        // The monitor is ready once it prints a change that is made for this purpose.
        wait_until("tc monitor", LIMIT, || {
            node.host().exec("tc qdisc replace dev lo clsact").unwrap();
            node.host().exec("tc qdisc del dev lo clsact").unwrap();
            !fs::read_to_string(&changes.reported).unwrap().is_empty()
        });
        changes
    }

    /// Returns how many times a filter of a pod's interface was written.
    fn of_pods(mut self, node: &Node) -> usize {
        // The kernel reports in order: once the last change is printed, all earlier ones are.
        node.host().exec("tc qdisc replace dev lo ingress").unwrap();
        wait_until("the last change", LIMIT, || {
            fs::read_to_string(&self.reported).unwrap().contains("qdisc ingress")
        });
        self.monitor.kill().unwrap();
        node.host().exec("tc qdisc del dev lo ingress").unwrap();
        let reported = fs::read_to_string(&self.reported).unwrap();
        reported
            .lines()
            .filter(|line| line.contains("filter dev lxc") && !line.starts_with("deleted"))
            .count()
    }
}

#[test]
fn two_hundred_endpoints_come_restart_and_go() {
    require_root!();
    let mut node = Node::started();
    wait_until("the first start of a node loads", LIMIT, || loads(&node) > 0);
    assert_eq!(loads(&node), 1, "once\n{}", node.log());
    let pods = node.sandbox().netns("pods").unwrap();
    let candidates: Vec<Candidate> = (0..ENDPOINTS).map(|i| Candidate::new(&node, &pods, i)).collect();
    let socket = node.socket();
    from_clients(CLIENTS, &candidates, |candidate| {
        candidate.create(&socket);
    });
    assert_eq!(states(&node), ["ready"; ENDPOINTS]);
    assert_eq!(pins(&node, "cilium_policy_v2_").len(), ENDPOINTS + 1, "one map an endpoint and the host's");

    let programs =
        |filters: &[Filter]| filters.iter().map(|filter| filter.program).collect::<BTreeSet<u32>>();
    let before = filters(&node);
    assert_eq!((before.len(), programs(&before).len()), (ENDPOINTS, 1), "all run one program");
    let (links_before, endpoints) = (links(&node), node.endpoints());
    node.stop();
    node.start();
    // The line of the load follows the endpoints, which are ready once their programs are.
    wait_until("a restart loads", LIMIT, || loads(&node) > 1);
    assert_eq!(node.log().matches("kept=true").count(), 1, "{}", node.log());
    assert_eq!(programs(&filters(&node)), programs(&before), "programs are kept for a restart");
    assert_eq!(links(&node), links_before, "on devices too");

    node.stop();
    node.config.insert("bpf-conntrack-accounting".to_owned(), "true".to_owned());
    let changes = Changes::follow(&node);
    node.start();
    assert_eq!(changes.of_pods(&node), ENDPOINTS, "each filter is replaced once");
    wait_until("a restart with another option loads", LIMIT, || loads(&node) > 2);
    assert_eq!(loads(&node), 3, "once\n{}", node.log());
    assert_eq!(node.endpoints(), endpoints);
    let after = filters(&node);
    assert_eq!((after.len(), programs(&after).len()), (ENDPOINTS, 1));
    assert!(programs(&after).is_disjoint(&programs(&before)), "by one of the new load");
    wait_until("links with the new programs", LIMIT, || {
        links(&node).iter().zip(&links_before).all(|(new, old)| new.1 != old.1)
    });
    assert!(
        links(&node).iter().zip(&links_before).all(|(new, old)| new.0 == old.0),
        "no link is created again"
    );

    from_clients(CLIENTS, &candidates, |candidate| candidate.delete(&socket));
    assert_eq!(states(&node), [""; 0]);
    assert_eq!(pins(&node, "cilium_policy_v2_").len(), 1, "the host's policy map stays");
    let records = fs::read_dir(node.endpoint_files()).unwrap();
    let records = records.filter(|entry| entry.as_ref().unwrap().path().join("ep_config.json").exists());
    assert_eq!(records.count(), 1, "the host's record stays");
    let known: Map<u32, u32> = Map::open(&node.pin("ep_ids")).unwrap();
    assert_eq!(known.keys().unwrap().len(), 1, "the host's settings stay");
    let local: Map<EndpointKey, EndpointInfo> = Map::open(&node.pin("cilium_lxc")).unwrap();
    assert!(local.entries().unwrap().iter().all(|(_, info)| info.flags & lxc_flag::HOST != 0));
    let allocated = node.get("/v1/healthz")["ipam"].to_string();
    assert!(!allocated.contains("bench"), "{allocated}");
    // The links are the runtime's to remove; with them go the programs that have dropped until then.
    node.sandbox().remove_netns(pods).unwrap();
    wait_until("filters", LIMIT, || filters(&node).is_empty());
}
