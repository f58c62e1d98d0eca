//! State files after crashes, behind links and pipes, of older and newer agents.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use state_file::{Error, MAX_CORRUPT_COPIES, Records, Schema, StateFile, open_for_lock, quarantine};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Numbers {
    numbers: Vec<u32>,
}

impl Schema for Numbers {
    const VERSION: u32 = 2;
    const HOLDS: &'static str = "numbers in use";

    /// Version 1 had one number in an object; version 0 was the number alone.
    fn migrate(version: u32, content: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct One {
            number: u32,
        }
        let number = match version {
            0 => serde_json::from_slice(content).map_err(|error| error.to_string())?,
            _ => serde_json::from_slice::<One>(content).map_err(|error| error.to_string())?.number,
        };
        Ok(Numbers { numbers: vec![number] })
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_whole_with_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    let file = StateFile::new(folder.path().join("state/deep/a")).folder_mode(0o755);
    assert_eq!(file.read().unwrap(), None);
    file.write(b"one").unwrap();
    file.clone().flushed().write(b"two").unwrap();
    assert_eq!(file.read_text().unwrap().as_deref(), Some("two"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(file.path()), 0o600);
    assert_eq!(mode(file.path().parent().unwrap()), 0o755);
    StateFile::new(file.path()).mode(0o644).write(b"three").unwrap();
    assert_eq!(mode(file.path()), 0o644);
    assert_eq!(names(file.path().parent().unwrap()), ["a"]);
    file.clone().flushed().remove().unwrap();
    file.remove().unwrap();
    assert_eq!(names(file.path().parent().unwrap()), [""; 0]);
}

/// In each state that a crash between two steps can leave, the file reads as old or new, and the next write succeeds.
#[test]
fn a_crash_between_two_steps_leaves_the_old_or_the_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = StateFile::new(folder.path().join("a"));
    let next = folder.path().join("a.next");
    file.write(b"old").unwrap();
    // Created, half written, written; each read-only, as a leftover of another process may be.
    for left in ["", "ne", "new"] {
        fs::write(&next, left).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(file.read().unwrap().unwrap(), b"old");
        file.write(b"newer").unwrap();
        assert_eq!(file.read().unwrap().unwrap(), b"newer");
        assert_eq!(names(folder.path()), ["a"]);
        file.write(b"old").unwrap();
    }
    fs::write(&next, "ne").unwrap();
    file.remove().unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
}

/// Each intermediate state of `write_keeping`, produced by hand.
#[test]
fn older_versions_are_rotated_and_survive_a_crash() {
    let keeping = |stop: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let older = [path("a-1"), path("a-2")];
        let file = StateFile::new(path("a"));
        for run in ["1", "2", "3"] {
            file.write_keeping(run.as_bytes(), &older).unwrap();
        }
        stop(folder.path());
        assert_eq!(fs::read_to_string(path("a")).unwrap(), "3", "it is there all the time");
        file.write_keeping(b"4", &older).unwrap();
        let read = |name: &str| fs::read_to_string(path(name)).unwrap();
        assert_eq!(names(folder.path()), ["a", "a-1", "a-2"]);
        (read("a"), read("a-1"), read("a-2"))
    };
    let all = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    assert_eq!(keeping(&|_| {}), all("4", "3", "2"));
    let written = |folder: &Path| fs::write(folder.join("a.next"), "4").unwrap();
    assert_eq!(keeping(&written), all("4", "3", "2"));
    let moved = |folder: &Path| {
        written(folder);
        fs::rename(folder.join("a-1"), folder.join("a-2")).unwrap();
    };
    let linked = |folder: &Path| {
        moved(folder);
        fs::hard_link(folder.join("a"), folder.join("a-1")).unwrap();
    };
    assert_eq!(keeping(&linked), all("4", "3", "3"));
    let folder = tempfile::tempdir().unwrap();
    let older = [folder.path().join("b-1"), folder.path().join("b-2")];
    StateFile::new(folder.path().join("b")).write_keeping(b"1", &older).unwrap();
    assert_eq!(names(folder.path()), ["b"]);
}

#[test]
fn links_pipes_and_folders_are_neither_followed_nor_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "precious").unwrap();
    let path = folder.path().join("a");
    let file = StateFile::new(&path);
    let pipe = |path: &Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    type Plant<'a> = Box<dyn Fn(&Path) + 'a>;
    let plants: [(&str, Plant<'_>); 4] = [
        ("it is a link", Box::new(|path| symlink(&secret, path).unwrap())),
        ("it is a link", Box::new(|path| symlink("/nowhere", path).unwrap())),
        ("it is no regular file", Box::new(pipe)),
        ("it is no regular file", Box::new(|path| fs::create_dir(path).unwrap())),
    ];
    let begin = Instant::now();
    for (problem, plant) in &plants {
        plant(&path);
        let error = file.read().unwrap_err();
        assert!(matches!(&error, Error::Damaged { problem: found, .. } if found == problem), "{error}");
        open_for_lock(&path, 0o600).unwrap_err();
        let kept = quarantine(&path).unwrap();
        assert_eq!(file.read().unwrap(), None);
        assert!(kept.symlink_metadata().is_ok());
    }
    // The same under the name of the temporary file: removed, not written through; a folder is an error that names it.
    let next = folder.path().join("a.next");
    for (_, plant) in &plants[..3] {
        plant(&next);
        file.write(b"mine").unwrap();
        assert_eq!(file.read().unwrap().unwrap(), b"mine");
    }
    fs::create_dir(&next).unwrap();
    let error = file.write(b"not mine").unwrap_err();
    assert!(error.to_string().contains("a.next") && error.is_retryable(), "{error}");
    assert_eq!(file.read().unwrap().unwrap(), b"mine");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "precious");
    assert!(begin.elapsed() < Duration::from_secs(10), "reading a pipe blocked");
}

#[test]
fn a_file_beyond_its_limit_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let file = StateFile::new(folder.path().join("a")).limit(4);
    file.write(b"1234").unwrap();
    assert_eq!(file.read().unwrap().unwrap(), b"1234");
    file.write(b"12345").unwrap();
    assert_eq!(
        file.read().unwrap_err().to_string(),
        format!("{} is damaged: it has more than 4 bytes", file.path().display())
    );
    fs::write(file.path(), [0xff, 0xfe]).unwrap();
    assert!(matches!(file.read_text(), Err(Error::Damaged { .. })));
}

#[test]
fn versions_are_migrated_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = StateFile::new(folder.path().join("numbers.json"));
    let load = |text: &str| {
        fs::write(file.path(), text).unwrap();
        file.load::<Numbers>().map(|numbers| numbers.unwrap().numbers)
    };
    assert_eq!(load("{\"version\":2,\"numbers\":[1,2]}").unwrap(), [1, 2]);
    assert_eq!(load("{\"version\":1,\"number\":7}").unwrap(), [7]);
    assert_eq!(load("8").unwrap(), [8], "the form of version 0");
    for newer in ["{\"version\":3}", "{\"numbers\":{\"other\":1},\"version\":4294967298}"] {
        let error = load(newer).unwrap_err();
        assert!(matches!(error, Error::Newer { known: 2, .. }) && !error.is_retryable(), "{error}");
        let text = error.to_string();
        assert!(text.contains("start an agent that knows it") && text.contains("numbers in use"), "{text}");
        assert_eq!(fs::read_to_string(file.path()).unwrap(), newer, "it is not touched");
    }
    for damaged in
        ["", "{", "{\"version\":2,\"numb", "{\"version\":2}", "{\"version\":-1}", "{\"version\":1}", "[]"]
    {
        let error = load(damaged).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{damaged}: {error}");
    }
    file.store(&Numbers { numbers: vec![3] }).unwrap();
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "{\"version\":2,\"numbers\":[3]}");
}

#[test]
fn the_newest_damaged_files_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    for n in 0..MAX_CORRUPT_COPIES + 2 {
        match n % 2 {
            0 => fs::write(&path, n.to_string()).unwrap(),
            _ => {
                fs::create_dir(&path).unwrap();
                fs::write(path.join("inside"), n.to_string()).unwrap();
            }
        }
        assert_eq!(quarantine(&path).unwrap(), folder.path().join("a.unreadable"));
    }
    assert_eq!(names(folder.path()), ["a.unreadable", "a.unreadable-1", "a.unreadable-2"]);
    assert_eq!(fs::read_to_string(folder.path().join("a.unreadable")).unwrap(), "4");
    assert_eq!(fs::read_to_string(folder.path().join("a.unreadable-1/inside")).unwrap(), "3");
    let missing: PathBuf = folder.path().join("missing");
    assert!(quarantine(&missing).unwrap_err().to_string().contains("missing"));
}

fn records(folder: &Path) -> Records<Numbers> {
    Records::new(folder, "")
}

#[test]
fn records_are_kept_by_key() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("records");
    let restored = || {
        let records = records(&root);
        records.restore().unwrap();
        records
    };
    let first = restored();
    assert_eq!(first.unclaimed(), [""; 0]);
    let one = |n| Numbers { numbers: vec![n] };
    let long = "x".repeat(300);
    for (n, key) in ["a.yaml", "../b", "a_yaml", &long].into_iter().enumerate() {
        first.put(key, &one(n as u32));
        assert_eq!(first.get(key).unwrap(), Some(one(n as u32)), "before it is written");
    }
    assert_eq!(restored().unclaimed(), [""; 0]);
    first.write().unwrap();
    assert_eq!(first.unclaimed(), [""; 0], "it is of this run");
    let again = restored();
    assert_eq!(again.unclaimed(), ["../b", "a.yaml", "a_yaml", &long]);
    assert_eq!(again.get("../b").unwrap(), Some(one(1)));
    assert_eq!(names(folder.path()), ["records"]);
    again.remove("../b");
    assert_eq!((again.get("../b").unwrap(), again.claim("../b")), (None, None));
    again.write().unwrap();

    // A temporary file of a crash, a damaged file, a file under the name of another key.
    let file = |part: &str| {
        let name = names(&root).into_iter().find(|name| name.starts_with(part)).unwrap();
        root.join(name)
    };
    fs::write(file("xxx"), "{\"version\":2,").unwrap();
    fs::copy(file("a_yaml"), file("a.yaml")).unwrap();
    fs::write(root.join("b-0.json.next"), "{").unwrap();
    assert_eq!(restored().unclaimed(), ["a_yaml"]);
    let left = names(&root);
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(left.iter().any(|name| name == "record.unreadable-1"), "{left:?}");

    // A record of an older agent, then one of a newer agent.
    let text = fs::read_to_string(file("a_yaml")).unwrap();
    fs::write(file("a_yaml"), "{\"version\":1,\"key\":\"a_yaml\",\"number\":9}").unwrap();
    assert_eq!(restored().get("a_yaml").unwrap(), Some(one(9)));
    fs::write(file("a_yaml"), text.replace("\"version\":2", "\"version\":3")).unwrap();
    assert!(matches!(records(&root).restore(), Err(Error::Newer { found: 3, .. })));
}

#[test]
fn values_of_the_previous_run_are_claimed_once() {
    let folder = tempfile::tempdir().unwrap();
    let one = |n| Numbers { numbers: vec![n] };
    let first = records(folder.path());
    for (n, key) in ["claimed", "put", "removed", "left", "lost"].into_iter().enumerate() {
        first.put(key, &one(n as u32));
    }
    first.write().unwrap();
    let again = records(folder.path());
    again.restore().unwrap();
    assert_eq!((again.claim("claimed"), again.claim("claimed")), (Some(one(0)), None));
    assert_eq!(again.get("claimed").unwrap(), Some(one(0)), "it stays");
    again.put("put", &one(7));
    assert_eq!(again.claim("put"), None, "what this run says counts");
    again.remove("removed");
    assert_eq!(again.unclaimed(), ["left", "lost"]);
    let lost = names(folder.path()).into_iter().find(|name| name.starts_with("lost")).unwrap();
    fs::remove_file(folder.path().join(lost)).unwrap();
    assert_eq!(again.claim("lost"), None);
    assert_eq!(again.unclaimed(), ["left"]);
}

#[test]
fn records_that_cannot_be_written_stay_pending() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("records");
    fs::write(&root, "in the way").unwrap();
    let records = records(&root);
    let one = |n| Numbers { numbers: vec![n] };
    records.put("a", &one(1));
    records.put("b", &one(2));
    let error = records.write().unwrap_err().to_string();
    assert!(error.contains("remove what is in the place of the folder"), "{error}");
    records.put("a", &one(3));
    fs::remove_file(&root).unwrap();
    records.write().unwrap();
    let again = self::records(&root);
    again.restore().unwrap();
    assert_eq!(again.unclaimed(), ["a", "b"]);
    assert_eq!(again.get("a").unwrap(), Some(one(3)));
}

#[test]
fn one_record_that_cannot_be_written_keeps_none_from_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let one = |n| Numbers { numbers: vec![n] };
    let first = records(folder.path());
    first.put("b", &one(1));
    first.write().unwrap();
    // A folder in the place of the file cannot be replaced by one.
    let [file] = <[String; 1]>::try_from(names(folder.path())).unwrap();
    let file = folder.path().join(file);
    fs::remove_file(&file).unwrap();
    fs::create_dir_all(file.join("in the way")).unwrap();
    for (n, key) in ["a", "b", "c"].into_iter().enumerate() {
        first.put(key, &one(n as u32));
    }
    assert!(first.write().unwrap_err().to_string().contains(file.to_str().unwrap()));
    assert_eq!(first.get("b").unwrap(), Some(one(1)), "it waits");
    fs::remove_dir_all(&file).unwrap();
    let again = records(folder.path());
    again.restore().unwrap();
    assert_eq!(again.unclaimed(), ["a", "c"]);
    first.write().unwrap();
    again.restore().unwrap();
    assert_eq!(again.unclaimed(), ["a", "b", "c"]);
}
