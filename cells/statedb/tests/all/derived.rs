//! Derived tables, in hives and virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use hive::prelude::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use statedb::{Derive, Derived, Initializer, Query, RwTable};
use tokio::time::{Instant, sleep};

use crate::rows::*;

const SECOND: Duration = Duration::from_secs(1);

type Pods = Arc<RwTable<Pod>>;
type Services = Arc<RwTable<Service>>;

fn name(id: u8) -> String {
    format!("service-{id}")
}

fn by_name(name: &str) -> Query<Service> {
    Query::primary(name)
}

/// Derives a service from each pod with a port. Pods of the node `update` only update it, those of `skip` are skipped,
/// those of `panic` panic.
fn derive(pod: &Pod, deleted: bool) -> Derive<Service> {
    let name = name(pod.id);
    let service = service(&name, pod.ports.first().map(|port| *port as u8));
    match &*pod.node {
        _ if deleted || pod.ports.is_empty() => Derive::Delete(by_name(&name)),
        "skip" => Derive::Skip,
        "update" => Derive::Update(service),
        "panic" => panic!("no service for pod {}", pod.id),
        _ => Derive::Insert(service),
    }
}

async fn hive_of(
    fill: impl Fn(&RwTable<Pod>) + Send + Sync + 'static,
    derive: impl FnMut(&Pod, bool) -> Derive<Service> + Clone + Send + Sync + 'static,
) -> (TestHive, Pods, Services) {
    let job = move |jobs: JobGroup, pods: Pods, services: Services| {
        fill(&pods);
        Derived::new("services", &pods, &services, derive.clone()).batch(10).job(&jobs).add();
    };
    let cells = [statedb::table::<Pod>(), statedb::table::<Service>(), invoke(job)];
    let mut hive = TestHive::new([module("m", "Pods and services", cells), statedb::cell()]);
    hive.start().await;
    let (pods, services) = (hive.get::<RwTable<Pod>>(), hive.get::<RwTable<Service>>());
    (hive, pods, services)
}

fn names(services: &RwTable<Service>) -> Vec<String> {
    services.all(&services.snapshot()).map(|service| service.name.clone()).collect()
}

fn is_complete(services: &RwTable<Service>) -> bool {
    services.initialized(&services.snapshot())
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_one_transaction_and_the_last_one_initializes() {
    let fill = |pods: &RwTable<Pod>| {
        pods.transact(|w| (0..25).for_each(|id| drop(w.insert(pod(id, "a", &[u16::from(id)])))));
    };
    let (hive, pods, services) = hive_of(fill, derive).await;
    let stages: Vec<_> = services
        .snapshots()
        .map(|snapshot| (services.len(&snapshot), services.initialized(&snapshot)))
        .take_while(|stage| std::future::ready(*stage != (25, true)))
        .collect()
        .await;
    assert!(stages.iter().all(|(count, complete)| count.is_multiple_of(10) && !complete), "{stages:?}");
    pods.transact(|w| {
        w.insert(pod(0, "skip", &[99]));
        w.insert(pod(1, "update", &[101]));
        w.delete(by_id(2));
        w.insert(pod(3, "a", &[]));
        w.insert(pod(30, "update", &[130]));
    });
    sleep(SECOND).await;
    let snapshot = services.snapshot();
    let address = |id| services.get(&snapshot, by_name(&name(id))).map(|service| service.address.unwrap());
    assert_eq!([0, 1, 2, 3, 30].map(address), [Some(0), Some(101), None, None, None]);
    assert_eq!(hive.health("m.job-services").message, "30 rows derived");
    hive.assert_no_warning();
    drop((pods, services, snapshot));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_output_is_initialized_with_the_input() {
    let source: Arc<Mutex<Option<Initializer<Pod>>>> = Arc::default();
    let register = {
        let source = source.clone();
        move |pods: &RwTable<Pod>| {
            *source.lock() = Some(pods.transact(|w| w.register_initializer("source")).0)
        }
    };
    let (hive, pods, services) = hive_of(register, derive).await;
    pods.transact(|w| w.insert(pod(1, "a", &[1])));
    sleep(SECOND).await;
    assert_eq!((names(&services).len(), is_complete(&services)), (1, false));
    let pending = services.pending_initializers(&services.snapshot());
    assert_eq!(pending.iter().map(|name| &**name).collect::<Vec<_>>(), ["services"]);
    let both =
        services.snapshots().map(|snapshot| (services.len(&snapshot), services.initialized(&snapshot)));
    let source = source.lock().take().unwrap();
    pods.transact(|w| {
        w.insert(pod(2, "a", &[2]));
        source.done(w);
    });
    let stages: Vec<_> = both.take_while(|stage| std::future::ready(!stage.1)).collect().await;
    assert_eq!(stages, [(1, false)], "changes in the initializing transaction are included");
    assert_eq!(names(&services).len(), 2);
    drop((pods, services));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_row_is_reported_and_retried_without_blocking_others() {
    let broken = Arc::new(AtomicU32::new(3));
    let flaky = {
        let broken = broken.clone();
        move |pod: &Pod, deleted: bool| {
            let left = broken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            assert!(pod.id != 5 || left.is_err(), "no luck");
            derive(pod, deleted)
        }
    };
    let fill = |pods: &RwTable<Pod>| {
        pods.transact(|w| (5..9).for_each(|id| drop(w.insert(pod(id, "a", &[u16::from(id)])))));
    };
    let begin = Instant::now();
    let (hive, pods, services) = hive_of(fill, flaky).await;
    sleep(SECOND / 2).await;
    assert_eq!(names(&services), ["service-6", "service-7", "service-8"]);
    let health = hive.health("m.job-services");
    assert_eq!(health.error, "pods `5`: panicked: no luck");
    assert!(!is_complete(&services), "a row of the beginning is missing");
    assert!(hive.has_logged(hive::LogLevel::WARN, "pods `5`: panicked: no luck"));
    broken.store(0, Ordering::SeqCst);
    services.wait_initialized().await;
    assert!(begin.elapsed() < 3 * SECOND, "{:?}", begin.elapsed());
    assert_eq!(names(&services).len(), 4);
    assert!(hive.health("m.job-services").error.is_empty());
    drop((pods, services));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_row_with_a_conflicting_unique_key_is_retried() {
    let (hive, pods, services) = hive_of(|_| {}, derive).await;
    pods.transact(|w| (1..=3).for_each(|id| drop(w.insert(pod(id, "a", &[7])))));
    sleep(SECOND / 2).await;
    assert_eq!(names(&services), ["service-1"]);
    let health = hive.health("m.job-services");
    assert_eq!(health.message, "2 rows fail");
    assert!(health.error.contains("pods `2`: table `services`"));
    pods.transact(|w| w.insert(pod(3, "a", &[9]))); // a change is retried immediately
    pods.transact(|w| w.delete(by_id(1)));
    sleep(SECOND / 10).await;
    assert_eq!(names(&services), ["service-3"]);
    sleep(2 * SECOND).await;
    assert_eq!(names(&services), ["service-2", "service-3"]);
    drop((pods, services));
    hive.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_initialization_logs_no_warning() {
    let register = |pods: &RwTable<Pod>| {
        pods.transact(|w| w.register_initializer("never")).0.abandon();
    };
    let (mut hive, pods, services) = hive_of(register, derive).await;
    sleep(SECOND).await;
    hive.stop().await;
    assert!(!is_complete(&services));
    hive.assert_no_warning();
    drop((pods, services));
    hive.finish().await;
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u16),
    Delete(u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..20u8, 0..9u16).prop_map(|(id, port)| Step::Put(id, port)),
        2 => (0..20u8).prop_map(Step::Delete),
        2 => (0..1500u64).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// In any order of writes and failures, the output finally has the derived row of each input row.
    #[test]
    fn nothing_is_lost(steps in prop::collection::vec(step(), 1..60), luck in any::<u32>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut random = luck;
            let flaky = move |pod: &Pod, deleted: bool| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                assert!(random >> 30 != 0, "no luck");
                let name = name(pod.id);
                if deleted || pod.ports[0] == 0 {
                    return Derive::Delete(by_name(&name));
                }
                Derive::Insert(Service { name, address: Some(pod.id) })
            };
            let (hive, pods, services) = hive_of(|_| {}, flaky).await;
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Put(id, port) => {
                        pods.transact(|w| w.insert(pod(id, "a", &[port])));
                        model.insert(id, port);
                    }
                    Step::Delete(id) => {
                        pods.transact(|w| w.delete(by_id(id)));
                        model.remove(&id);
                    }
                    Step::Wait(millis) => sleep(Duration::from_millis(millis)).await,
                }
            }
            sleep(3600 * SECOND).await;
            let mut wanted: Vec<_> = model.iter().filter(|(_, port)| **port > 0).map(|(id, _)| name(*id)).collect();
            wanted.sort();
            assert_eq!(names(&services), wanted);
            assert!(is_complete(&services));
            drop((pods, services));
            hive.finish().await;
        });
    }
}
