//! Scripts of the engine itself that were run on Cilium. They are stored outside of the repository, in `shared/scripts`
//! of a parent folder.

use std::path::{Path, PathBuf};

use crate::{engine, run_with};
use hive_command::{Call, Command, Output};

fn folder() -> Option<PathBuf> {
    let parents = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    parents.map(|parent| parent.join("shared/scripts/loadbalancer")).find(|folder| folder.is_dir())
}

#[tokio::test]
async fn scripts_of_the_engine_pass() {
    let Some(folder) = folder() else { test_kit::skip!("needs the recorded scripts in shared/scripts") };
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_ours =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("engine-"));
    let mut failed = vec![];
    let mut seen = 0;
    for file in files.filter(is_ours) {
        seen += 1;
        // One of them requests help of commands on tables; their cells are not part of this crate.
        let nothing = |_: Call| async { Ok(Output::none()) };
        let tables = ["db/show", "db/cmp"].map(|name| Command::new(name, "", nothing));
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let ran =
            run_with(engine().with(tables).unwrap(), &name, &std::fs::read_to_string(&file).unwrap()).await;
        failed.extend(ran.result.err().map(|error| format!("{error}\n{}", ran.log)));
    }
    assert!(seen > 0 && failed.is_empty(), "{}", failed.join("\n"));
}
