//! File systems that are full or read-only, in a mount namespace of the test's own.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hive::prelude::*;
use state_file::{Rewrite, StateFile};
use test_kit::{Sandbox, require_root, wait_until};

fn mount(arguments: &[&str], path: &Path) {
    assert!(Command::new("mount").args(arguments).arg(path).status().unwrap().success());
}

/// Fills a file system to the last byte.
fn fill(folder: &Path) {
    use std::io::Write as _;
    let mut file = fs::File::create(folder.join("filler")).unwrap();
    while file.write(&[0; 512]).is_ok() {}
}

struct Number {
    file: StateFile,
    value: AtomicU32,
}

impl Number {
    fn write(&self) -> Result<(), state_file::Error> {
        self.file.write(format!("{:05000}", self.value.load(Ordering::SeqCst)).as_bytes())
    }
}

#[test]
fn writes_to_a_full_disk_are_reported_and_retried() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let small = sandbox.dir().join("small");
    fs::create_dir(&small).unwrap();
    mount(&["-t", "tmpfs", "-o", "size=32k", "small"], &small);
    let number = Arc::new(Number { file: StateFile::new(small.join("number")), value: AtomicU32::new(1) });
    number.write().unwrap();
    fill(&small);

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build().unwrap();
    let written = number.clone();
    let cell = move |jobs: JobGroup, health: Health| {
        let written = written.clone();
        Arc::new(Rewrite::new(&jobs, &health, "number", move || written.write()))
    };
    let rewrite = |_: Arc<Rewrite>| {};
    let cells = module("numbers", "A number in a file", [provide(cell), invoke(rewrite)]);
    let mut hive = runtime.block_on(async {
        let mut hive = TestHive::new([cells]);
        hive.start().await;
        hive
    });
    let row = |hive: &TestHive| hive.health("numbers.number");
    let becomes = |hive: &TestHive, level: Level| {
        wait_until(&format!("{level}"), Duration::from_secs(10), || row(hive).level == level);
    };
    assert_eq!(row(&hive).level, Level::Ok);
    number.value.store(2, Ordering::SeqCst);
    hive.get::<Rewrite>().wake();
    becomes(&hive, Level::Degraded);
    let error = row(&hive).error;
    for part in ["number.next", "No space left on device", "make room on the file system of"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(number.file.read_text().unwrap().unwrap().ends_with("01"), "the old one stays");
    assert!(!small.join("number.next").exists(), "what did not fit takes no room");
    // Later changes are not lost: a retry writes the content of that moment.
    number.value.store(3, Ordering::SeqCst);
    fs::remove_file(small.join("filler")).unwrap();
    becomes(&hive, Level::Ok);
    assert!(number.file.read_text().unwrap().unwrap().ends_with("03"));

    // A pending write is tried once more at the stop.
    mount(&["-o", "remount,ro"], &small);
    number.value.store(4, Ordering::SeqCst);
    hive.get::<Rewrite>().wake();
    becomes(&hive, Level::Degraded);
    let error = row(&hive).error;
    assert!(error.contains("Read-only file system") && error.contains("writable"), "{error}");
    mount(&["-o", "remount,rw"], &small);
    runtime.block_on(hive.stop());
    assert!(number.file.read_text().unwrap().unwrap().ends_with("04"));
}

/// At any amount of free space the new file fits or the old one stays.
#[test]
fn a_write_with_any_free_space_leaves_old_or_new() {
    require_root!();
    let sandbox = Sandbox::new().unwrap();
    let small = sandbox.dir().join("small");
    fs::create_dir(&small).unwrap();
    mount(&["-t", "tmpfs", "-o", "size=64k,nr_inodes=4", "small"], &small);
    let file = StateFile::new(small.join("a")).flushed();
    let (mut whole, mut refused) = (0, 0);
    file.write(b"0").unwrap();
    let mut before = b"0".to_vec();
    for pages in 0..16 {
        let content = vec![b'a' + pages; usize::from(pages) * 4096 + 1];
        match file.write(&content) {
            Ok(()) => (before, whole) = (content, whole + 1),
            Err(_) => refused += 1,
        }
        assert_eq!(file.read().unwrap().unwrap(), before);
        assert_eq!(fs::read_dir(&small).unwrap().count(), 1);
    }
    assert!(whole > 2 && refused > 2, "{whole} {refused}");
    // With no free inode.
    for n in 0..2 {
        fs::write(small.join(format!("taken{n}")), "").unwrap();
    }
    file.write_changed(&before).unwrap();
    let error = file.write_changed(b"x").unwrap_err().to_string();
    assert!(error.contains("cannot create") && error.contains("make room"), "{error}");
    assert_eq!(file.read().unwrap().unwrap(), before);
}
