//! Scripts that were recorded on the original, of every family there is, and the program that runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use integration_tests::scripts::{FAMILIES, run};

/// The scripts lie beside the checkout, in `shared/scripts` of some parent folder.
fn folder() -> Option<PathBuf> {
    let parents = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    parents.map(|parent| parent.join("shared/scripts")).find(|folder| folder.is_dir())
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_scripts_of_all_families_pass() {
    let Some(folder) = folder() else { test_kit::skip!("needs the recorded scripts in shared/scripts") };
    let (mut passed, mut failed) = (0, vec![]);
    for family in FAMILIES {
        for entry in std::fs::read_dir(folder.join(family.name)).unwrap() {
            let path = entry.unwrap().path();
            let ran = run(family, &path).await;
            match ran.result {
                Ok(()) => passed += 1,
                Err(error) => failed.push(format!("{}: {error}\n{}", path.display(), ran.log)),
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(passed >= 5, "{passed} scripts");
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
