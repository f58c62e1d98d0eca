//! Files that a previous agent, or Cilium's, has left.

use std::fs;

use endpoints::restore::plan;
use endpoints::{Deletion, Record, StateFolder};
use statedb::Db;

use crate::input::{parts, scratch};

/// `ep_config.json` of one endpoint, a file of the plugin's deletion queue, `identities.json` and
/// `local_allocator_state.json`.
pub(crate) fn run(data: &[u8]) {
    let [record, deletion, identities, prefixes] = parts(data);
    if let Ok(record) = serde_json::from_slice::<Record>(record) {
        let text = serde_json::to_string(&record).unwrap();
        let again: Record = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(again, record);
        let _ = (record.cni_attachment_id(), record.pod_name(), record.has_interface(), record.is_health());
    }
    folder(record);
    let _ = Deletion::parse(&String::from_utf8_lossy(deletion));
    numbers(identities, prefixes);
}

/// A folder with this record: the restore plan uses the directory at most once, and planning writes nothing.
fn folder(record: &[u8]) {
    let scratch = scratch();
    let folder = scratch.path();
    let directory = folder.join("7");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("ep_config.json"), record).unwrap();
    let found = StateFolder::new(folder).scan().unwrap();
    assert_eq!(found.len(), 1);
    let plan = plan::plan(found, |_| Some(7));
    assert!(plan.restore.len() + plan.discard.len() <= 1);
    assert_eq!(fs::read(directory.join("ep_config.json")).unwrap(), record);
}

/// A file of ids that was parsed is parsed to the same ids by the next start.
fn numbers(identities: &[u8], prefixes: &[u8]) {
    if identities.is_empty() && prefixes.is_empty() {
        return;
    }
    let scratch = scratch();
    let folder = scratch.path();
    for (name, content) in [("identities.json", identities), ("local_allocator_state.json", prefixes)] {
        if !content.is_empty() {
            fs::write(folder.join(name), content).unwrap();
        }
    }
    let known = || {
        let (identities, prefixes, table) = identity::testing::try_of(&Db::new(), Some(folder)).ok()?;
        let snapshot = table.snapshot();
        let rows: Vec<String> =
            table.all(&snapshot).map(|row| format!("{} {:?}", row.id, row.labels)).collect();
        drop((identities, prefixes));
        Some(rows)
    };
    let first = known();
    if first.is_some() {
        assert_eq!(known(), first);
    }
}
