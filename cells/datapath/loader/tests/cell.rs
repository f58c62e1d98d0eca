//! The cell with its neighbours in a hive, in a sandbox: start, devices that come, unknown pods, restart.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bpf::tc::Tc;
use bpf::{Direction, Link};
use datapath_abi::{EndpointKey, lxc_flag};
use datapath_api::{Datapath, EndpointDatapath};
use devices::Netlink;
use hive::prelude::*;
use local_node::LocalNode;
use maps::Maps;
use statedb::RwTable;
use test_kit::{Sandbox, require_root};

/// A node on which the router's addresses are set late, as by IPAM.
fn cells() -> Vec<Cell> {
    let node = |table: Arc<RwTable<LocalNode>>, jobs: JobGroup| {
        let mut row = LocalNode {
            name: "node".to_owned(),
            ipv4_alloc_cidr: Some("10.244.0.0/16".parse().unwrap()),
            ipv6_alloc_cidr: Some("fd00::/64".parse().unwrap()),
            ..LocalNode::default()
        };
        table.transact(|w| w.insert(row.clone()));
        jobs.one_shot("router", move |_| async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            row.router_ipv4 = Some([10, 244, 71, 14].into());
            row.router_ipv6 = Some("fd00::b".parse()?);
            table.transact(|w| w.insert(row));
            Ok(())
        })
        .add();
    };
    vec![
        statedb::cell(),
        maps::cell(),
        devices::cell(),
        sysctl::cell(),
        tunnel::cell(),
        masquerade::cell(),
        // The cells contribute routes, but there is no API server in this hive.
        module("node", "A node", [statedb::table::<LocalNode>(), invoke(node)]),
        loader::cell(),
        invoke(|_: Arc<dyn Datapath>| ()),
    ]
}

fn hive(sandbox: &Sandbox) -> TestHive {
    hive_of(sandbox, cells())
}

fn hive_of(sandbox: &Sandbox, cells: Vec<Cell>) -> TestHive {
    TestHive::new(cells)
        .set("bpf-root", sandbox.bpf_root().display())
        .set("preallocate-bpf-maps", "false")
        .set("devices", "eth0")
        .set("endpoint-bpf-prog-watchdog-interval", "300ms")
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(work)
}

fn filters(ifindex: u32) -> Vec<bpf::tc::Filter> {
    Tc::new().unwrap().filters(ifindex, Direction::Ingress).unwrap()
}

fn link_by_name(name: &str) -> devices::Link {
    Netlink::open().unwrap().link_by_name(name).unwrap()
}

#[test]
fn a_node_comes_up_follows_its_devices_and_restarts_in_place() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let world = sandbox.netns("world").unwrap();
    sandbox.host().veth("eth0", &world, "eth0").unwrap();
    sandbox.host().ip("addr add 10.99.0.1/24 dev eth0").unwrap();
    let links = sandbox.bpf_root().join("cilium/devices");
    let tcx = bpf::probe().unwrap().tcx;
    let pins = [
        "cilium_host/links/cil_from_host",
        "cilium_host/links/cil_to_host",
        "cilium_net/links/cil_to_host",
        "eth0/links/cil_from_netdev",
    ];
    let attached = || {
        if tcx {
            return pins.iter().all(|pin| links.join(pin).exists());
        }
        !filters(link_by_name("eth0").index).is_empty()
    };
    let id = |pin: &str| Link::open(&links.join(pin)).unwrap().info().unwrap();

    run(async {
        let mut hive = hive(&sandbox);
        hive.start().await;
        let datapath: Arc<dyn Datapath> = hive.get();
        assert!(!attached(), "programs wait for the host endpoint's id");
        datapath.expect_host(500);
        tokio::time::timeout(Duration::from_secs(20), datapath.ready()).await.unwrap();
        hive.until("programs on devices", attached).await;
        let maps: Arc<Maps> = hive.get();

        let addresses = sandbox.host().ip("-4 addr show dev cilium_host").unwrap();
        assert!(addresses.contains("10.244.71.14/32"), "{addresses}");
        assert_eq!(sandbox.host().sysctl("net/ipv4/ip_forward").unwrap().trim(), "1");
        assert_eq!(sandbox.host().sysctl("net/ipv4/conf/cilium_host/accept_local").unwrap().trim(), "1");
        for ip in [[10, 99, 0, 1], [10, 244, 71, 14]] {
            let key = EndpointKey::v4(Ipv4Addr::from(ip));
            hive.until("the host's addresses", || maps.lxc().lookup(&key).unwrap().is_some()).await;
            assert_eq!(maps.lxc().lookup(&key).unwrap().unwrap().flags, lxc_flag::HOST);
        }
        let eth0 = link_by_name("eth0").index;
        assert_eq!(maps.devices().keys().unwrap(), [eth0]);

        // Another CNI plugin creates an interface: the dropping program is attached before any request.
        sandbox.host().ip("link add lxc00000000beef type veth peer name p0").unwrap();
        let new = link_by_name("lxc00000000beef");
        hive.until("the guard", || filters(new.index).len() == 1).await;
        let endpoint = EndpointDatapath {
            id: 7,
            ifindex: new.index,
            ifname: "lxc00000000beef".to_owned(),
            ipv4: Some([10, 244, 0, 7].into()),
            ..EndpointDatapath::default()
        };
        datapath.attach(&endpoint).unwrap();
        datapath.attach_host(500, 0).unwrap();

        // Another address is added, and one is removed.
        sandbox.host().ip("addr add 10.98.0.1/24 dev eth0").unwrap();
        sandbox.host().ip("addr del 10.99.0.1/24 dev eth0").unwrap();
        let lookup = |ip: [u8; 4]| maps.lxc().lookup(&EndpointKey::v4(ip.into())).unwrap();
        hive.until("the new address", || {
            lookup([10, 98, 0, 1]).is_some() && lookup([10, 99, 0, 1]).is_none()
        })
        .await;
        // Programs with another host endpoint id replace those with the id announced first.
        datapath.attach_host(501, 0).unwrap();
        hive.until("one program array", || {
            let names = maps.fs().map_names().unwrap();
            names.iter().filter(|n| n.starts_with("cilium_calls_shared_")).count() == 1
        })
        .await;
        // Parts that other processes remove are restored: a pod's program, the router's address, the host devices.
        sandbox.host().exec("tc qdisc del dev lxc00000000beef clsact").unwrap();
        hive.until("the pod's program", || filters(new.index).len() == 1).await;
        let address = || sandbox.host().ip("-4 addr show dev cilium_host").unwrap_or_default();
        sandbox.host().ip("addr del 10.244.71.14/32 dev cilium_host").unwrap();
        hive.until("the address", || address().contains("10.244.71.14")).await;
        sandbox.host().ip("link del cilium_host").unwrap();
        hive.until("the host devices", || address().contains("10.244.71.14") && attached()).await;
        hive.stop().await;
    });
    assert!(attached(), "nothing is taken down at stop");

    let before = tcx.then(|| pins.map(id));
    let old = filters(link_by_name("lxc00000000beef").index)[0].program;
    run(async {
        let mut hive = hive(&sandbox);
        hive.start().await;
        let datapath: Arc<dyn Datapath> = hive.get();
        assert_eq!(datapath.restored().unwrap().len(), 1, "known before programs are loaded");
        datapath.ready().await;
        let filters = filters(link_by_name("lxc00000000beef").index);
        assert_eq!(filters.len(), 1);
        assert_ne!(filters[0].program, old);
        if let Some(before) = before {
            hive.until("links with the new programs", || {
                pins.iter().zip(&before).all(|(pin, before)| id(pin).program != before.program)
            })
            .await;
            let same = pins.iter().zip(&before).all(|(pin, before)| id(pin).id == before.id);
            assert!(same, "links are updated in place");
        }
        hive.stop().await;
    });
}

#[test]
fn a_wrong_option_is_refused_by_name() {
    let mut hive = TestHive::new(cells()).set("monitor-aggregation", "much");
    let error = run(hive.try_start()).unwrap_err().to_string();
    let expected = "option monitor-aggregation: 'much' is wrong; give none, lowest, low, medium or maximum";
    assert!(error.contains(expected), "{error}");
}

fn program(ifindex: u32) -> u32 {
    let found = filters(ifindex);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].program
}

/// A filter of another protocol holds the priority of a pod's program: the kernel refuses every attachment there.
#[test]
fn pods_keep_old_programs_only_as_long_as_the_agent_reports_it() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let world = sandbox.netns("world").unwrap();
    sandbox.host().veth("eth0", &world, "eth0").unwrap();
    let pods: Vec<EndpointDatapath> = [7u16, 8]
        .into_iter()
        .map(|id| {
            let ifname = format!("lxc{id}");
            sandbox.host().ip(&format!("link add {ifname} type veth peer name p{id}")).unwrap();
            let ifindex = link_by_name(&ifname).index;
            let ipv4 = Some([10, 244, 0, id as u8].into());
            EndpointDatapath { id, ifindex, ifname, ipv4, ..EndpointDatapath::default() }
        })
        .collect();
    let [first, second] = [pods[0].ifindex, pods[1].ifindex];
    let job = "loader.job-host-datapath";

    run(async {
        // Without the watchdog, so that only the switch is tested.
        let mut hive = hive(&sandbox).set("endpoint-bpf-prog-watchdog-interval", "0s");
        hive.start().await;
        let datapath: Arc<dyn Datapath> = hive.get();
        datapath.expect_host(500);
        tokio::time::timeout(Duration::from_secs(20), datapath.ready()).await.unwrap();
        hive.until("the host's side", || hive.health(job).level == Level::Ok).await;
        for pod in &pods {
            datapath.attach(pod).unwrap();
        }
        datapath.attach_host(500, 0).unwrap();
        let old = program(second);
        assert_eq!(program(first), old);
        let maps: Arc<Maps> = hive.get();
        let arrays = || {
            let names = maps.fs().map_names().unwrap();
            names.iter().filter(|name| name.starts_with("cilium_calls_shared_")).count()
        };
        hive.until("one program array", || arrays() == 1).await;

        sandbox.host().exec("tc filter del dev lxc7 ingress").unwrap();
        let other =
            ["add", "dev", "lxc7", "ingress", "prio", "1", "protocol", "ip", "bpf", "bytecode", "1,6 0 0 0"];
        let added = sandbox.host().command("tc").arg("filter").args(other).output().unwrap();
        assert!(added.status.success(), "{added:?}");
        datapath.attach_host(501, 0).unwrap();

        hive.until("a switch that failed", || hive.health(job).level == Level::Degraded).await;
        // Retries come after 0.2, 0.4 and 0.8 s, arrays of programs that were replaced would go after 1 s.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let health = hive.health(job);
        assert_eq!(health.level, Level::Degraded, "reported in force: {health:?}");
        assert!(health.error.contains("lxc7"), "{health:?}");
        assert_ne!(program(second), old, "one interface must not keep the others from new programs");
        assert_eq!(arrays(), 2, "programs of before may run");
        datapath.ready().await;

        sandbox.host().exec("tc filter del dev lxc7 ingress").unwrap();
        hive.until("the switch", || hive.health(job).level == Level::Ok).await;
        assert_eq!(program(first), program(second));
        hive.until("one program array", || arrays() == 1).await;
        hive.stop().await;
    });
}

/// A filter of the right name may hold a program of another load.
#[test]
fn the_watchdog_distinguishes_programs_by_their_id() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let world = sandbox.netns("world").unwrap();
    sandbox.host().veth("eth0", &world, "eth0").unwrap();
    sandbox.host().ip("link add lxc7 type veth peer name p0").unwrap();
    let ifindex = link_by_name("lxc7").index;
    let tcx = bpf::probe().unwrap().tcx;
    run(async {
        let mut hive = hive(&sandbox);
        hive.start().await;
        let datapath: Arc<dyn Datapath> = hive.get();
        datapath.expect_host(500);
        tokio::time::timeout(Duration::from_secs(20), datapath.ready()).await.unwrap();
        hive.until("the host's side", || hive.health("loader.job-host-datapath").level == Level::Ok).await;
        let ipv4 = Some([10, 244, 0, 7].into());
        let pod = EndpointDatapath {
            id: 7,
            ifindex,
            ifname: "lxc7".to_owned(),
            ipv4,
            ..EndpointDatapath::default()
        };
        datapath.attach(&pod).unwrap();

        // Programs that pass all packets on, under our names.
        let passing = bpf::Program::passing_on().unwrap();
        let right = program(ifindex);
        let name = "cil_from_container-lxc7";
        Tc::new().unwrap().attach(ifindex, Direction::Ingress, 1, name, &passing).unwrap();
        assert_ne!(program(ifindex), right);
        hive.until("the pod's program", || program(ifindex) == right).await;

        if tcx {
            let devices = sandbox.bpf_root().join("cilium/devices");
            for pin in ["cilium_host/links/cil_from_host", "eth0/links/cil_from_netdev"] {
                let pin = devices.join(pin);
                let found = || Link::open(&pin).unwrap().info().unwrap();
                let before = found();
                Link::open(&pin).unwrap().update(&passing).unwrap();
                assert_ne!(found().program, before.program);
                hive.until("the device's program", || found() == before).await;
            }
            // The pin of one place refers to the link of another.
            let pin = devices.join("eth0/links/cil_from_netdev");
            let id = || Link::open(&pin).map(|link| link.info().unwrap().id).unwrap_or_default();
            let before = id();
            std::fs::remove_file(&pin).unwrap();
            let other = Link::open(&devices.join("cilium_host/links/cil_to_host")).unwrap();
            other.pin(&pin).unwrap();
            assert_ne!(id(), before);
            hive.until("the link's pin", || id() == before).await;
        }
        // The pin of the program array refers to another map.
        let maps: Arc<Maps> = hive.get();
        let names = maps.fs().map_names().unwrap();
        let calls = names.into_iter().find(|name| name.starts_with("cilium_calls_shared_")).unwrap();
        let pin = maps.path(&calls);
        let id = || bpf::RawMap::open(&pin).map(|map| map.id()).unwrap_or_default();
        let before = id();
        std::fs::remove_file(&pin).unwrap();
        maps.lxc().pin(&pin).unwrap();
        assert_ne!(id(), before);
        hive.until("the array's pin", || id() == before).await;
        // Slots of the array are emptied and changed.
        let array = bpf::ObjectMap::open(&pin).unwrap();
        let slots = || (0..array.raw().layout().max_entries).map(|slot| array.id(slot).unwrap());
        let before: Vec<Option<u32>> = slots().collect();
        let mut filled = (0u32..).zip(&before).filter_map(|(slot, id)| id.map(|_| slot));
        array.unset(filled.next().unwrap()).unwrap();
        array.set(filled.next().unwrap(), &passing).unwrap();
        assert!(!slots().eq(before.iter().copied()));
        hive.until("the programs that are called", || slots().eq(before.iter().copied())).await;
        hive.stop().await;
    });
}

/// Options of the load balancer, which is not a part of this hive.
#[derive(hive::Config, Clone, Debug, PartialEq, Eq)]
struct BalancerConfig {
    /// This agent serves all services
    #[flag(default = false)]
    kube_proxy_replacement: bool,
    /// How replies reach clients
    #[flag(default = "snat")]
    bpf_lb_mode: String,
    /// How packets name the service
    #[flag(default = "opt")]
    bpf_lb_dsr_dispatch: String,
}

/// Without a device for outer headers the node has its programs, and health says what to do.
#[test]
fn a_missing_device_of_outer_headers_is_in_health_with_its_module() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let world = sandbox.netns("world").unwrap();
    sandbox.host().veth("eth0", &world, "eth0").unwrap();
    for dispatch in ["ipip", "opt"] {
        run(async {
            let mut cells = cells();
            cells.push(config::<BalancerConfig>());
            let mut hive = hive_of(&sandbox, cells)
                .set("routing-mode", "native")
                .set("enable-ipv4-masquerade", "false")
                .set("enable-ipv6-masquerade", "false")
                .set("kube-proxy-replacement", "true")
                .set("bpf-lb-mode", "dsr")
                .set("bpf-lb-dsr-dispatch", dispatch);
            hive.start().await;
            let datapath: Arc<dyn Datapath> = hive.get();
            datapath.expect_host(500);
            tokio::time::timeout(Duration::from_secs(20), datapath.ready()).await.unwrap();
            let job = "loader.job-host-datapath";
            hive.until("the host's side", || hive.health(job).level == Level::Ok).await;
            let path = format!("{job}.ipip");
            let reported = || hive.hive().health().at(&path).is_some();
            if dispatch == "ipip" {
                hive.until("the row of health", reported).await;
                let status = hive.health(&path);
                let exists = |name| Netlink::open().unwrap().find_link(name).unwrap().is_some();
                if exists("cilium_ipip4") && exists("cilium_ipip6") {
                    assert_eq!(status.level, Level::Ok);
                } else {
                    assert_eq!(status.level, Level::Degraded);
                    let module = if exists("cilium_ipip4") { "ip6_tunnel" } else { "ipip" };
                    let remedy =
                        format!("load its module {module}, or set bpf-lb-dsr-dispatch to opt or geneve");
                    assert!(status.error.ends_with(&remedy), "{}", status.error);
                }
            } else {
                assert!(!reported(), "no device is needed");
            }
            hive.stop().await;
        });
    }
}

/// Returns the names of the programs at the egress of a device: of its pinned link, and of its filters.
fn egress_programs(sandbox: &Sandbox, device: &str) -> Vec<String> {
    let pin = sandbox.bpf_root().join(format!("cilium/devices/{device}/links/cil_to_netdev"));
    let linked = Link::open(&pin).map(|link| link.info().unwrap()).ok();
    let linked = linked.filter(|info| info.direction == Some(Direction::Egress)).map(|_| "link".to_owned());
    let found = Tc::new().unwrap().filters(link_by_name(device).index, Direction::Egress).unwrap_or_default();
    linked.into_iter().chain(found.into_iter().map(|filter| filter.name)).collect()
}

#[test]
fn programs_are_at_the_egress_of_devices_as_long_as_a_feature_needs_them() {
    require_root!();
    let tcx = bpf::probe().unwrap().tcx;
    for enable_tcx in [true, false] {
        let sandbox = Sandbox::new().unwrap();
        let world = sandbox.netns("world").unwrap();
        sandbox.host().veth("eth0", &world, "eth0").unwrap();
        let expected = if enable_tcx && tcx { "link" } else { "cil_to_netdev-eth0" };
        for (masquerade, programs) in
            [("false", &[][..]), ("true", &[expected]), ("true", &[expected]), ("false", &[])]
        {
            run(async {
                let mut hive =
                    hive(&sandbox).set("enable-tcx", enable_tcx).set("enable-bpf-masquerade", masquerade);
                hive.start().await;
                let datapath: Arc<dyn Datapath> = hive.get();
                datapath.expect_host(500);
                tokio::time::timeout(Duration::from_secs(20), datapath.ready()).await.unwrap();
                let what = format!("programs at the egress, tcx {enable_tcx}, masquerade {masquerade}");
                hive.until(&what, || egress_programs(&sandbox, "eth0") == programs).await;
                if masquerade == "true" {
                    // A change of the address rewrites a row: the programs stay.
                    let maps: Arc<Maps> = hive.get();
                    let calls = || {
                        let mut names = maps.fs().map_names().unwrap();
                        names.retain(|name| name.starts_with("cilium_calls_shared_"));
                        names
                    };
                    hive.until("the previous run's programs are gone", || calls().len() == 1).await;
                    let (before, eth0) = (calls(), link_by_name("eth0").index);
                    for address in ["10.99.0.1", "10.98.0.1"] {
                        sandbox.host().ip("addr flush dev eth0 scope global").unwrap();
                        sandbox.host().ip(&format!("addr add {address}/24 dev eth0")).unwrap();
                        let ipv4: Ipv4Addr = address.parse().unwrap();
                        let rows = || maps.masquerade().unwrap().unwrap().entries().unwrap();
                        hive.until("the row of the device", || {
                            rows()
                                .iter()
                                .any(|(index, row)| *index == eth0 && row.ipv4.to_ne_bytes() == ipv4.octets())
                        })
                        .await;
                    }
                    assert_eq!(calls(), before);
                } else {
                    let maps: Arc<Maps> = hive.get();
                    assert!(maps.masquerade().unwrap().is_none(), "no map without masquerading");
                }
                hive.stop().await;
            });
            assert_eq!(egress_programs(&sandbox, "eth0"), programs, "nothing is taken down at stop");
        }
        // A filter of another program stays.
        let bytecode = ["add", "dev", "eth0", "egress", "prio", "7", "bpf", "bytecode", "1,6 0 0 0"];
        sandbox.host().exec("tc qdisc replace dev eth0 clsact").unwrap();
        let added = sandbox.host().command("tc").arg("filter").args(bytecode).output().unwrap();
        assert!(added.status.success(), "{added:?}");
        for (masquerade, count) in [("true", 2), ("false", 1)] {
            run(async {
                let mut hive =
                    hive(&sandbox).set("enable-tcx", enable_tcx).set("enable-bpf-masquerade", masquerade);
                hive.start().await;
                let datapath: Arc<dyn Datapath> = hive.get();
                datapath.expect_host(500);
                let what = format!("{count} programs at the egress, tcx {enable_tcx}");
                hive.until(&what, || egress_programs(&sandbox, "eth0").len() == count).await;
                hive.stop().await;
            });
        }
    }
}
