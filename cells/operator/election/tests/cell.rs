//! Several operators and one API server, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use hive::prelude::*;
use hive::{Scope, State, scope};
use k8s_fake_apiserver::Tracker;
use k8s_types::{Answer, Api, ApiError, Key, Kind, Patch, Preconditions};
use operator_election::{LEASE_NAME, Leadership};
use serde_json::Value;
use statedb::Db;
use tokio::time::sleep;

enum Leader {}

const SECOND: Duration = Duration::from_secs(1);

/// A server that may be away.
#[derive(Clone)]
struct Server {
    tracker: Tracker,
    is_away: Arc<AtomicBool>,
    requests: Arc<AtomicU32>,
}

impl Server {
    fn new() -> Server {
        let tracker = Tracker::new(&Db::new().table().unwrap());
        Server { tracker, is_away: Arc::default(), requests: Arc::default() }
    }

    fn answer<T: Send + 'static>(&self, answer: Answer<T>) -> Answer<T> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match self.is_away.load(Ordering::Relaxed) {
            true => {
                let error =
                    ApiError::Unavailable { message: "connection refused".to_owned(), retry_after: None };
                std::future::ready(Err(error)).boxed()
            }
            false => answer,
        }
    }

    async fn lease(&self) -> Value {
        let json = Api::get(&self.tracker, Kind::Lease, &Key::new("kube-system", LEASE_NAME)).await.unwrap();
        serde_json::from_slice(&json).unwrap()
    }
}

impl Api for Server {
    fn get(&self, kind: Kind, key: &Key) -> Answer<Bytes> {
        self.answer(Api::get(&self.tracker, kind, key))
    }

    fn create(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.answer(Api::create(&self.tracker, kind, object))
    }

    fn update(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.answer(Api::update(&self.tracker, kind, object))
    }

    fn update_status(&self, kind: Kind, object: Bytes) -> Answer<Bytes> {
        self.answer(self.tracker.update_status(kind, object))
    }

    fn patch(&self, kind: Kind, key: &Key, status: bool, patch: Patch) -> Answer<Bytes> {
        self.answer(self.tracker.patch(kind, key, status, patch))
    }

    fn delete(&self, kind: Kind, key: &Key, only_if: Preconditions) -> Answer<()> {
        self.answer(Api::delete(&self.tracker, kind, key, only_if))
    }
}

fn operator(server: &Server, starts: bool) -> TestHive {
    let api: Arc<dyn Api> = Arc::new(server.clone());
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
        supply(api),
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
    let server = Server::new();
    let (mut one, mut two) = (operator(&server, true), operator(&server, true));
    one.start().await;
    one.until("it leads", || leads(&one)).await;
    let lease = server.lease().await;
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(lease["spec"]["leaseTransitions"], 0);
    let identity = lease["spec"]["holderIdentity"].as_str().unwrap().to_owned();
    assert_eq!(identity.rsplit('-').next().unwrap().len(), 10, "{identity}");

    two.start().await;
    sleep(120 * SECOND).await;
    assert!(leads(&one) && !leads(&two));
    let waiting = two.health("leader-election.job-participate").message;
    assert_eq!(waiting, format!("{identity} leads, this process waits for the lease"));

    one.stop().await;
    let released = server.lease().await;
    assert_eq!(released["spec"]["holderIdentity"], "");
    let before = tokio::time::Instant::now();
    two.until("it leads", || leads(&two)).await;
    assert!(before.elapsed() < 5 * SECOND, "{:?}", before.elapsed());
    assert_eq!(server.lease().await["spec"]["leaseTransitions"], 1);
    two.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_followed_after_the_lease_and_not_before() {
    let server = Server::new();
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
    let server = Server::new();
    let mut one = operator(&server, true);
    one.start().await;
    one.until("it leads", || leads(&one)).await;
    server.is_away.store(true, Ordering::Relaxed);
    sleep(8 * SECOND).await;
    assert!(leads(&one));
    let health = one.health("leader-election.job-participate");
    assert_eq!((health.level, health.error.as_str()), (Level::Degraded, "connection refused"));
    server.is_away.store(false, Ordering::Relaxed);
    sleep(8 * SECOND).await;
    assert!(leads(&one));
    assert_eq!(one.health("leader-election.job-participate").level, Level::Ok);
    server.is_away.store(true, Ordering::Relaxed);
    let shutdown = one.hive().shutdowner();
    tokio::time::timeout(14 * SECOND, shutdown.requested()).await.unwrap();
    assert!(!one.get::<Leadership>().holds());
    one.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_cells_do_not_start_ends_and_releases_the_lease() {
    let server = Server::new();
    let mut one = operator(&server, false);
    one.start().await;
    let shutdown = one.hive().shutdowner();
    tokio::time::timeout(10 * SECOND, shutdown.requested()).await.unwrap();
    one.stop().await;
    assert_eq!(server.lease().await["spec"]["holderIdentity"], "");
}

#[tokio::test]
async fn without_a_server_it_says_what_is_missing() {
    let cells =
        [operator_election::cell::<Leader>(), scope::<Leader>("leader", "x", invoke(|_: Lifecycle| ()))];
    let mut hive = hive::Hive::builder(cells).build().unwrap();
    let error = hive.start().await.unwrap_err().to_string();
    assert!(error.contains("k8s-kubeconfig-path"), "{error}");
}
