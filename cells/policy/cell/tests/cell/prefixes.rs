use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath_abi::{PolicyEntry, PolicyKey};
use datapath_api::Datapath;
use datapath_api::testing::FakeDatapath;
use ipcache::testing::FakeMap;
use ipnetwork::IpNetwork;
use policy::{Rows, Verdict};
use serde_json::{Value, json};

use crate::kit::{Done, TCP, World, allow_cidr};

/// Returns the identity of packets from an address.
fn identity(world: &World, address: &str) -> u32 {
    let address: std::net::IpAddr = address.parse().unwrap();
    let prefixes = world.ipcache.prefixes();
    let covering = prefixes.iter().filter(|prefix| prefix.contains(address));
    let longest = covering.max_by_key(|prefix| prefix.prefix());
    longest.and_then(|prefix| world.ipcache.identity(&prefix.to_string())).unwrap_or(9)
}

fn passes(world: &World, address: &str) -> bool {
    // In the order of a program: the identity first, then the rows.
    let identity = identity(world, address);
    world.ingress(7, identity, TCP | 80)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_get_identities_in_maps_and_ipcache_and_lose_them() {
    let mut world = World::new();
    world.write(&[], true);
    let agent = world.start().await;
    agent.policies.enforce(world.pod(7, "web"));
    agent.policies.realized(7).await.unwrap();
    let spec = json!({
        "endpointSelector": {"matchLabels": {"app": "web"}},
        "ingress": [{"fromCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"]}]}],
    });
    world.write(&[("web", spec)], false);
    agent.hive.until("the policy", || agent.row(7).realized == 2).await;
    assert_eq!(world.ipcache.prefixes().len(), 2, "the exception has an identity as well");
    assert!(passes(&world, "10.1.2.3") && !passes(&world, "10.9.2.3") && !passes(&world, "11.1.2.3"));
    let ids: Vec<u32> =
        world.identity_table.all(&world.db.snapshot()).map(|row| row.id).filter(|id| *id > 1 << 24).collect();
    assert_eq!(ids.len(), 2);

    world.write(&[("web", Value::Null)], false);
    agent.hive.until("an empty ipcache", || world.ipcache.prefixes().is_empty()).await;
    let left = || world.identity_table.all(&world.db.snapshot()).filter(|row| row.id > 1 << 24).count();
    agent.hive.until("no identities", || left() == 0).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cidr_groups_are_selected_by_name_and_by_labels_as_they_change() {
    let mut world = World::new();
    world.write_cidr_group("offices", "office", &["10.0.0.0/8"]);
    world.write_cidr_group("unused", "vpn", &["192.168.0.0/16"]);
    world.write(&[], true);
    let agent = world.start().await;
    agent.policies.enforce(world.pod(7, "web"));
    agent.policies.realized(7).await.unwrap();
    assert!(world.ipcache.prefixes().is_empty(), "no policy selects by groups");

    let allow = |rule: Value| {
        json!({
            "endpointSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{"fromCIDRSet": [rule]}],
        })
    };
    let by_name = json!({"cidrGroupRef": "offices", "except": ["10.9.0.0/16"]});
    world.write(&[("web", allow(by_name))], false);
    agent.hive.until("the policy", || passes(&world, "10.1.2.3") && !passes(&world, "10.9.2.3")).await;
    assert!(!passes(&world, "192.168.1.1") && !passes(&world, "11.0.0.1"));

    // The group changes, the policy does not.
    world.write_cidr_group("offices", "office", &["10.0.0.0/8", "11.0.0.0/8", "fd00::/32"]);
    agent.hive.until("the new prefixes", || passes(&world, "11.0.0.1") && passes(&world, "fd00::1")).await;
    assert!(passes(&world, "10.1.2.3"));
    world.write_cidr_group("offices", "office", &["11.0.0.0/8"]);
    agent.hive.until("a prefix less", || !passes(&world, "10.1.2.3")).await;
    assert!(passes(&world, "11.0.0.1"));

    // An invalid prefix: the previous version stays in force.
    world.write_cidr_group("offices", "office", &["12.0.0.0/8", "nonsense"]);
    world.write_cidr_group("later", "office", &["13.0.0.0/8"]);
    agent
        .hive
        .until("another group", || world.ipcache.prefixes().iter().any(|p| p.to_string() == "13.0.0.0/8"))
        .await;
    assert!(passes(&world, "11.0.0.1") && !passes(&world, "12.0.0.1") && !passes(&world, "13.0.0.1"));

    let by_labels = json!({"cidrGroupSelector": {"matchLabels": {"kind": "office"}}});
    world.write(&[("web", allow(by_labels))], false);
    agent.hive.until("both groups", || passes(&world, "11.0.0.1") && passes(&world, "13.0.0.1")).await;
    assert!(!passes(&world, "192.168.1.1"));
    world.write_cidr_group("later", "vpn", &["13.0.0.0/8"]);
    agent.hive.until("another label", || !passes(&world, "13.0.0.1")).await;

    // A missing group selects nothing: its policy denies.
    world.write_cidr_group("offices", "", &[]);
    agent.hive.until("no group", || !passes(&world, "11.0.0.1")).await;
    world.write(&[("web", Value::Null)], false);
    agent.hive.until("an empty ipcache", || world.ipcache.prefixes().is_empty()).await;
    agent.end().await;
}

/// 10.0.0.5 is allowed before and after, by prefixes of different lengths: it must never be denied in between; 11.0.0.5
/// must never pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_prefixes_never_drops_allowed_peers() {
    let mut world = World::new();
    world.write(&[("web", allow_cidr("web", &["10.0.0.0/8"]))], true);
    let agent = world.start().await;
    agent.policies.enforce(world.pod(7, "web"));
    agent.policies.realized(7).await.unwrap();
    assert!(passes(&world, "10.0.0.5") && !passes(&world, "11.0.0.5"));
    let done = Done::default();
    let (watched, done) = (world_view(&world), &done);
    std::thread::scope(|scope| {
        let watched = &watched;
        let watcher = scope.spawn(move || {
            let mut looks = 0;
            while !done.is_over() {
                let started = Instant::now();
                let (inside, outside) = (watched.passes("10.0.0.5"), watched.passes("11.0.0.5"));
                // A thread may be preempted between its two lookups for longer than a program in the kernel, so slow
                // iterations do not count.
                if started.elapsed() < Duration::from_micros(800) {
                    assert!(inside, "denied after {looks} looks");
                    assert!(!outside, "allowed after {looks} looks");
                    looks += 1;
                }
            }
            looks
        });
        let ended = done.at_the_end();
        let runtime = tokio::runtime::Handle::current();
        let specs =
            [&["10.0.0.0/16"][..], &["10.0.0.0/24", "172.16.0.0/12"], &["10.0.0.5/32"], &["10.0.0.0/8"]];
        tokio::task::block_in_place(|| {
            for round in 0..40 {
                let before = agent.policies.revision();
                world.write(&[("web", allow_cidr("web", specs[round % specs.len()]))], false);
                runtime.block_on(agent.hive.until("the change", || agent.row(7).realized > before));
            }
        });
        drop(ended);
        assert!(watcher.join().unwrap() > 1000);
    });
    agent.end().await;
}

/// The state that the watcher reads, separate from the world that is being changed.
struct View {
    datapath: Arc<dyn Datapath>,
    ipcache: Arc<FakeMap>,
}

fn world_view(world: &World) -> View {
    View { datapath: world.datapath.clone(), ipcache: world.ipcache.clone() }
}

impl View {
    fn passes(&self, address: &str) -> bool {
        let address: std::net::IpAddr = address.parse().unwrap();
        let mut covering: Vec<IpNetwork> =
            self.ipcache.prefixes().into_iter().filter(|prefix| prefix.contains(address)).collect();
        covering.sort_by_key(|prefix| std::cmp::Reverse(prefix.prefix()));
        // A prefix that is removed between the two lookups does not count.
        let identity =
            covering.iter().find_map(|prefix| self.ipcache.identity(&prefix.to_string())).unwrap_or(9);
        let rows: Rows = self.datapath.policy_rows(7).unwrap().into_iter().collect();
        rows.verdict(false, identity, TCP | 80).passes()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_a_writable_disk_enforces_its_policies() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeDatapath::new());
    let mut world = World::with(fake.clone(), Some(folder.path()));
    let web = world.pod(7, "web");
    let peer = (PolicyKey { sec_label: 4711, ..PolicyKey::any(false) }, PolicyEntry::allow(0));
    fake.restore_policy(7, [peer]);
    // Identities of prefixes cannot be stored; the kernel must have them before packets carry them.
    std::fs::remove_dir_all(folder.path()).unwrap();
    std::fs::write(folder.path(), "in the way").unwrap();
    world.write(&[("web", allow_cidr("web", &["10.0.0.0/8"]))], true);
    let agent = world.start().await;
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    assert!(passes(&world, "10.1.2.3") && !passes(&world, "11.1.2.3"));
    assert!(!world.ingress(7, 4711, TCP | 80));
    std::fs::remove_file(folder.path()).unwrap();
    std::fs::create_dir(folder.path()).unwrap();
    agent.end().await;
}

/// Rules changed while no agent ran: an endpoint that is announced late must have its rows before the new prefix takes
/// effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_that_is_new_at_a_start_counts_when_restored_endpoints_have_its_rows() {
    let mut world = World::new();
    let old: IpNetwork = "10.0.0.0/8".parse().unwrap();
    let number = world.prefixes.allocate(&[old]).unwrap()[&old];
    world.ipcache.leave(old, number);
    let web = world.pod(7, "web");
    let row = (PolicyKey { sec_label: number, ..PolicyKey::any(false) }, PolicyEntry::allow(0));
    world.fake.restore_policy(7, [row]);
    world.write(&[("web", allow_cidr("web", &["10.0.0.0/16"]))], true);
    let agent = world.start().await;
    for _ in 0..20 {
        assert!(passes(&world, "10.0.0.5"), "by the old rules, as its endpoint has not been announced");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    assert!(passes(&world, "10.0.0.5"));
    agent.hive.until("the old prefix to count no more", || !passes(&world, "10.1.0.5")).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_of_the_previous_run_keep_their_ids() {
    let mut world = World::new();
    let old: IpNetwork = "10.0.0.0/8".parse().unwrap();
    let number = world.prefixes.allocate(&[old]).unwrap()[&old];
    world.ipcache.leave(old, number);
    world.write(&[("web", allow_cidr("web", &["10.0.0.0/8"]))], true);
    let agent = world.start().await;
    agent.policies.enforce(world.pod(7, "web"));
    agent.policies.realized(7).await.unwrap();
    assert_eq!(world.ipcache.identity("10.0.0.0/8"), Some(number));
    assert!(world.rows(7).verdict(false, number, TCP | 80).passes());
    assert!(matches!(world.rows(7).verdict(false, 9, TCP | 80), Verdict::NoMatch));
    agent.end().await;
}
