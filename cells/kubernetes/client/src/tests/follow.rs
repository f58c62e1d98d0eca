//! A watch with each fault.

use serde_json::json;

use super::fake::{Fault, Streaming};
use super::*;

fn with_pods(count: usize) -> Fake {
    let fake = Fake::new(&["pods"]);
    for n in 0..count {
        fake.put("pods", "shop", &format!("web-{n}"), &json!({"n": n, "text": "\"}{\\"}));
    }
    fake
}

#[tokio::test(start_paused = true)]
async fn one_request_lists_and_follows() {
    let bench = Bench::new(with_pods(20), Kind::Pod).await;
    bench.until_true("pods").await;
    bench.fake.put("pods", "shop", "new", &json!(1));
    bench.fake.delete("pods", "shop", "web-3");
    bench.until_true("pods").await;
    assert_eq!(bench.fake.requests().len(), 1, "{:?}", bench.fake.requests());
    assert_eq!(bench.connection.watches.all()[0].objects(), 20);
    assert_eq!(bench.health("pods").message, "20 objects listed, changes are followed");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn pages_are_requested_from_servers_without_streaming_lists() {
    for streaming in [Streaming::Refused, Streaming::EndsAtOnce, Streaming::WithoutEnd] {
        let fake = with_pods(20);
        fake.state.lock().streaming = streaming;
        fake.state.lock().page = 7;
        let bench = Bench::new(fake, Kind::Pod).await;
        bench.until_true("pods").await;
        bench.fake.put("pods", "shop", "new", &json!(1));
        bench.until_true("pods").await;
        let requests = bench.fake.requests();
        assert_eq!((lists(&requests).len(), watches(&requests).len()), (4, 1), "{streaming:?} {requests:?}");
        assert_eq!((bench.errors(), bench.reader.lock().lists), (vec![], 1));
        // This is remembered: the next list starts with pages.
        bench.fake.compact();
        bench.fake.put("pods", "shop", "newer", &json!(1));
        bench.fake.compact();
        bench.fake.cut();
        bench.until_true("pods").await;
        let requests = bench.fake.requests();
        assert_eq!(
            requests.iter().filter(|request| request.contains("sendInitial")).count(),
            1,
            "{requests:?}"
        );
        bench.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_watch_resumes_from_its_version() {
    let bench = Bench::new(with_pods(5), Kind::Pod).await;
    bench.until_true("pods").await;
    for n in 0..60 {
        bench.fake.put("pods", "shop", &format!("n-{n}"), &json!(n));
        if n % 3 == 0 {
            bench.fake.delete("pods", "shop", &format!("n-{}", n / 2));
        }
        bench.fake.cut();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    bench.until_true("pods").await;
    assert_eq!((bench.errors(), bench.reader.lock().lists), (vec![], 1));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn health_and_metrics_show_age_objects_and_last_failure() {
    let bench = Bench::new(with_pods(5), Kind::Pod).await;
    let metrics = metrics::Metrics::default();
    metrics.register_collector(bench.connection.watches.clone());
    bench.until_true("pods").await;
    assert!(!metrics.text().contains("k8s_watch_last_error_age_seconds{"), "{}", metrics.text());
    bench.fake.fault(Fault::Status(500, None));
    bench.fake.cut();
    bench.fake.put("pods", "shop", "new", &json!(1));
    bench.until_true("pods").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let text = metrics.text();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("{scope=\"pods\""));
        line.unwrap_or_else(|| panic!("no {name}: {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("cilium_k8s_watch_objects"), 6.0);
    assert!(value("cilium_k8s_watch_age_seconds") < 61.0, "{text}");
    assert!((29.0..60.0).contains(&value("cilium_k8s_watch_last_error_age_seconds")), "{text}");
    assert!(text.contains("reason=\"busy\"") || text.contains("reason=\"failed\""), "{text}");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_lists_again() {
    let bench = Bench::new(with_pods(5), Kind::Pod).await;
    bench.until_true("pods").await;
    bench.fake.delete("pods", "shop", "web-1");
    bench.fake.put("pods", "shop", "new", &json!(1));
    bench.fake.compact();
    bench.fake.cut();
    bench.until("a second list", |reader| reader.lists == 2).await;
    bench.until_true("pods").await;
    assert_eq!(bench.errors(), Vec::<String>::new());
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_lost_its_versions_is_listed_again() {
    let bench = Bench::new(with_pods(5), Kind::Pod).await;
    bench.until_true("pods").await;
    // Another etcd: its versions are lower than those seen before.
    bench.fake.state.lock().version = 10;
    bench.fake.compact();
    bench.fake.cut();
    bench.fake.lose("pods", "shop", "web-0");
    tokio::time::sleep(Duration::from_secs(20 * 60)).await;
    bench.until_true("pods").await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_missed_deletion_is_repaired_by_the_next_list() {
    let bench = Bench::new(with_pods(5), Kind::Pod).await;
    bench.until_true("pods").await;
    bench.fake.lose("pods", "shop", "web-2");
    tokio::time::sleep(Duration::from_secs(13 * 3600)).await;
    bench.until_true("pods").await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn each_fault_is_reported_once_and_recovered_from() {
    let faults = [
        (Fault::Html(200), "a JSON object expected, found \"<html><body>captive portal"),
        (Fault::Html(502), "the answer is not one of an API server (text/html"),
        (Fault::Status(403, None), "allow verb watch on resource pods of API group \"\""),
        (Fault::Status(401, None), "does not accept the credentials of"),
        (Fault::Status(500, None), "answers 500 to watch pods"),
        (Fault::Refuse, "connection refused; is the API server running there?"),
        (Fault::Hang, "does not answer: watch pods has waited 60 s"),
        (Fault::Cut(1000), "broke off"),
    ];
    for (fault, text) in faults {
        let fake = with_pods(50);
        for _ in 0..5 {
            fake.fault(fault.clone());
        }
        let bench = Bench::new(fake, Kind::Pod).await;
        bench.until_true("pods").await;
        let errors = bench.errors();
        assert_eq!(errors.len(), 1, "{fault:?}: {errors:?}");
        assert!(errors[0].contains(text), "{errors:?}");
        assert_eq!(bench.health("pods").level, Level::Ok);
        bench.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_followed() {
    let fake = with_pods(1);
    fake.fault(Fault::Status(429, Some(17)));
    let begun = tokio::time::Instant::now();
    let bench = Bench::new(fake, Kind::Pod).await;
    bench.until_true("pods").await;
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(17) && waited < Duration::from_secs(25), "{waited:?}");
    assert_eq!(bench.errors(), Vec::<String>::new());
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_closed() {
    let fake = with_pods(1);
    let bench = Bench::new(fake, Kind::Pod).await;
    bench.until_true("pods").await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    // No more bookmarks: the open connections are dead, new ones work.
    bench.fake.state.lock().faults.push_back(Fault::Hang);
    bench.fake.cut();
    bench.fake.put("pods", "shop", "new", &json!(1));
    bench.until_true("pods").await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn another_server_takes_over() {
    let bench = Bench::with(
        with_pods(3),
        Kind::Pod,
        &["http://dead", "http://dead2", "http://lives"],
        WatchTimeouts::default(),
    )
    .await;
    let begun = tokio::time::Instant::now();
    bench.until_true("pods").await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(bench.connection.link.lease().url.as_ref(), "http://lives");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_heartbeat_closes_all_connections() {
    let bench = Bench::new(with_pods(3), Kind::Pod).await;
    bench.until_true("pods").await;
    let (link, limit) = (bench.connection.link.clone(), Duration::from_secs(30));
    crate::jobs::heartbeat(link.clone(), limit).await.unwrap();
    assert_eq!(link.status().unwrap().unwrap().to_string(), "1.34 (v1.34.4) [linux/amd64]");
    let before = bench.fake.requests().len();
    crate::jobs::heartbeat(link.clone(), limit).await.unwrap();
    assert_eq!(bench.fake.requests().len(), before, "the server has just said something");
    tokio::time::sleep(Duration::from_secs(31)).await;
    let cuts = link.cuts();
    bench.fake.fault(Fault::Hang);
    crate::jobs::heartbeat(link.clone(), limit).await.unwrap();
    assert!(cuts.has_changed().unwrap());
    assert!(link.status().unwrap_err().contains("not answered for 30 s"), "{:?}", link.status());
    bench.until("the watch goes on", |_| watches(&bench.fake.requests()).len() == 1).await;
    bench.until_true("pods").await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_replaced_by_the_other_one() {
    let bench =
        Bench::with(with_pods(3), Kind::Pod, &["http://one", "http://two"], WatchTimeouts::default()).await;
    bench.until_true("pods").await;
    let (link, limit) = (bench.connection.link.clone(), Duration::from_secs(10));
    crate::jobs::heartbeat(link.clone(), limit).await.unwrap();
    // The watch is requested again, and waits for the response's head.
    bench.fake.fault(Fault::Hang);
    bench.fake.cut();
    tokio::time::sleep(Duration::from_secs(11)).await;
    bench.fake.put("pods", "shop", "new", &json!(1));
    bench.fake.fault(Fault::Hang);
    crate::jobs::heartbeat(link.clone(), limit).await.unwrap();
    assert_eq!(link.lease().url.as_ref(), "http://two", "not back to the one that is silent");
    let begun = tokio::time::Instant::now();
    bench.until_true("pods").await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn kinds_that_are_not_defined_are_waited_for_without_errors() {
    for kind in [Kind::CiliumNode, Kind::ClusterNetworkPolicy] {
        let fake = Fake::new(&["pods"]);
        let bench = Bench::new(fake, kind).await;
        bench.connection.definitions.are(&Default::default());
        bench.until("an empty list", |reader| reader.lists == 1).await;
        let before = bench.fake.requests().len();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(bench.fake.requests().len(), before);
        // Defined, but not served at once.
        let name = format!("{}.{}", kind.plural(), kind.group());
        bench.connection.definitions.are(&[(name.as_str().into(), "1".into())].into());
        bench.fake.fault(Fault::Status(404, None));
        bench.fake.fault(Fault::Status(429, Some(1)));
        bench.fake.put(kind.plural(), "", "n1", &json!(1));
        bench.until_true(kind.plural()).await;
        assert!(bench.errors().is_empty(), "{:?}", bench.errors());
        bench.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_listed_as_soon_as_its_definition_is_established() {
    let bench = Bench::new(Fake::new(&["pods"]), Kind::CiliumNode).await;
    let name = || format!("{}.{}", Kind::CiliumNode.plural(), Kind::CiliumNode.group());
    bench.connection.definitions.are(&Default::default());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = bench.fake.requests().len();
    (0..300).for_each(|_| bench.fake.fault(Fault::Status(404, None)));
    bench.connection.definitions.are(&[(name().into(), "1".into())].into());
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = bench.fake.requests().len() - before;
    assert!((4..=9).contains(&asked), "{asked} requests");
    // Established: the server serves it a moment later than it sends the change.
    bench.fake.state.lock().faults.clear();
    bench.fake.fault(Fault::Status(404, None));
    bench.fake.put(Kind::CiliumNode.plural(), "", "n1", &json!(1));
    bench.connection.definitions.are(&[(name().into(), "2".into())].into());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(bench.reader.lock().lists, 2, "behind the empty one of a kind without definition");
    bench.until_true(Kind::CiliumNode.plural()).await;
    assert!(bench.errors().is_empty(), "{:?}", bench.errors());
    bench.end().await;
}

/// A definition may serve other versions of a kind than the one that is asked for.
#[tokio::test(start_paused = true)]
async fn kinds_whose_version_is_not_served_are_empty_lists_unless_they_are_required() {
    for (kind, is_required) in [(Kind::ClusterNetworkPolicy, false), (Kind::CiliumIdentity, true)] {
        let bench = Bench::new(Fake::new(&["pods"]), kind).await;
        let name = format!("{}.{}", kind.plural(), kind.group());
        for _ in 0..300 {
            bench.fake.fault(Fault::Status(404, None));
        }
        bench.connection.definitions.are(&[(name.as_str().into(), "1".into())].into());
        let begun = tokio::time::Instant::now();
        if is_required {
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert_eq!(bench.reader.lock().lists, 0);
        } else {
            bench.until("an empty list", |reader| reader.lists == 1).await;
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
            // It is asked for again, rarely, and is not listed as empty again.
            let before = bench.fake.requests().len();
            tokio::time::sleep(Duration::from_secs(3600)).await;
            let asked = bench.fake.requests().len() - before;
            assert!((1..60).contains(&asked) && bench.reader.lock().lists == 1, "{asked}");
            assert_eq!(bench.health(kind.plural()).level, Level::Degraded);
        }
        // Served at last.
        bench.fake.state.lock().faults.clear();
        bench.fake.put(kind.plural(), "", "n1", &json!(1));
        bench.until_true(kind.plural()).await;
        // Not served again: what was listed stays.
        let lists = bench.reader.lock().lists;
        (0..300).for_each(|_| bench.fake.fault(Fault::Status(404, None)));
        bench.fake.compact();
        bench.until("it is degraded", |_| bench.health(kind.plural()).level == Level::Degraded).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(bench.reader.lock().lists, lists);
        bench.fake.state.lock().faults.clear();
        bench.until_true(kind.plural()).await;
        bench.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn required_kinds_are_not_listed_as_empty_while_undefined() {
    let bench = Bench::new(Fake::new(&["pods"]), Kind::CiliumIdentity).await;
    bench.connection.definitions.are(&Default::default());
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(bench.reader.lock().lists == 0 && bench.connection.watches.all()[0].is_listed_or_excused());
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_watch_sends_few_requests() {
    let bench = Bench::new(with_pods(10), Kind::Pod).await;
    bench.until_true("pods").await;
    tokio::time::sleep(Duration::from_secs(5 * 3600)).await;
    let requests = bench.fake.requests();
    // One in five to ten minutes.
    assert!((30..=62).contains(&requests.len()), "{}", requests.len());
    assert_eq!(lists(&requests).len(), 1);
    // It does not list again with servers that send no bookmarks either.
    bench.end().await;
    let fake = with_pods(10);
    fake.state.lock().bookmarks = false;
    let bench = Bench::new(fake, Kind::Pod).await;
    tokio::time::sleep(Duration::from_secs(5 * 3600)).await;
    let requests = bench.fake.requests();
    assert!(requests.len() <= 62 && lists(&requests).len() == 1, "{requests:?}");
    bench.end().await;
}

/// The number of requests for pods so far.
fn tried(bench: &Bench) -> usize {
    bench.fake.requests().iter().filter(|request| request.contains("/pods")).count()
}

/// Another request is answered, whatever faults the next ones have.
async fn answer_another(bench: &Bench) {
    let faults = std::mem::take(&mut bench.fake.state.lock().faults);
    let link = &bench.connection.link;
    link.version(&link.lease(), Duration::from_secs(1)).await.unwrap();
    bench.fake.state.lock().faults = faults;
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_another_request_ends_the_delay_after_an_outage() {
    let bench = Bench::new(with_pods(5), Kind::Pod).await;
    bench.until_true("pods").await;
    for outage in 0..2 {
        (0..1000).for_each(|_| bench.fake.fault(Fault::Refuse));
        bench.fake.cut();
        bench.fake.put("pods", "shop", &format!("new-{outage}"), &json!(1));
        tokio::time::sleep(Duration::from_secs(600)).await;
        let before = tried(&bench);
        bench.fake.state.lock().faults.clear();
        answer_another(&bench).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(*bench.reader.lock().objects(), bench.fake.truth("pods"));
        assert_eq!(tried(&bench) - before, 1);
        // The watch counts as recovered once it has been open for a while.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_other_requests_alone_is_not_asked_without_delays() {
    let bench = Bench::new(with_pods(5), Kind::Pod).await;
    bench.until_true("pods").await;
    (0..1000).for_each(|_| bench.fake.fault(Fault::Refuse));
    bench.fake.cut();
    tokio::time::sleep(Duration::from_secs(120)).await;
    let before = tried(&bench);
    for _ in 0..600 {
        answer_another(&bench).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let tried = tried(&bench) - before;
    assert!((10..50).contains(&tried), "{tried} attempts in 10 minutes");
    bench.end().await;
}
