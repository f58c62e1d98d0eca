//! Identities that come and go leave nothing. The only test of its process, so that nothing else allocates.

use std::time::Duration;

#[path = "cell/churn.rs"]
mod identities;
#[path = "cell/kit.rs"]
#[expect(dead_code, reason = "of the other tests")]
mod kit;

use identities::{PER_SECOND, inventory, run, start};
use kit::World;

#[global_allocator]
static ALLOCATOR: memory_limit::Counting = memory_limit::Counting;

/// Until tables, maps and allocators have the sizes that they need.
const WARM_UP: usize = 10;
const SECONDS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_identities_come_and_go_and_leave_nothing() {
    let mut world = World::new();
    let agent = start(&mut world).await;
    run(&world, &agent, WARM_UP).await;
    let allocated = async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        memory_limit::allocated().unwrap()
    };
    let (before, objects) = (allocated().await, inventory(&world, &agent));
    run(&world, &agent, SECONDS).await;
    let after = allocated().await;
    assert_eq!(inventory(&world, &agent), objects);
    assert!(
        after <= before + before / 20,
        "{before} bytes before and {after} after {} identities",
        SECONDS * PER_SECOND
    );
    agent.end().await;
}
