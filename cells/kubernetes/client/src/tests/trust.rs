//! A watch of a server that sends invalid data.

use serde_json::json;

use super::*;

async fn with_pods(count: usize) -> Bench {
    let fake = Fake::new(&["pods"]);
    for n in 0..count {
        fake.put("pods", "shop", &format!("web-{n}"), &json!({"n": n}));
    }
    let bench = Bench::new(fake, Kind::Pod).await;
    bench.until_true("pods").await;
    bench
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_too_large_is_reported_and_kept() {
    let bench = with_pods(2).await;
    let web = Key::new("shop", "web-0");
    let stays = |reader: &Reader| reader.objects()[&web]["spec"]["n"] == 0;
    bench.fake.state.lock().chunk = 1 << 20;
    bench.fake.put("pods", "shop", "web-0", &json!("x".repeat(crate::scan::MAX_OBJECT)));
    bench.fake.put("pods", "shop", "small", &json!(1));
    bench.until("the next object", |reader| reader.objects().contains_key(&Key::new("shop", "small"))).await;
    assert_eq!(bench.errors(), ["has more than 16 MiB, which no cluster needs: make it smaller"]);
    assert!(stays(&bench.reader.lock()));
    // In streaming and in paged lists as well.
    for lists in [2, 3] {
        bench.fake.put("pods", "shop", &format!("new-{lists}"), &json!(1));
        bench.fake.compact();
        bench.fake.cut();
        bench.until("a list", |reader| reader.lists == lists && reader.is_complete()).await;
        assert!(stays(&bench.reader.lock()));
        assert_eq!((bench.errors().len(), bench.reader.lock().objects().len()), (lists, 2 + lists));
        bench.fake.state.lock().streaming = super::fake::Streaming::Refused;
    }
    // Its delete applies although it is too large.
    bench.fake.delete("pods", "shop", "web-0");
    bench.until_true("pods").await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn versions_that_go_back_list_again() {
    let bench = with_pods(3).await;
    let lie =
        |version: &str| json!({"metadata": {"name": "lie", "namespace": "shop", "resourceVersion": version}});
    bench.fake.lie("pods", "ADDED", lie("999999"));
    bench.until("it is believed", |reader| reader.objects().contains_key(&Key::new("shop", "lie"))).await;
    let begun = tokio::time::Instant::now();
    bench.fake.put("pods", "shop", "new", &json!(1));
    bench.until_true("pods").await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let errors = bench.errors();
    assert!(
        errors.len() == 1 && errors[0].contains("goes back in time: version 105 of pods after 999999"),
        "{errors:?}"
    );
    // If versions always go back, lists are requested at intervals and reported rarely.
    let before = bench.fake.requests().len();
    for _ in 0..300 {
        bench.fake.lie("pods", "ADDED", lie("7"));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let (asked, errors) = (bench.fake.requests().len() - before, bench.errors());
    assert!((5..40).contains(&asked) && errors.len() <= 2, "{asked} {errors:?}");
    // A list may have succeeded since the last version: it is degraded by the next one.
    bench.fake.lie("pods", "ADDED", lie("7"));
    bench.until("it is degraded", |_| bench.health("pods").level == Level::Degraded).await;
    bench.fake.compact();
    bench.until("it heals", |_| bench.health("pods").level == Level::Ok).await;
    bench.until_true("pods").await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn invalid_data_causes_another_list() {
    let bench = with_pods(3).await;
    bench.fake.lose("pods", "shop", "web-1");
    bench.fake.lie("pods", "EXPLODED", json!({}));
    bench.until("a second list", |reader| reader.lists == 2).await;
    bench.until_true("pods").await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn another_cluster_is_listed_again() {
    let bench = with_pods(3).await;
    let (link, limit) = (bench.connection.link.clone(), Duration::from_secs(30));
    crate::jobs::heartbeat(link.clone(), limit).await.unwrap();
    for (cluster, lists) in [("this", 1), ("other", 2)] {
        // The server is down for a moment.
        tokio::time::sleep(Duration::from_secs(31)).await;
        bench.fake.fault(super::fake::Fault::Refuse);
        crate::jobs::heartbeat(link.clone(), limit).await.unwrap();
        bench.fake.lose("pods", "shop", "web-1");
        bench.fake.state.lock().cluster = cluster;
        crate::jobs::heartbeat(link.clone(), limit).await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(bench.reader.lock().lists, lists, "{cluster}");
    }
    bench.until_true("pods").await;
    let asked =
        |bench: &Bench| bench.fake.requests().iter().filter(|r| r.ends_with(crate::link::IDENTITY)).count();
    let before = asked(&bench);
    crate::jobs::heartbeat(link.clone(), limit).await.unwrap();
    assert_eq!((before, asked(&bench)), (3, 3), "it is asked when the server comes back");
    bench.end().await;
}
