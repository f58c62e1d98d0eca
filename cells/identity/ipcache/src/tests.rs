//! Sources against a naive model, and the table against a map without a kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use proptest::prelude::*;
use statedb::{Db, RwTable};

use crate::testing::{FakeMap, ipcache};
use crate::writer::retract;
use crate::{Change, Claim, Entry, IpcacheMap, IpcacheWriter, Location, Mapping, Source, restore};

struct Bench {
    table: RwTable<Entry>,
    map: Arc<FakeMap>,
    writer: IpcacheWriter,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[expect(clippy::disallowed_methods, reason = "a test without a hive")]
fn bench(map: FakeMap) -> Bench {
    let table = Db::new().table::<Entry>().unwrap();
    let map = Arc::new(map);
    let (writer, _, reconciler) = ipcache(table.clone(), map.clone());
    let task = tokio::spawn(reconciler.run());
    Bench { table, map, writer, task }
}

fn net(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

#[tokio::test]
async fn the_most_believed_source_counts_and_the_next_follows_it() {
    let Bench { map, writer, .. } = &bench(FakeMap::default());
    let pod = net("10.0.0.7/32");
    writer.upsert(pod, Source::Kubernetes, "pod/a", Mapping::identity(100));
    writer.upsert(pod, Source::Local, "endpoint/1", Mapping::identity(5));
    let revision = writer.upsert(pod, Source::KvStore, "ip/a", Mapping::identity(300));
    writer.applied(revision, &[pod]).await.unwrap();
    assert_eq!(map.identity("10.0.0.7/32"), Some(5));
    for (source, resource, left) in [
        (Source::Local, "endpoint/2", Some(5)),
        (Source::Local, "endpoint/1", Some(300)),
        (Source::KvStore, "ip/a", Some(100)),
        (Source::Kubernetes, "pod/a", None),
    ] {
        let revision = writer.delete(pod, source, resource);
        writer.applied(revision, &[pod]).await.unwrap();
        assert_eq!(map.identity("10.0.0.7/32"), left, "{resource}");
    }
}

#[tokio::test]
async fn an_address_that_moves_between_endpoints_is_the_later_ones() {
    let Bench { map, writer, .. } = &bench(FakeMap::default());
    let pod = net("10.0.0.7/32");
    writer.upsert(pod, Source::Local, "endpoint/1", Mapping::identity(5));
    writer.upsert(pod, Source::Local, "endpoint/2", Mapping::identity(6));
    // The deletion of the first owner comes late, as may happen when addresses are reused.
    let revision = writer.delete(pod, Source::Local, "endpoint/1");
    writer.applied(revision, &[pod]).await.unwrap();
    assert_eq!(map.identity("10.0.0.7/32"), Some(6));
}

#[tokio::test]
async fn a_refused_row_is_named_and_the_others_are_written() {
    let Bench { map, writer, .. } = &bench(FakeMap::default());
    let (good, bad) = (net("10.0.0.7/32"), net("10.0.0.8/32"));
    map.refuse(Some(bad));
    let claim = |mapping| Claim { source: Source::Local, resource: "endpoint/1".into(), mapping };
    let revision = writer.apply([
        Change::Upsert(bad, claim(Mapping::identity(5))),
        Change::Upsert(good, claim(Mapping::identity(5))),
    ]);
    writer.applied(revision, &[good]).await.unwrap();
    let refused = writer.applied(revision, &[good, bad]).await.unwrap_err().to_string();
    assert_eq!(refused, "unable to write 10.0.0.8/32 to the ipcache: no space left on device");
    assert_eq!(map.prefixes(), [good]);
}

#[tokio::test]
async fn rows_of_an_earlier_run_stay_until_every_source_has_spoken() {
    let map = FakeMap::default();
    let (pod, gone) = (net("10.0.0.7/32"), net("10.0.0.8/32"));
    map.leave(pod, 5);
    map.leave(gone, 5);
    let Bench { table, map, writer, .. } = &bench(map);
    let initializer = writer.register("endpoints");
    assert_eq!(restore::fill(table, restore::entries(map.rows().unwrap())), 2);
    let revision = writer.upsert(pod, Source::Local, "endpoint/1", Mapping::identity(5));
    writer.applied(revision, &[pod]).await.unwrap();
    assert_eq!(map.prefixes(), [pod, gone], "nothing is stale yet");
    writer.complete(initializer);
    assert_eq!(retract(table, Source::Restored), 2);
    let revision = table.revision(&table.snapshot());
    writer.applied(revision, &[]).await.unwrap();
    assert_eq!(map.prefixes(), [pod]);
}

#[tokio::test]
async fn a_resource_can_replace_all_it_has_said() {
    let Bench { map, writer, .. } = &bench(FakeMap::default());
    let (a, b, c) = (net("10.0.0.1/32"), net("10.0.0.2/32"), net("10.0.0.3/32"));
    writer.upsert(c, Source::Local, "endpoint/1", Mapping::identity(5));
    let wanted = |prefixes: &[IpNetwork]| prefixes.iter().map(|&p| (p, Mapping::identity(1))).collect();
    writer.replace(Source::Local, "host", wanted(&[a, b]));
    let revision = writer.replace(Source::Local, "host", wanted(&[b]));
    writer.applied(revision, &[]).await.unwrap();
    assert_eq!(map.prefixes(), [b, c]);
}

/// A policy that named a node's pod range got the identity of the world instead of its own.
#[tokio::test]
async fn the_identity_of_a_policy_is_kept_where_its_prefix_is_a_pod_range() {
    let range = net("10.0.2.0/24");
    let tunnel = Some([192, 0, 2, 2].into());
    let pods = Mapping { is_fallback: true, ..Mapping::identity(2) };
    let pods = pods.at(Location { tunnel, ..Location::default() });
    for policy_first in [false, true] {
        let Bench { map, writer, .. } = &bench(FakeMap::default());
        let claims = || {
            writer.upsert(range, Source::CustomResource, "node//n2", pods.clone());
        };
        if !policy_first {
            claims();
        }
        writer.upsert(range, Source::Generated, "policy", Mapping::identity(16_777_217));
        if policy_first {
            claims();
        }
        let applied = async |revision| writer.applied(revision, &[range]).await.unwrap();
        applied(writer.delete(range, Source::Local, "other")).await;
        assert_eq!(map.identity("10.0.2.0/24"), Some(16_777_217), "{policy_first}");
        assert_eq!(map.tunnel("10.0.2.0/24"), tunnel, "{policy_first}");
        applied(writer.delete(range, Source::Generated, "policy")).await;
        assert_eq!((map.identity("10.0.2.0/24"), map.tunnel("10.0.2.0/24")), (Some(2), tunnel));
        // Without fallback the source with the highest priority has all of it, as before.
        applied(writer.upsert(range, Source::Local, "host", Mapping::identity(1))).await;
        assert_eq!((map.identity("10.0.2.0/24"), map.tunnel("10.0.2.0/24")), (Some(1), None));
    }
}

fn change() -> impl Strategy<Value = (bool, u8, u8, u8, u32)> {
    (any::<bool>(), 0..3u8, 0..3u8, 0..2u8, 1..4u32)
}

proptest! {
    /// For any order of events, the table has each resource's latest claim, the highest priority first.
    #[test]
    fn any_order_gives_the_same_as_a_naive_model(changes in prop::collection::vec(change(), 0..60)) {
        let table = Db::new().table::<Entry>().unwrap();
        let (writer, reader, _reconciler) = ipcache(table, Arc::new(FakeMap::default()));
        let sources = [Source::Kubernetes, Source::KvStore, Source::Local];
        let mut model: BTreeMap<(IpNetwork, Source, u8), u32> = BTreeMap::new();
        for (upsert, prefix, source, resource, identity) in changes {
            let prefix = net(&format!("10.0.{prefix}.9/24"));
            let source = sources[usize::from(source)];
            let name = format!("r/{resource}");
            if upsert {
                writer.upsert(prefix, source, &name, Mapping::identity(identity));
                model.insert((net(&format!("{}/24", prefix.network())), source, resource), identity);
            } else {
                writer.delete(prefix, source, &name);
                model.remove(&(net(&format!("{}/24", prefix.network())), source, resource));
            }
        }
        let snapshot = reader.snapshot();
        let mut count = 0;
        for entry in reader.all(&snapshot) {
            count += entry.claims().len();
            prop_assert!(entry.claims().is_sorted_by(|a, b| a.source >= b.source));
            for claim in entry.claims() {
                let resource = claim.resource.trim_start_matches("r/").parse().unwrap();
                let said = model.get(&(entry.prefix, claim.source, resource));
                prop_assert_eq!(said, Some(&claim.mapping.identity));
            }
        }
        prop_assert_eq!(count, model.len());
    }
}
