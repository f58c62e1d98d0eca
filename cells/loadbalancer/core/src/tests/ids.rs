//! Ids across restarts: none is assigned again while connections may still refer to it.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::reconciler::id_file::{FILE, IdFile};

/// Returns a balancer that has restored the maps and continues with the ids of the file in a folder.
fn started(maps: &Arc<FakeMaps>, folder: &Path) -> Balancer {
    let file = IdFile::new(folder.join(FILE));
    file.load().unwrap();
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    balancer.resume_ids(Arc::new(file));
    balancer
}

/// Returns frontends of services `first..=last`, each with a backend of its own.
fn services(numbers: std::ops::RangeInclusive<u8>) -> Vec<Desired> {
    let writer = writer();
    let mut text = "services:\n".to_owned();
    for n in numbers.clone() {
        text += &format!(
            "- metadata: {{name: s{n}}}\n  spec: {{clusterIP: 10.96.0.{n}, ports: [{{port: 80}}]}}\n"
        );
    }
    text += "endpoints:\n";
    for n in numbers {
        text += &format!(
            "- metadata: {{name: s{n}, labels: {{kubernetes.io/service-name: s{n}}}}}\n  addressType: IPv4\n  \
             ports: [{{port: 8080}}]\n  endpoints: [{{addresses: [10.0.0.{n}]}}]\n"
        );
    }
    assert_eq!(writer.replace(Source::Api, state(&text)), []);
    desired(&writer)
}

/// Upserts frontends; returns the ids of frontends and of backends.
fn brought_ids(balancer: &mut Balancer, desired: &[Desired]) -> Vec<(u16, u32)> {
    let ids: Vec<u16> = balancer.update(desired).into_iter().map(Result::unwrap).collect();
    let backend = |desired: &Desired| balancer.mirror.store.backends.id(&desired.slots[0].0).unwrap();
    ids.into_iter().zip(desired).map(|(id, desired)| (id, backend(desired))).collect()
}

fn removed(balancer: &mut Balancer, desired: &[Desired]) {
    let addresses: Vec<LbAddress> = desired.iter().map(|desired| desired.address).collect();
    for result in balancer.delete(&addresses) {
        result.unwrap();
    }
}

#[test]
fn ids_released_before_a_crash_are_not_reassigned() {
    let (maps, folder) = (Arc::new(FakeMaps::default()), tempfile::tempdir().unwrap());
    let (mut frontends, mut backends) = (BTreeSet::new(), BTreeSet::new());
    for run in 0..5 {
        let mut balancer = started(&maps, folder.path());
        let services = services(run * 20 + 1..=run * 20 + 20);
        for (frontend, backend) in brought_ids(&mut balancer, &services) {
            assert!(
                frontends.insert(frontend) && backends.insert(backend),
                "run {run}: {frontend} {backend}"
            );
        }
        // All but the first are deleted when the agent is killed: the maps do not contain their ids any more.
        removed(&mut balancer, &services[1..]);
    }
    assert_eq!((frontends.len(), backends.len()), (100, 100));
}

#[test]
fn a_stop_leaves_no_gap() {
    let (maps, folder) = (Arc::new(FakeMaps::default()), tempfile::tempdir().unwrap());
    let mut balancer = started(&maps, folder.path());
    let three = services(1..=3);
    assert_eq!(brought_ids(&mut balancer, &three), [(1, 1), (2, 2), (3, 3)]);
    removed(&mut balancer, &three[1..]);
    balancer.release_reserved_ids();
    let mut balancer = started(&maps, folder.path());
    assert_eq!(brought_ids(&mut balancer, &services(4..=4)), [(4, 4)]);
    assert_eq!(brought_ids(&mut balancer, &three[..1]), [(1, 1)]);
}

#[test]
fn without_its_file_a_start_continues_far_from_the_ids_in_use() {
    for content in [None, Some("{\"version\":1,\"frontends\":{\"nex"), Some("")] {
        let (maps, folder) = (Arc::new(FakeMaps::default()), tempfile::tempdir().unwrap());
        let mut balancer = started(&maps, folder.path());
        let three = services(1..=3);
        brought_ids(&mut balancer, &three);
        removed(&mut balancer, &three[1..]);
        let path = folder.path().join(FILE);
        match content {
            None => std::fs::remove_file(&path).unwrap(),
            Some(content) => std::fs::write(&path, content).unwrap(),
        }
        let mut balancer = started(&maps, folder.path());
        let [(frontend, backend)] = brought_ids(&mut balancer, &services(4..=4))[..] else { panic!() };
        assert_eq!((frontend, backend), (32_769, 2_147_483_649), "{content:?}");
        assert_eq!(path.with_extension("json.unreadable").exists(), content.is_some());
        assert!(path.exists(), "written again before the ids were in use");
        assert_eq!(brought_ids(&mut balancer, &three[..1]), [(1, 1)], "those in use stay");
    }
}

#[test]
fn a_file_that_cannot_be_written_stops_no_service() {
    let maps = Arc::new(FakeMaps::default());
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("no-folder");
    std::fs::write(&place, "").unwrap();
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    balancer.resume_ids(Arc::new(IdFile::new(place.join(FILE))));
    assert_eq!(brought_ids(&mut balancer, &services(1..=2)), [(1, 1), (2, 2)]);
}
