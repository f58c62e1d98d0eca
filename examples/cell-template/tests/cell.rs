//! The cell alone in a hive.

use std::time::Duration;

use hive::prelude::*;

#[tokio::test(start_paused = true)]
async fn greets_at_the_start_and_again() {
    let mut hive = TestHive::new(cell_template::cell()).set("greeter-name", "bees");
    hive.start().await;
    assert_eq!(hive.health("greeter").message, "hello, bees");
    assert_eq!(hive.hook_order(), ["greet", "timer-job-again"]);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(hive.health("greeter").message, "hello, bees again");
    hive.stop().await; // no job is leaked
}
