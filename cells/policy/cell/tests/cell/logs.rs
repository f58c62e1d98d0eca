//! Texts of rules for the log of verdicts: cookies of map entries and the table that gives their texts.

use std::path::Path;

use datapath_abi::PolicyEntry;
use serde_json::{Value, json};
use statedb::Table;

use policy::{PolicyLog, RowKey};

use crate::kit::{Agent, TCP, World, allow};

/// Returns a policy with a text for the log.
fn logged(from: &str, text: &str) -> Value {
    let mut policy = allow("web", from, 80);
    policy["log"] = json!({"value": text});
    policy
}

/// Returns the cookies with their texts, as the table has them.
fn texts(agent: &Agent) -> Vec<(u32, Vec<String>)> {
    let table = agent.hive.get::<Table<PolicyLog>>();
    let snapshot = table.snapshot();
    let row = |row: &PolicyLog| (row.cookie, row.texts.iter().map(ToString::to_string).collect());
    table.all(&snapshot).map(|found| row(found)).collect()
}

/// Returns the entry of endpoint 7 for packets of a peer to port 80.
fn entry(world: &World, peer: u32) -> Option<PolicyEntry> {
    world.rows(7).get(&RowKey::new(false, peer, 24, TCP | 80)).copied()
}

fn cookie(world: &World, peer: u32) -> Option<u32> {
    entry(world, peer).map(|entry| entry.cookie)
}

fn of(pairs: &[(u32, &[&str])]) -> Vec<(u32, Vec<String>)> {
    pairs.iter().map(|(id, texts)| (*id, texts.iter().map(|text| (*text).to_owned()).collect())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn map_entries_have_a_cookie_for_the_texts_of_their_rules_while_they_are_used() {
    let mut world = World::new();
    world.write(&[("web", logged("client", "to web")), ("plain", allow("web", "other", 80))], true);
    let agent = world.start().await;
    let web = world.pod(7, "web");
    let [client, other] = ["client", "other"].map(|app| world.allocate(&crate::kit::labels(app), app));
    agent.policies.enforce(web);
    agent.policies.realized(7).await.unwrap();
    assert_eq!((cookie(&world, client), cookie(&world, other)), (Some(1), Some(0)));
    assert_eq!(texts(&agent), of(&[(1, &["to web"])]));

    // Two rules of an entry are one cookie; the former one is not used any more.
    world.write(&[("a", logged("client", "invited")), ("b", logged("other", "to web"))], false);
    agent.hive.until("the second text", || cookie(&world, client) == Some(2)).await;
    assert_eq!(cookie(&world, other), Some(1), "the same text, the same cookie");
    assert_eq!(texts(&agent), of(&[(1, &["to web"]), (2, &["invited", "to web"])]));

    // Released cookies leave the table after the maps, and are not used for other texts.
    world.write(&[("web", Value::Null), ("b", Value::Null)], false);
    agent.hive.until("one text", || cookie(&world, client) == Some(3)).await;
    agent.hive.until("the release", || texts(&agent) == of(&[(3, &["invited"])])).await;
    world.write(&[("a", Value::Null)], false);
    agent.hive.until("no text", || texts(&agent).is_empty() && cookie(&world, client).is_none()).await;
    assert_eq!(cookie(&world, other), Some(0));
    agent.end().await;
}

/// Starts the cell with a state folder.
async fn start_in(world: &World, folder: &Path) -> Agent {
    world.start_with(&[("state-dir", folder.to_str().unwrap())]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cookies_in_force_keep_their_texts_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let fake = std::sync::Arc::new(datapath_api::testing::FakeDatapath::new());
    let (web, before) = {
        let mut world = World::of(fake.clone());
        // The first number goes to a text that ends before the restart.
        world.write(&[("old", logged("client", "old"))], true);
        let agent = start_in(&world, folder.path()).await;
        let (web, client) = (world.pod(7, "web"), world.allocate(&crate::kit::labels("client"), "client"));
        agent.policies.enforce(web.clone());
        agent.policies.realized(7).await.unwrap();
        world.write(&[("old", Value::Null), ("web", logged("client", "to web"))], false);
        agent.hive.until("the text", || texts(&agent) == of(&[(2, &["to web"])])).await;
        let before = entry(&world, client);
        agent.end().await;
        (web, before)
    };
    assert_eq!(before.map(|entry| entry.cookie), Some(2));

    let mut world = World::of(fake);
    let agent = start_in(&world, folder.path()).await;
    agent.hive.until("the texts of the maps as they are", || texts(&agent) == of(&[(2, &["to web"])])).await;
    let same = world.subject(7, "web");
    assert_eq!(same.identity, web.identity);
    let client = world.allocate(&crate::kit::labels("client"), "client");
    agent.policies.enforce(same);
    // A policy whose text is computed first would have the first number.
    world.write(&[("a", logged("zebra", "another")), ("web", logged("client", "to web"))], true);
    let zebra = world.allocate(&crate::kit::labels("zebra"), "zebra");
    agent.policies.realized(7).await.unwrap();
    agent.hive.until("both", || cookie(&world, zebra) == Some(3)).await;
    assert_eq!(entry(&world, client), before, "the entry is as it was");
    assert_eq!(texts(&agent), of(&[(2, &["to web"]), (3, &["another"])]));
    agent.end().await;
}
