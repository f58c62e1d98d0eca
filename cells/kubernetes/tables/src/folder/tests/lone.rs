//! A folder without its job: scans without inotify, and files that do not fit into memory.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use statedb::{Db, RwTable};
use tempfile::TempDir;

use super::{faults, pod};
use crate::folder::{Folder, Keep, Manifests, Memory, Report, SourceMetrics};
use crate::{InMemorySource, SourceFile};
use k8s_types::{Key, Kind};

/// A folder without its job, scanned by the test.
struct Lone {
    root: TempDir,
    shelf: InMemorySource,
    files: Arc<RwTable<SourceFile>>,
    folder: Folder,
    hive: TestHive,
}

impl Lone {
    async fn new(limit: memory_limit::MemoryLimit) -> Lone {
        let root = tempfile::tempdir().unwrap();
        let files = Arc::new(Db::new().table::<SourceFile>().unwrap());
        let (give, take) = std::sync::mpsc::channel();
        let lends = invoke(move |health: Health| drop(give.send(health)));
        let mut hive = TestHive::new(module("k8s", "Lends its health", [lends]));
        hive.start().await;
        let (health, metrics) = (take.recv().unwrap(), SourceMetrics::default());
        let report = Report::new("s", "p", Kind::ALL, files.clone(), health, metrics);
        let (path, shelf) = (root.path().to_owned(), InMemorySource::new("s", Kind::ALL));
        let (memory, keep) = (Memory::default(), Keep::default());
        let manifests = Manifests::new("s", Kind::ALL, "n1");
        let folder = Folder::new(path, manifests, shelf.clone(), report, memory, keep, Arc::new(limit));
        Lone { root, shelf, files, folder, hive }
    }

    /// Scans as without inotify.
    fn scan(&mut self) {
        self.folder.scan_unwatched(&std::io::Error::from_raw_os_error(libc::EMFILE)).unwrap();
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.root.path().join(file), text).unwrap();
    }

    fn count(&self) -> usize {
        self.shelf.keys(Kind::Pod).len()
    }

    fn faults(&self) -> String {
        faults(&self.files).join("; ")
    }
}

#[tokio::test]
async fn new_files_wait_for_memory() {
    let group = tempfile::tempdir().unwrap();
    let used = |bytes: u64| fs::write(group.path().join("memory.current"), bytes.to_string()).unwrap();
    fs::write(group.path().join("memory.max"), "67108864").unwrap();
    fs::write(group.path().join("memory.stat"), "inactive_file 0\n").unwrap();
    used(66 << 20);
    let mut lone = Lone::new(memory_limit::MemoryLimit::of_group(group.path()).unwrap()).await;
    // The first scan reads all files regardless of the limit.
    lone.write("a.yaml", &pod("a", "1"));
    lone.scan();
    assert_eq!(lone.count(), 1);
    lone.write("b.yaml", &pod("b", "1"));
    lone.scan();
    assert_eq!(lone.count(), 1);
    let reported = lone.faults();
    assert!(reported.contains("b.yaml: is not taken now: 66 of 64 MiB of memory"), "{reported}");
    assert!(lone.folder.next_deadline().is_some());
    // A file that has not grown is read in spite of the limit.
    lone.write("a.yaml", &pod("c", "1"));
    lone.scan();
    assert_eq!(lone.count(), 1);
    assert_eq!(lone.shelf.keys(Kind::Pod), [Key::new("default", "c")]);
    used(20 << 20);
    lone.scan();
    assert_eq!(lone.count(), 2);
    // A file beyond 1/64 of the limit is not read.
    lone.write("large.yaml", &pod("large", "1").repeat(30_000));
    lone.scan();
    let reported = lone.faults();
    assert!(reported.contains("large.yaml: has more than 1 MiB"), "{reported}");
    lone.hive.stop().await;
}

#[tokio::test]
async fn a_folder_without_watches_is_scanned() {
    let mut lone = Lone::new(memory_limit::MemoryLimit::none()).await;
    lone.write("a.yaml", &pod("a", "1"));
    lone.scan();
    assert_eq!((lone.count(), lone.shelf.is_complete()), (1, true));
    let reported = lone.hive.health("k8s");
    assert!(
        reported.error.contains("changes are noticed after a second only: Too many open files"),
        "{reported:?}"
    );
    lone.write("b.yaml", &pod("b", "1"));
    lone.scan();
    assert_eq!(lone.count(), 2);
    fs::remove_file(lone.root.path().join("a.yaml")).unwrap();
    lone.scan();
    std::thread::sleep(Duration::from_millis(150));
    lone.scan();
    assert_eq!(lone.count(), 1);
    lone.hive.stop().await;
}
