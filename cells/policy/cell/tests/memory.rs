//! The memory of a rule of many prefixes, with the tables of identities and the ipcache. The only test of its process,
//! so that nothing else allocates.

use std::time::Duration;

use serde_json::json;

#[path = "cell/kit.rs"]
#[expect(dead_code, reason = "of the other tests")]
mod kit;

use kit::World;

#[global_allocator]
static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

const PREFIXES: usize = 10_000;
/// Bytes per prefix, the entries of the kernel's maps among them, which the fakes keep.
const GOAL: u64 = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_of_many_prefixes_is_small() {
    let mut world = World::new();
    world.write(&[], true);
    let agent = world.start().await;
    let web = world.pod(7, "web");
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    let allocated = || memory_limit::allocated().unwrap();
    let before = allocated();

    let prefixes: Vec<String> =
        (0..PREFIXES).map(|n| format!("172.{}.{}.{}/31", n / 4096 + 16, n / 16 % 256, n % 16 * 2)).collect();
    let rule =
        json!({"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"fromCIDR": prefixes}]});
    drop(prefixes);
    world.write(&[("web", rule)], false);
    agent.hive.until("the prefixes", || world.rows(7).len() == PREFIXES + 1).await;
    agent.policies.realized(7).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let each = (allocated() - before) / PREFIXES as u64;
    assert!(each <= GOAL, "{each} bytes per prefix");
    agent.end().await;
}
