//! The cell in a hive of its own.

use std::sync::Arc;

use hive::prelude::*;
use metrics::Metrics;
use prometheus_client::metrics::gauge::Gauge;

#[tokio::test]
async fn a_selection_from_the_options_is_applied() {
    let cells = [metrics::cell(), module("m", "Reports", invoke(|health: Health| health.ok("up")))];
    let mut hive = TestHive::needing::<Metrics>(cells).set("metrics", "-cilium_version,+cilium_extra");
    hive.start().await;
    let metrics: Arc<Metrics> = hive.get();
    metrics.register_off("extra", "Extra", Gauge::<i64>::default());
    metrics.register_off("other", "Other", Gauge::<i64>::default());
    let text = metrics.text();
    assert!(text.contains("cilium_extra 0"), "{text}");
    assert!(text.contains("cilium_process_open_fds"), "{text}");
    assert!(text.contains("cilium_hive_status{status=\"ok\"}"), "{text}");
    assert!(!text.contains("start_duration 0.0\n"), "{text}");
    assert!(!text.contains("cilium_other") && !text.contains("cilium_version"), "{text}");
    hive.stop().await;
}

#[tokio::test]
async fn an_address_in_use_fails_the_start_and_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut hive = TestHive::new(metrics::cell()).set("prometheus-serve-addr", &address);
    let error = hive.try_start().await.unwrap_err().to_string();
    assert!(error.contains(&format!("prometheus-serve-addr: cannot listen on {address:?}")), "{error}");
}
