//! Identities over restarts, conflicts and a full range.

use std::time::{Duration, Instant};

use identity_core::Range;
use labels::NamedPorts;
use labels::{LabelArray, Labels};
use statedb::Db;

use crate::allocator::QUARANTINE;
use crate::cell::{CHECKPOINT, FILE};
use crate::identity::Identity;
use crate::{Error, Identities, testing};

fn set(text: &str) -> Labels {
    Labels::parse(text.split(','))
}

fn array(text: &str) -> LabelArray {
    LabelArray::from(&set(text))
}

#[test]
fn labels_have_one_number_whoever_asks() {
    let (identities, _, table) = testing::identities();
    let web = identities.allocate(&set("k8s:app=web"), "endpoint/1").unwrap();
    assert_eq!(identities.allocate(&set("k8s:app=web"), "endpoint/2").unwrap(), web);
    assert_ne!(identities.allocate(&set("k8s:app=db"), "endpoint/3").unwrap(), web);
    assert_eq!(identities.allocate(&set("reserved:init"), "endpoint/4").unwrap(), 5);
    let with_init = identities.allocate(&set("k8s:app=web,reserved:init"), "endpoint/5").unwrap();
    assert!(Range::of_cluster(0, 255).contains(with_init) && with_init != web, "init and more is not init");
    let row = table.get(&table.snapshot(), Identity::by_id(web)).unwrap().clone();
    assert_eq!(row.users.names().map(|user| &**user).collect::<Vec<_>>(), ["endpoint/1", "endpoint/2"]);
}

#[test]
fn at_once_there_are_known_numbers_only() {
    let (identities, _, table) = testing::identities();
    let labels = set("k8s:app=web");
    assert_eq!(identities.allocate_known(&labels, "endpoint/1"), None);
    let web = identities.allocate(&labels, "endpoint/1").unwrap();
    let writing = identities.store.hold();
    assert_eq!(identities.allocate_known(&labels, "endpoint/2"), None, "it may be about to fail");
    drop(writing);
    identities.release(web, "endpoint/1");
    assert_eq!(identities.allocate_known(&labels, "endpoint/2"), Some(web), "out of quarantine");
    let row = table.get(&table.snapshot(), Identity::by_id(web)).unwrap().clone();
    assert_eq!(row.users.names().map(|user| &**user).collect::<Vec<_>>(), ["endpoint/2"]);
}

#[test]
fn a_number_waits_for_its_labels_before_it_is_anothers() {
    let (identities, _, table) = testing::identities();
    let web = identities.allocate(&set("k8s:app=web"), "endpoint/1").unwrap();
    identities.allocate(&set("k8s:app=web"), "endpoint/2").unwrap();
    identities.release(web, "endpoint/1");
    identities.release(web, "nobody");
    let row = || table.get(&table.snapshot(), Identity::by_id(web)).cloned();
    assert_eq!(row().unwrap().unused_since, None, "endpoint/2 still has it");
    identities.release(web, "endpoint/2");
    let since = row().unwrap().unused_since.unwrap();
    identities.release(web, "endpoint/2");
    assert_eq!(identities.sweep(since + QUARANTINE - Duration::from_secs(1)), 0);
    assert_eq!(identities.allocate(&set("k8s:app=web"), "endpoint/3").unwrap(), web);
    assert_eq!(row().unwrap().unused_since, None);
    identities.release(web, "endpoint/3");
    assert_eq!(identities.sweep(Instant::now() + QUARANTINE), 1);
    assert_eq!(row(), None);
    assert_eq!(identities.sweep(Instant::now() + QUARANTINE), 0, "reserved ones stay");
    assert!(table.get(&table.snapshot(), Identity::by_id(5)).is_some());
}

#[test]
fn a_full_range_says_so_and_heals() {
    let range = Range { first: 256, last: 755 };
    let table = Db::new().table::<Identity>().unwrap();
    let identities = Identities::new(table.clone(), range, None);
    for n in 0..range.len() {
        identities.allocate(&set(&format!("k8s:app=p{n}")), "endpoint/1").unwrap();
    }
    let error = identities.allocate(&set("k8s:app=more"), "endpoint/2").unwrap_err();
    assert!(matches!(error, Error::Exhausted { used: 500, waiting: 0, .. }), "{error}");
    let id = identities.allocate(&set("k8s:app=p77"), "endpoint/1").unwrap();
    identities.release(id, "endpoint/1");
    let error = identities.allocate(&set("k8s:app=more"), "endpoint/2").unwrap_err();
    let expected =
        "no identity left in 256-755: 499 are in use, 1 wait until nothing can carry them any more";
    assert!(error.to_string().starts_with(expected), "{error}");
    identities.sweep(Instant::now() + QUARANTINE);
    assert_eq!(identities.allocate(&set("k8s:app=more"), "endpoint/2").unwrap(), id);
    assert_eq!(table.len(&table.snapshot()), 500);
}

/// All ids of a node can be allocated, the last as quickly as the first.
#[test]
fn every_id_is_allocated_once() {
    let (identities, _, table) = testing::identities();
    let range = Range::of_cluster(0, 255);
    let begin = Instant::now();
    let mut numbers: Vec<u32> = (0..range.len())
        .map(|n| identities.allocate(&set(&format!("k8s:app=p{n}")), "endpoint/1").unwrap())
        .collect();
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(120), "{took:?} is no longer linear");
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(range.first..=range.last));
    assert!(identities.allocate(&set("k8s:app=more"), "endpoint/1").is_err());
    assert_eq!(table.len(&table.snapshot()), 65_280 + 10);
}

#[test]
fn numbers_outlive_the_agent_and_a_lost_file() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c", "d"];
    let allocate = |identities: &Identities| -> Vec<u32> {
        names
            .iter()
            .map(|n| identities.allocate(&set(&format!("k8s:app={n}")), "endpoint/1").unwrap())
            .collect()
    };
    let (identities, prefixes, _) = testing::of(&Db::new(), Some(folder.path()));
    let before = allocate(&identities);
    let networks = ["192.0.2.0/24", "fd00::/8", "0.0.0.0/0"].map(|text| text.parse().unwrap());
    let numbers = prefixes.allocate(&networks).unwrap();
    assert_eq!(numbers.values().copied().collect::<Vec<_>>(), [9, 16_777_217, 16_777_218]);

    let (identities, prefixes, _) = testing::of(&Db::new(), Some(folder.path()));
    assert_eq!(prefixes.allocate(&networks[1..]).unwrap()[&networks[1]], 16_777_218, "whatever the order");
    assert_eq!(prefixes.allocate(&networks).unwrap(), numbers);
    assert_eq!(allocate(&identities), before);
    let next = prefixes.allocate(&["198.51.100.0/24".parse().unwrap()]).unwrap();
    assert_eq!(next.into_values().next(), Some(16_777_219));

    std::fs::remove_file(folder.path().join(FILE)).unwrap();
    let (identities, ..) = testing::of(&Db::new(), Some(folder.path()));
    assert_eq!(allocate(&identities), before, "labels determine where a search begins");
}

#[test]
fn a_number_that_cannot_be_kept_is_not_given_out() {
    let folder = tempfile::tempdir().unwrap();
    let (identities, _, table) = testing::of(&Db::new(), Some(folder.path()));
    // A folder in place of the next file makes the write fail as on a full disk.
    let next = folder.path().join("identities.json.next");
    std::fs::create_dir(&next).unwrap();
    let before = table.len(&table.snapshot());
    let error = identities.allocate(&set("k8s:app=web"), "endpoint/1").unwrap_err();
    assert!(error.to_string().contains("identities.json.next") && error.is_retryable(), "{error}");
    assert_eq!(table.len(&table.snapshot()), before);
    // Packets carry the identity of a record already.
    assert_eq!(identities.reserve(300, &set("k8s:app=db"), "endpoint/2").unwrap(), 300);
    std::fs::remove_dir(&next).unwrap();
    identities.allocate(&set("k8s:app=web"), "endpoint/1").unwrap();
    let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
    assert!(text.contains("web") && text.contains("db"), "{text}");
}

/// A rule that denies must not wait for a disk.
#[test]
fn prefixes_get_identities_without_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (_, prefixes, _) = testing::of(&Db::new(), Some(folder.path()));
    let next = folder.path().join("local_allocator_state.json.next");
    std::fs::create_dir(&next).unwrap();
    let [a, b] = ["192.0.2.0/24", "198.51.100.0/24"].map(|text| text.parse().unwrap());
    let first = prefixes.allocate(&[a]).unwrap();
    std::fs::remove_dir(&next).unwrap();
    let second = prefixes.allocate(&[a, b]).unwrap();
    assert_eq!(second[&a], first[&a]);
    let (_, prefixes, _) = testing::of(&Db::new(), Some(folder.path()));
    assert_eq!(prefixes.allocate(&[b, a]).unwrap(), second, "nothing was lost meanwhile");
}

#[test]
fn a_file_with_two_numbers_for_one_label_set_is_healed() {
    let folder = tempfile::tempdir().unwrap();
    let (identities, ..) = testing::of(&Db::new(), Some(folder.path()));
    let web = identities.allocate(&set("k8s:app=web"), "endpoint/1").unwrap();
    let path = folder.path().join(FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    let entry = &text[text.find('[').unwrap() + 1..text.rfind(']').unwrap()];
    let other = entry.replace(&format!("\"id\":{web},"), "\"id\":300,");
    std::fs::write(&path, text.replace(entry, &format!("{entry},{other}"))).unwrap();
    let (identities, _, table) = testing::of(&Db::new(), Some(folder.path()));
    assert_eq!(table.list(&table.snapshot(), Identity::by_labels(&array("k8s:app=web"))).count(), 1);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "the file as well");
    // Of two records the smaller id wins once both have reserved theirs.
    identities.reserve(web.max(301), &set("k8s:app=web"), "endpoint/1").unwrap();
    identities.reserve(300, &set("k8s:app=web"), "endpoint/2").unwrap();
    for user in ["endpoint/1", "endpoint/2"] {
        assert_eq!(identities.allocate(&set("k8s:app=web"), user).unwrap(), 300);
    }
}

#[test]
fn the_file_of_a_newer_agent_ends_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    std::fs::write(&path, "{\"version\":9,\"other\":1}").unwrap();
    let table = Db::new().table::<Identity>().unwrap();
    let identities = Identities::new(table, Range::of_cluster(0, 255), Some(path.clone()));
    let error = identities.restore().unwrap_err().to_string();
    assert!(
        error.contains("has version 9, this agent knows version 1: start an agent that knows it"),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"version\":9,\"other\":1}");
}

#[test]
fn records_win_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (identities, ..) = testing::of(&Db::new(), Some(folder.path()));
    let web = identities.allocate(&set("k8s:app=web"), "endpoint/1").unwrap();
    let db = identities.allocate(&set("k8s:app=db"), "endpoint/2").unwrap();

    let (identities, _, table) = testing::of(&Db::new(), Some(folder.path()));
    let labels = |id| table.get(&table.snapshot(), Identity::by_id(id)).map(|row| row.labels.clone());
    // A record reserves for db the id that the file has for web.
    assert_eq!(identities.reserve(web, &set("k8s:app=db"), "endpoint/2").unwrap(), web);
    assert_eq!(labels(web), Some(array("k8s:app=db")));
    assert_eq!(identities.allocate(&set("k8s:app=db"), "endpoint/9").unwrap(), web, "not the file's");
    // A second record with the same id gets another one.
    let other = identities.reserve(web, &set("k8s:app=web"), "endpoint/1").unwrap();
    assert!(other != web && other != db);
    // An id that is not in the file.
    assert_eq!(identities.reserve(4711, &set("k8s:app=new"), "endpoint/3").unwrap(), 4711);
    // Reserved identities keep their ids.
    assert_eq!(identities.reserve(5, &set("reserved:init"), "endpoint/4").unwrap(), 5);
    assert_ne!(identities.reserve(5, &set("k8s:app=five"), "endpoint/5").unwrap(), 5);
    // Ids of another cluster, or of prefixes, are not allocated to workloads here.
    assert_ne!(identities.reserve(70_000, &set("k8s:app=far"), "endpoint/6").unwrap(), 70_000);

    let (_, _, table) = testing::of(&Db::new(), Some(folder.path()));
    let labels = |id| table.get(&table.snapshot(), Identity::by_id(id)).map(|row| row.labels.clone());
    assert_eq!(labels(4711), Some(array("k8s:app=new")), "the file has learned from the records");
    assert_eq!(labels(web), Some(array("k8s:app=db")));
}

#[test]
fn unreadable_files_are_quarantined_and_records_still_count() {
    let folder = tempfile::tempdir().unwrap();
    for name in [FILE, CHECKPOINT] {
        std::fs::write(folder.path().join(name), "{\"version\":1,\"identities\":[{\"id\"").unwrap();
    }
    let (identities, prefixes, _) = testing::of(&Db::new(), Some(folder.path()));
    assert!(folder.path().join("identities.json.unreadable").exists());
    assert!(folder.path().join("local_allocator_state.json.unreadable").exists());
    assert_eq!(identities.reserve(300, &set("k8s:app=web"), "endpoint/1").unwrap(), 300);
    let network = "192.0.2.0/24".parse().unwrap();
    prefixes.restored(&[(network, 16_777_300)]);
    assert_eq!(prefixes.allocate(&[network]).unwrap()[&network], 16_777_300);
}

#[test]
fn the_kernel_wins_over_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, c] = ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"].map(|text| text.parse().unwrap());
    let (_, prefixes, _) = testing::of(&Db::new(), Some(folder.path()));
    let before = prefixes.allocate(&[a, b]).unwrap();
    let (_, prefixes, table) = testing::of(&Db::new(), Some(folder.path()));
    prefixes.restored(&[(b, before[&a]), (c, 16_777_400), ("10.0.0.1/32".parse().unwrap(), 300)]);
    let now = prefixes.allocate(&[a, b, c]).unwrap();
    assert_eq!((now[&b], now[&c], now[&a]), (before[&a], 16_777_400, 16_777_401));
    prefixes.restored(&[(c, 16_777_400)]);
    assert_eq!(table.list(&table.snapshot(), Identity::by_labels(&prefixes.labels(c))).count(), 1);
}

#[test]
fn prefixes_go_when_nobody_needs_them() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["192.0.2.0/24", "198.51.100.0/24"].map(|text| text.parse().unwrap());
    let (_, prefixes, _) = testing::of(&Db::new(), Some(folder.path()));
    let before = prefixes.allocate(&[a, b]).unwrap();
    let (_, prefixes, _) = testing::of(&Db::new(), Some(folder.path()));
    assert_eq!(prefixes.allocate(&[a]).unwrap()[&a], before[&a]);
    assert_eq!(prefixes.release_restored(), 1);
    assert_ne!(prefixes.allocate(&[b]).unwrap()[&b], before[&b], "used again last of all");
    prefixes.release(&[a, b]);
    prefixes.release(&[a, b]);
    assert!(!folder.path().join(CHECKPOINT).exists());
}

#[test]
fn names_of_ports_are_those_of_all_users() {
    let (identities, _, table) = testing::identities();
    let ports_of =
        |ports: &[(&str, u16)]| -> NamedPorts { ports.iter().map(|&(name, port)| (name, 6, port)).collect() };
    let web = identities.allocate(&set("k8s:app=web"), "endpoint/1").unwrap();
    identities.allocate(&set("k8s:app=web"), "endpoint/2").unwrap();
    identities.set_named_ports(web, "endpoint/1", &ports_of(&[("http", 80)]));
    identities.set_named_ports(web, "endpoint/2", &ports_of(&[("http", 8080), ("dns", 53)]));
    identities.set_named_ports(web, "endpoint/3", &ports_of(&[("no", 1)]));
    let ports = || table.get(&table.snapshot(), Identity::by_id(web)).unwrap().named_ports();
    assert_eq!(ports(), ports_of(&[("dns", 53), ("http", 80), ("http", 8080)]));
    identities.release(web, "endpoint/2");
    assert_eq!(ports(), ports_of(&[("http", 80)]));
    let revision = table.revision(&table.snapshot());
    identities.set_named_ports(web, "endpoint/1", &ports_of(&[("http", 80)]));
    assert_eq!(table.revision(&table.snapshot()), revision, "nothing new, no new row");
}

/// The REST responses, with Cilium's texts.
#[tokio::test]
async fn identities_are_found_by_id_and_by_labels() {
    use api::{Operation, Request, Response};
    let (identities, _, table) = testing::identities();
    let web = identities.allocate(&set("k8s:app=web"), "endpoint/1").unwrap();
    async fn text(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        (status, String::from_utf8(response.body().await.to_vec()).unwrap())
    }
    let by_id =
        |id: &str| text(crate::rest::by_id(&table, &Request::new(Operation::GetIdentityID, &[("id", id)])));
    let asked = |body: &str| {
        let mut request = Request::new(Operation::GetIdentity, &[]);
        request.body = bytes::Bytes::from(body.to_owned());
        text(crate::rest::list(&table, &request))
    };
    let host = "{\"id\":1,\"labels\":[\"reserved:host\"]}";
    let own = format!("{{\"id\":{web},\"labels\":[\"k8s:app=web\"]}}");
    assert_eq!(by_id("1").await, (200, format!("{host}\n")));
    assert_eq!(by_id(&web.to_string()).await, (200, format!("{own}\n")));
    assert_eq!(by_id("0").await, (200, "{\"labels\":[\"reserved:unknown\"]}\n".to_owned()));
    assert_eq!(by_id("70000").await, (404, String::new()));
    assert_eq!(by_id("notanumber").await, (400, String::new()));
    for all in ["", "null"] {
        let (status, identities) = asked(all).await;
        assert_eq!(status, 200);
        assert_eq!(serde_json::from_str::<Vec<api_models::Identity>>(&identities).unwrap().len(), 11);
    }
    // A label without a value may end with the equals sign.
    assert_eq!(asked("[\"reserved:host=\"]").await, (200, format!("[{host}]\n")));
    assert_eq!(asked("[\"k8s:app=web\"]").await, (200, format!("[{own}]\n")));
    let (_, server) = asked("[\"reserved:remote-node\",\"reserved:kube-apiserver\"]").await;
    assert!(server.contains("\"id\":7,"), "{server}");
    assert_eq!(asked("[\"reserved:kube-apiserver\"]").await, (404, String::new()));
    assert_eq!(asked("[]").await, (404, String::new()));
    assert_eq!(asked("{").await.0, 400);
}

#[test]
fn metrics_are_the_originals() {
    let db = Db::new();
    let (identities, prefixes, table) = testing::of(&db, None);
    let metrics = metrics::Metrics::default();
    metrics.register_collector(crate::metrics::Kinds(table));
    identities.allocate(&set("k8s:app=web,reserved:init"), "endpoint/1").unwrap();
    let gone = identities.allocate(&set("k8s:app=gone"), "endpoint/1").unwrap();
    identities.release(gone, "endpoint/1");
    prefixes.allocate(&["192.0.2.0/24".parse().unwrap()]).unwrap();
    let text = metrics.text();
    for line in [
        "cilium_identity{type=\"reserved\"} 10",
        "cilium_identity{type=\"cluster_local\"} 1",
        "cilium_identity{type=\"node_local\"} 1",
        "cilium_identity_label_sources{source=\"reserved\"} 12",
        "cilium_identity_label_sources{source=\"k8s\"} 1",
        "cilium_identity_label_sources{source=\"cidr\"} 1",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
}

#[test]
fn the_range_of_workloads_is_sampled_when_all_sources_are_complete() {
    let (identities, prefixes, table) = testing::identities();
    let initializer = identities.register("state-files");
    prefixes.allocate(&["192.0.2.0/24".parse().unwrap()]).unwrap();
    let gone = identities.allocate(&set("k8s:app=gone"), "endpoint/1").unwrap();
    identities.allocate(&set("k8s:app=web"), "endpoint/1").unwrap();
    assert_eq!(identities.used(), None, "the rows of a start are no growth");
    identities.complete(initializer);
    identities.release(gone, "endpoint/1");
    // Neither prefixes nor reserved identities; those in quarantine are not free.
    assert_eq!((identities.used(), table.len(&table.snapshot())), (Some(2), 13));

    let metrics = metrics::Metrics::default();
    let forecast = tokio::sync::watch::Sender::new(crate::forecast::Forecast::new(identities.range));
    metrics.register_collector(crate::metrics::Exhaustion(forecast.subscribe()));
    let value = |name: &str| {
        let text = metrics.text();
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().parse::<f64>().unwrap()))
    };
    assert_eq!(value("cilium_identity_range_usage "), None);
    let now = Instant::now();
    forecast.send_modify(|forecast| forecast.sample(now, 6_528));
    assert_eq!(value("cilium_identity_range_usage "), Some(0.1));
    assert_eq!(value("cilium_identity_exhaustion_seconds "), None);
    forecast.send_modify(|forecast| forecast.sample(now + Duration::from_secs(600), 13_056));
    assert_eq!(value("cilium_identity_exhaustion_seconds "), Some(4800.0));
}
