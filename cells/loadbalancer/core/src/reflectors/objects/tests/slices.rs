//! Slices that change one by one.

use super::*;

/// Slices of two services that share addresses, one or more of which change at a time: the tables equal those of a
/// reflector that gets the same objects at once.
#[test]
fn slices_that_change_one_by_one_equal_slices_at_once() {
    for round in 0..200 {
        let mut cluster = Cluster::new(&[]);
        let mut objects: BTreeMap<String, Value> = BTreeMap::new();
        for _ in 0..12 {
            for _ in 0..rand::random_range(1..3) {
                let name = format!("web-{}", rand::random_range(0..4));
                let service = if rand::random_bool(0.8) { "web" } else { "other" };
                let ips: Vec<String> = (0..rand::random_range(0..4))
                    .map(|_| format!("10.0.0.{}", rand::random_range(1..12)))
                    .collect();
                let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
                if rand::random_bool(0.1) {
                    cluster.no_slice(&name);
                    objects.remove(&name);
                    continue;
                }
                let mut object = slice(&name, service, &ips);
                for endpoint in object["endpoints"].as_array_mut().unwrap() {
                    endpoint["conditions"] = json!({"ready": rand::random_bool(0.7)});
                }
                cluster.slice(object.clone());
                objects.insert(name, object);
            }
            cluster.round();
        }
        let mut fresh = Cluster::new(&[]);
        objects.values().for_each(|object| _ = fresh.slice(object.clone()));
        fresh.round();
        let states = |cluster: &Cluster| {
            let table = cluster.writer.backends();
            let snapshot = table.snapshot();
            let rows = table.all(&snapshot);
            rows.map(|b| format!("{} {} {}", b.service_name, b.address, b.state.name())).collect::<Vec<_>>()
        };
        assert_eq!(states(&cluster), states(&fresh), "round {round}: {objects:#?}");
    }
}
