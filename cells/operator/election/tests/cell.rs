//! Several operators and one API server, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use hive::{Scope, State, scope};
use k8s_fake_apiserver::{FakeServer, Request};
use k8s_types::Kind;
use operator_election::{LEASE_NAME, Leadership};
use serde_json::Value;
use tokio::time::sleep;

enum Leader {}

const SECOND: Duration = Duration::from_secs(1);

fn lease(server: &FakeServer) -> Value {
    server.object(Kind::Lease, &format!("kube-system/{LEASE_NAME}"))
}

fn operator(server: &FakeServer, starts: bool) -> TestHive {
    let lead = move |lifecycle: Lifecycle| {
        lifecycle
            .hook("lead")
            .on_start(move |_| async move {
                anyhow::ensure!(starts, "no definitions");
                Ok(())
            })
            .add();
    };
    TestHive::new([
        server.cell(),
        operator_election::cell::<Leader>(),
        scope::<Leader>("leader", "x", invoke(lead)),
        invoke(|_: Arc<Scope<Leader>>, _: Arc<Leadership>| ()),
    ])
    .set("k8s-namespace", "kube-system")
}

fn leads(hive: &TestHive) -> bool {
    hive.get::<Scope<Leader>>().state() == State::Started && hive.get::<Leadership>().holds()
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_hands_over_at_its_stop() {
    let server = FakeServer::default();
    let (mut one, mut two) = (operator(&server, true), operator(&server, true));
    one.start().await;
    one.until("it leads", || leads(&one)).await;
    let lease_object = lease(&server);
    assert_eq!(lease_object["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(lease_object["spec"]["leaseTransitions"], 0);
    let identity = lease_object["spec"]["holderIdentity"].as_str().unwrap().to_owned();
    assert_eq!(identity.rsplit('-').next().unwrap().len(), 10, "{identity}");

    two.start().await;
    sleep(120 * SECOND).await;
    assert!(leads(&one) && !leads(&two));
    let waiting = two.health("leader-election.job-participate").message;
    assert_eq!(waiting, format!("{identity} leads, this process waits for the lease"));

    one.stop().await;
    let released = lease(&server);
    assert_eq!(released["spec"]["holderIdentity"], "");
    let before = tokio::time::Instant::now();
    two.until("it leads", || leads(&two)).await;
    assert!(before.elapsed() < 5 * SECOND, "{:?}", before.elapsed());
    assert_eq!(lease(&server)["spec"]["leaseTransitions"], 1);
    two.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_followed_after_the_lease_and_not_before() {
    let server = FakeServer::default();
    let (mut one, mut two) = (operator(&server, true), operator(&server, true));
    one.start().await;
    one.until("it leads", || leads(&one)).await;
    two.start().await;
    sleep(10 * SECOND).await;
    one.kill();
    let before = tokio::time::Instant::now();
    two.until("it leads", || leads(&two)).await;
    let took = before.elapsed();
    assert!(took > 11 * SECOND && took < 22 * SECOND, "{took:?}");
    two.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_costs_nothing_and_a_long_one_the_process() {
    let server = FakeServer::default();
    let mut one = operator(&server, true);
    one.start().await;
    one.until("it leads", || leads(&one)).await;
    server.on_request(|_, _| Err(Request::unreachable()));
    sleep(8 * SECOND).await;
    assert!(leads(&one));
    let health = one.health("leader-election.job-participate");
    assert_eq!((health.level, health.error.as_str()), (Level::Degraded, "connection refused"));
    server.execute_all();
    sleep(8 * SECOND).await;
    assert!(leads(&one));
    assert_eq!(one.health("leader-election.job-participate").level, Level::Ok);
    server.on_request(|_, _| Err(Request::unreachable()));
    let shutdown = one.hive().shutdowner();
    tokio::time::timeout(14 * SECOND, shutdown.requested()).await.unwrap();
    assert!(!one.get::<Leadership>().holds());
    one.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_cells_do_not_start_ends_and_releases_the_lease() {
    let server = FakeServer::default();
    let mut one = operator(&server, false);
    one.start().await;
    let shutdown = one.hive().shutdowner();
    tokio::time::timeout(10 * SECOND, shutdown.requested()).await.unwrap();
    one.stop().await;
    assert_eq!(lease(&server)["spec"]["holderIdentity"], "");
}

#[tokio::test]
async fn without_a_server_it_says_what_is_missing() {
    let cells =
        [operator_election::cell::<Leader>(), scope::<Leader>("leader", "x", invoke(|_: Lifecycle| ()))];
    let mut hive = hive::Hive::builder(cells).build().unwrap();
    let error = hive.start().await.unwrap_err().to_string();
    assert!(error.contains("k8s-kubeconfig-path"), "{error}");
}
