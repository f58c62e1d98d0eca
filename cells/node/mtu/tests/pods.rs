//! The cell in a hive, on the kernel of namespaces: a node with pods.

use std::sync::Arc;
use std::time::SystemTime;

use endpoints::{Endpoint, Record, State};
use hive::prelude::*;
use mtu::Mtu;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use statedb::{RwTable, TableDisplay};
use test_kit::{NetNs, Sandbox, require_root};

/// A pod as the CNI plugin makes it.
struct Pod {
    id: u16,
    ns: NetNs,
}

struct Setup {
    sandbox: Sandbox,
    pods: Vec<Pod>,
}

impl Setup {
    /// A node with a device that faces the network, and these pods.
    fn new(pods: u16) -> Setup {
        let sandbox = Sandbox::new().unwrap();
        let world = sandbox.netns("world").unwrap();
        sandbox.host().veth("ext0", &world, "eth0").unwrap();
        sandbox
            .host()
            .ip_batch("addr add 192.0.2.1/24 dev ext0\nlink add cilium_host type veth peer name cilium_net\n")
            .unwrap();
        let pods = (1..=pods).map(|id| pod(&sandbox, id)).collect();
        Setup { sandbox, pods }
    }

    fn set_external(&self, mtu: u32) {
        self.sandbox.host().ip(&format!("link set ext0 mtu {mtu}")).unwrap();
    }

    async fn start(&self) -> (TestHive, Arc<RwTable<Endpoint>>) {
        let options = [config::<local_node::StateConfig>(), config::<maps::FamilyConfig>()];
        let cells = [
            statedb::cell(),
            devices::cell(),
            tunnel::cell(),
            bundle(options),
            statedb::table::<Endpoint>(),
            mtu::cell(),
        ];
        let mut hive = TestHive::needing::<RwTable<Endpoint>>(cells)
            .set("state-dir", self.sandbox.run_dir().display())
            .set("devices", "ext0");
        hive.start().await;
        let endpoints = hive.get::<RwTable<Endpoint>>();
        (hive, endpoints)
    }

    fn endpoint(&self, id: u16) -> Endpoint {
        let path = self.sandbox.dir().join("netns").join(format!("pod{id}"));
        let path = self.pods.iter().find(|pod| pod.id == id).map_or(path, |pod| pod.ns.path().to_owned());
        let record = serde_json::json!({
            "ID": id, "IfName": interface(id), "ContainerNetnsPath": path, "OpLabels": null,
        });
        let record: Record = serde_json::from_value(record).unwrap();
        let restored = Endpoint::restored(record, SystemTime::UNIX_EPOCH);
        Endpoint { state: State::Ready, builds: 1, ..restored }
    }

    /// MTU of both sides of a pod's interface, and of its default routes.
    fn mtus(&self, id: u16) -> [String; 4] {
        let pod = self.pods.iter().find(|pod| pod.id == id).unwrap();
        let link =
            |ns: &NetNs, name: &str| word_after(&ns.ip(&format!("-o link show {name}")).unwrap(), "mtu");
        let route =
            |family: &str| word_after(&pod.ns.ip(&format!("{family} route show default")).unwrap(), "mtu");
        [link(self.sandbox.host(), &interface(id)), link(&pod.ns, "eth0"), route("-4"), route("-6")]
    }

    fn own(&self, name: &str) -> String {
        word_after(&self.sandbox.host().ip(&format!("-o link show {name}")).unwrap(), "mtu")
    }
}

fn interface(id: u16) -> String {
    format!("lxc{id:012x}")
}

fn word_after(text: &str, word: &str) -> String {
    let mut words = text.split_whitespace().skip_while(|found| *found != word);
    words.nth(1).unwrap_or_default().to_owned()
}

fn pod(sandbox: &Sandbox, id: u16) -> Pod {
    let ns = sandbox.netns(&format!("pod{id}")).unwrap();
    sandbox.host().veth(&interface(id), &ns, "eth0").unwrap();
    ns.ip_batch(&format!(
        "link property add dev eth0 altname cilium_cni:eth0
         addr add 10.0.0.{id}/32 dev eth0
         addr add fd00::{id}/128 dev eth0 nodad
         route add 10.0.0.254 dev eth0 scope link
         route add default via 10.0.0.254 mtu 1450
         route add fd00::fe dev eth0
         route add default via fd00::fe mtu 1450
         route add 203.0.113.0/24 via 10.0.0.254 mtu 1111
         "
    ))
    .unwrap();
    Pod { id, ns }
}

fn expected(device: u32, route: u32) -> [String; 4] {
    [device, device, route, route].map(|mtu| mtu.to_string())
}

fn run(work: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work());
}

fn rows(hive: &TestHive) -> Vec<String> {
    let table = hive.get::<RwTable<Mtu>>();
    let snapshot = table.snapshot();
    table.all(&snapshot).map(|row| row.row().join(" ")).collect()
}

#[test]
fn pods_follow_the_smallest_device_and_one_that_has_ended_harms_nothing() {
    require_root!();
    run(async || {
        let setup = Setup::new(3);
        let (mut hive, endpoints) = setup.start().await;
        // The third one is not an endpoint; the fourth has neither namespace nor interface any more.
        endpoints.transact(|txn| [1, 2, 4].map(|id| drop(txn.insert(setup.endpoint(id)))));
        hive.until("the table", || rows(&hive) == ["0.0.0.0/0 1500 1450 1500", "::/0 1500 1450 1500"]).await;

        for mtu in [1400, 1290, 1500] {
            setup.set_external(mtu);
            let route = mtu - 50;
            let of_family =
                [mtu.to_string(), mtu.to_string(), route.to_string(), route.max(1280).to_string()];
            hive.until("pods with the MTU", || [1, 2].iter().all(|id| setup.mtus(*id) == of_family)).await;
            hive.until("the agent's devices", || {
                ["cilium_host", "cilium_net"].iter().all(|name| setup.own(name) == mtu.to_string())
            })
            .await;
        }
        assert_eq!(setup.mtus(3), expected(1500, 1450), "never touched");
        let others = setup.pods[0].ns.ip("route show 203.0.113.0/24").unwrap();
        assert!(others.contains("mtu 1111"), "a route that is not the default one: {others}");

        // An interface of another plugin has no such alternative name.
        setup.pods[1].ns.ip("link property del dev eth0 altname cilium_cni:eth0").unwrap();
        setup.set_external(1300);
        hive.until("the first pod", || {
            setup.mtus(1) == ["1300".to_owned(), "1300".to_owned(), "1250".to_owned(), "1280".to_owned()]
        })
        .await;
        assert_eq!(setup.mtus(2), expected(1500, 1450));
        hive.stop().await;
    });
}

#[test]
fn pods_of_the_previous_run_and_pods_that_come_meanwhile_get_the_mtu_of_now() {
    require_root!();
    run(async || {
        let setup = Setup::new(2);
        setup.set_external(1400);
        let (mut hive, endpoints) = setup.start().await;
        endpoints.transact(|txn| drop(txn.insert(setup.endpoint(1))));
        hive.until("the pod of the previous run", || setup.mtus(1) == expected(1400, 1350)).await;
        // Made with the MTU of before.
        endpoints.transact(|txn| drop(txn.insert(setup.endpoint(2))));
        hive.until("the pod that came late", || setup.mtus(2) == expected(1400, 1350)).await;

        // A device that goes is no reason to change pods.
        setup.sandbox.host().ip("link del ext0").unwrap();
        hive.until("no device", || setup.sandbox.host().ip("link show ext0").is_err()).await;
        assert_eq!(rows(&hive)[0], "0.0.0.0/0 1400 1350 1400");
        hive.stop().await;
        assert_eq!(setup.mtus(1), expected(1400, 1350), "it stays at the stop");
    });
}

/// The kernel removes IPv6 from interfaces below its minimum, and refuses larger ones than 65,535.
#[test]
fn a_device_below_the_minimum_of_ipv6_is_named_and_pods_stay_at_the_minimum() {
    require_root!();
    run(async || {
        let setup = Setup::new(1);
        let (mut hive, endpoints) = setup.start().await;
        endpoints.transact(|txn| drop(txn.insert(setup.endpoint(1))));
        hive.until("the table", || rows(&hive).len() == 2).await;
        let health = || hive.health("mtu.job-mtu-updater");
        for mtu in [1279, 68] {
            setup.set_external(mtu);
            let words = [
                format!("device ext0: an MTU of {mtu} is less than 1280"),
                "set the device's MTU to 1280 or more".to_owned(),
            ];
            hive.until("health names the device", || {
                let health = format!("{:?}", health());
                health.contains("Degraded") && words.iter().all(|word| health.contains(word))
            })
            .await;
            let least = ["1280", "1280", "1230", "1280"].map(str::to_owned);
            hive.until("pods with the minimum", || setup.mtus(1) == least).await;
            assert_eq!(rows(&hive), ["0.0.0.0/0 1280 1230 1280", "::/0 1280 1280 1280"]);
            let addresses = setup.pods[0].ns.ip("-6 addr show dev eth0").unwrap();
            assert!(addresses.contains("fd00::1/128"), "{addresses}");
        }
        setup.set_external(1280);
        hive.until("the minimum is enough", || health().level == Level::Ok).await;
        setup.set_external(1500);
        hive.until("pods follow again", || setup.mtus(1) == expected(1500, 1450)).await;
        hive.until("the agent's devices", || setup.own("cilium_host") == "1500").await;
        hive.stop().await;
    });
}

/// Gives or takes the right to enter namespaces; threads started afterwards inherit it.
fn set_admin(is_admin: bool) {
    let mut sets = capabilities(None).unwrap();
    sets.effective.set(CapabilitySet::SYS_ADMIN, is_admin);
    set_capabilities(None, sets).unwrap();
}

fn host_ip(setup: &Setup, command: &str) {
    set_admin(true);
    setup.sandbox.host().ip(command).unwrap();
    set_admin(false);
}

/// Without the right to enter namespaces, the table of devices decides, also when it is behind the endpoints.
#[test]
fn a_device_that_is_seen_late_is_not_a_pod_with_another_mtu() {
    require_root!();
    run(async || {
        let setup = Setup::new(2);
        let name = interface(1);
        setup.sandbox.host().ip(&format!("link set {name} name late")).unwrap();
        setup.sandbox.host().ip(&format!("link set {} mtu 1400", interface(2))).unwrap();
        set_admin(false);
        let (mut hive, endpoints) = setup.start().await;
        hive.until("the table", || rows(&hive).len() == 2).await;
        let health = |hive: &TestHive| hive.health("mtu.job-endpoint-mtu-updater").message;
        hive.until("nothing to do", || health(&hive).contains("Endpoint MTU updated")).await;
        endpoints.transact(|txn| drop(txn.insert(setup.endpoint(1))));
        endpoints.transact(|txn| drop(txn.insert(setup.endpoint(2))));
        hive.until("one refusal", || health(&hive).contains("Pods keep their previous MTU: 1")).await;

        host_ip(&setup, &format!("link set late name {name}"));
        host_ip(&setup, &format!("link set {} mtu 1500", interface(2)));
        hive.until("both devices seen", || health(&hive).contains("Endpoint MTU updated")).await;
        hive.stop().await;
        set_admin(true);
    });
}
