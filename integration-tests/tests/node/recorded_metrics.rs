//! The series that a Cilium agent exports, as recorded from a run, compared with those of a whole agent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use integration_tests::Node;
use test_kit::{require_root, try_wait_until};

/// A line a family: name, type, labels, and if it is missing the feature that it waits for. `(in use)` instead: it
/// appears with its first event, or with its option, which this test does not set.
const RECORDED: &str = include_str!("recorded_metrics.tsv");

/// A family as it is exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
}

/// Returns the families of a text without the agent's prefix.
fn families(lines: &[String]) -> BTreeMap<String, Family> {
    let mut all = BTreeMap::<String, Family>::new();
    for line in lines {
        if let Some(rest) = line.strip_prefix("# TYPE cilium_") {
            let (name, kind) = rest.split_once(' ').unwrap();
            all.entry(name.to_owned()).or_default().kind = kind.to_owned();
            continue;
        }
        let Some(sample) = line.strip_prefix("cilium_") else { continue };
        let (name, labels) = match sample.split_once('{') {
            Some((name, rest)) => (name, rest.rsplit_once('}').unwrap().0),
            None => (sample.split(' ').next().unwrap(), ""),
        };
        let parts = ["_bucket", "_sum", "_count"].map(|suffix| name.strip_suffix(suffix));
        let histogram = parts.into_iter().flatten().find(|name| all.contains_key(*name)).map(str::to_owned);
        let family = all.entry(histogram.unwrap_or_else(|| name.to_owned())).or_default();
        // Values of labels may contain anything but an unescaped quotation mark.
        let keys = labels.split("=\"").filter_map(|part| part.rsplit([',', '"']).next());
        let count = labels.matches("=\"").count();
        family.labels.extend(keys.take(count).filter(|key| *key != "le").map(str::to_owned));
    }
    all
}

#[test]
fn recorded_series_are_exported_or_wait_for_a_feature() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("prometheus-serve-addr".to_owned(), "127.0.0.1:9962".to_owned());
    node.start();
    node.add_pod("a");
    let differences = || {
        let exported = families(&node.metrics());
        let mut differences = Vec::new();
        for line in RECORDED.lines() {
            let [name, kind, labels, waits] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            let labels = labels.split(',').filter(|label| !label.is_empty()).map(str::to_owned).collect();
            let recorded = Family { kind: kind.to_owned(), labels };
            match (exported.get(name), waits) {
                (Some(family), "" | "(in use)") if *family == recorded => {}
                // Declared, without a value yet.
                (Some(Family { kind, labels }), "(in use)")
                    if *kind == recorded.kind && labels.is_empty() => {}
                (None, feature) if !feature.is_empty() => {}
                (Some(_), feature) if !feature.is_empty() && feature != "(in use)" => {
                    differences.push(format!("{name} is exported, although it waits for {feature}"));
                }
                (family, _) => differences.push(format!("{name} is {family:?}, not {recorded:?}")),
            }
        }
        if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
    };
    // Some appear with the first round of a job.
    if let Err(differences) = try_wait_until(Duration::from_secs(30), differences) {
        panic!("{differences}\n{}", node.log());
    }
}
