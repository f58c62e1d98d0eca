//! The tutorial in statedb's README: its program is the example, and its commands print the output of the page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the code blocks of a page in a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    page.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../statedb/README.md")).unwrap()
}

#[test]
fn the_program_of_the_page_is_the_example() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/files.rs");
    let written: Vec<String> = blocks(&page(), "rust");
    assert_eq!(
        written.join("\n"),
        fs::read_to_string(example).unwrap(),
        "{}",
        "the page and examples/files.rs differ"
    );
}

#[test]
fn the_commands_of_the_page_print_its_output() {
    // The test binary is in `deps`, beside `examples`.
    let program: PathBuf =
        std::env::current_exe().unwrap().parent().and_then(Path::parent).unwrap().join("examples/files");
    let remedy =
        "`cargo test -p apiary-reconciler` builds it, or `cargo build -p apiary-reconciler --example files`";
    assert!(program.exists(), "no {}: {remedy}", program.display());
    let folder = tempfile::tempdir().unwrap();
    let mut run = 0;
    for block in blocks(&page(), "console") {
        for step in block.split("$ ").skip(1) {
            let (command, expected) = step.split_once('\n').unwrap();
            let real = command.replace("cargo run -q --", &program.display().to_string());
            let output = Command::new("sh").args(["-c", &real]).current_dir(&folder).output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert_eq!(printed, expected, "{command}: {}", String::from_utf8_lossy(&output.stderr));
            run += 1;
        }
    }
    assert_eq!(run, 7);
}
