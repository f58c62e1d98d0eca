//! Scripts of every family that were recorded on Cilium, and the program that runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use integration_tests::scripts::{FAMILIES, Family, Isolation, Ran, family_of, run};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Maximum number of concurrent scripts, as each has a deadline.
const AT_ONCE: usize = 4;

/// The scripts lie beside the checkout, in `shared/scripts` of some parent folder.
fn folder() -> Option<PathBuf> {
    let parents = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    parents.map(|parent| parent.join("shared/scripts")).find(|folder| folder.is_dir())
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_scripts_of_all_families_pass() {
    let Some(folder) = folder() else { test_kit::skip!("needs the recorded scripts in shared/scripts") };
    assert!(passed(&folder).await >= 17 + 87 + 4 + 9 + 2 + 2 + 6 + 2);
}

/// Those of the load balancer once more without the kernel, on maps that fail now and then.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_scripts_of_the_load_balancer_pass_on_failing_maps() {
    let Some(folder) = folder() else { test_kit::skip!("needs the recorded scripts in shared/scripts") };
    let of = |name: &str| (family_of(&format!("{name}-fake")).unwrap(), folder.join(name));
    let families = [of("loadbalancer"), of("healthserver"), of("redirectpolicy")];
    assert!(passed_of(&families).await >= 87 + 4 + 9);
}

/// Our own scripts for cases without a recorded one; they expect the output of Cilium.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_of_our_own_pass() {
    assert!(passed(&Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")).await >= 1);
}

/// Runs the scripts of all families in a folder. Returns the number of passed ones; none may fail.
async fn passed(folder: &Path) -> usize {
    let families: Vec<_> = FAMILIES.iter().map(|family| (family, folder.join(family.name))).collect();
    passed_of(&families).await
}

async fn passed_of(families: &[(&'static Family, PathBuf)]) -> usize {
    let mut all = JoinSet::new();
    let free = Arc::new(Semaphore::new(AT_ONCE));
    for &(family, ref folder) in families {
        let Ok(files) = std::fs::read_dir(folder) else { continue };
        if family.isolation != Isolation::None && !test_kit::is_root() {
            test_kit::record_skip(module_path!(), &format!("family {}: needs root", family.name));
            continue;
        }
        for file in files {
            let path = file.unwrap().path();
            let free = free.clone();
            all.spawn(async move {
                let _turn = free.acquire().await;
                (run(family, &path).await, path)
            });
        }
    }
    let (mut passed, mut failed) = (0, vec![]);
    for ran in all.join_all().await {
        match ran {
            (Ran { result: Ok(()), .. }, _) => passed += 1,
            (Ran { result: Err(error), log, .. }, path) => {
                failed.push(format!("{}: {error}\n{log}", path.display()))
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    passed
}

fn runner(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_script-runner")).args(words).output().unwrap()
}

#[test]
fn the_runner_tells_what_passed_and_what_failed() {
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().join("contrib/examples/script/testdata");
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good =
        file("good.txtar", "#! --ignored\nexample/hello Ada\nstdout 'Hello, Ada'\nhive start\nhive stop\n");
    let bad = file("bad.txtar", "example/counts\n\nstdout nothing\n");
    let verbose = runner(&["-v", &good]);
    assert!(String::from_utf8_lossy(&verbose.stdout).contains("\n    | > example/hello Ada\n"));
    let output = runner(&[&good]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((output.status.code(), text.lines().count()), (Some(0), 1), "{text}");
    assert!(text.starts_with(&format!("ok   {good} ")), "{text}");

    let output = runner(&["--family", "example", &bad, &good]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("FAIL")
            && text.contains("bad.txtar:3: stdout nothing: no match")
            && text.contains("\nok "),
        "{text}"
    );

    assert_eq!(runner(&["--family", "nosuch", &good]).status.code(), Some(77));
    let stray = work.path().join("stray.txtar");
    std::fs::write(&stray, "").unwrap();
    assert_eq!(runner(&[stray.to_str().unwrap()]).status.code(), Some(77));
    assert_eq!(runner(&[]).status.code(), Some(2));
    assert_eq!(runner(&["--nosuch", &good]).status.code(), Some(2));
}
