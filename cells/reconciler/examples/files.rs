//! The files of a folder as the rows of a table: inserting a row creates a file.

use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use reconciler::{Handle, OpCx, OpError, OpResult, Ops, Reconciler, Status};
use serde::Serialize;
use statedb::{Db, Initializer, Rows, RwTable, Table, Writer};
use tokio::io::{AsyncBufReadExt, BufReader};

// ---- A table: a struct with a primary key.

#[derive(Clone, Debug, Serialize, Table)]
#[table(name = "files")]
struct File {
    #[primary]
    name: String,
    text: String,
    /// The state of reconciliation, written by the reconciler.
    status: Status,
}

// ---- A target: how a row is realized, deleted, and how unknown objects are pruned.

struct Folder(PathBuf);

impl Folder {
    fn path(&self, file: &File) -> Result<PathBuf, OpError> {
        match Path::new(&file.name).file_name() {
            Some(name) if name == file.name.as_str() => Ok(self.0.join(name)),
            _ => Err("is no name of a file".into()),
        }
    }
}

impl Ops<File> for Folder {
    /// Idempotent: called again after an error, and at times for a row that has not changed.
    fn update(&mut self, _: &OpCx<'_>, file: &mut File) -> OpResult {
        Ok(fs::write(self.path(file)?, &file.text)?)
    }

    fn delete(&mut self, _: &OpCx<'_>, file: &File) -> OpResult {
        match fs::remove_file(self.path(file)?) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Called once all sources of the table are complete.
    fn prune(&mut self, _: &OpCx<'_>, files: Rows<'_, File>) -> OpResult {
        let wanted: HashSet<&str> = files.map(|file| file.name.as_str()).collect();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let is_wanted = entry.file_name().to_str().is_some_and(|name| wanted.contains(name));
            if entry.file_type()?.is_file() && !is_wanted {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

fn reconciler(files: &RwTable<File>, folder: impl Into<PathBuf>) -> (Handle, Reconciler<File>) {
    Reconciler::builder(files.clone())
        .status(|file| &file.status, |file, status| file.status = status)
        .ops(Folder(folder.into()))
        .build()
}

// ---- A source of rows: `NAME=TEXT` inserts one, `NAME` deletes it.

fn apply(w: &mut Writer<'_, File>, line: &str) {
    match line.split_once('=') {
        Some((name, text)) => {
            w.insert(File { name: name.to_owned(), text: text.to_owned(), status: Status::pending() });
        }
        None => {
            w.delete(File::by_name(line));
        }
    }
}

/// Writes the rows of the arguments, then one for each line; returns once all of them are reconciled.
async fn write(
    files: RwTable<File>,
    initializer: Initializer<File>,
    first: Vec<String>,
    handle: Handle,
) -> Result<(), Box<dyn std::error::Error>> {
    let (_, mut snapshot) = files.transact(|w| {
        first.iter().for_each(|line| apply(w, line));
        initializer.done(w);
    });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        (_, snapshot) = files.transact(|w| apply(w, &line));
    }
    handle.wait_until_ok(files.revision(&snapshot)).await?;
    Ok(())
}

// ---- A reader of changes.

async fn print(files: Table<File>) -> std::io::Result<()> {
    let mut changes = files.changes();
    loop {
        for change in changes.next().await {
            let File { name, status, .. } = &*change.object;
            match (change.deleted, status.error()) {
                (true, _) => writeln!(std::io::stdout(), "{name}: deleted")?,
                (_, Some(error)) => writeln!(std::io::stdout(), "{name}: {error}")?,
                (_, None) => writeln!(std::io::stdout(), "{name}: {}", status.kind())?,
            }
        }
    }
}

// ---- The program runs the three concurrently until the source ends.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder =
        arguments.next().ok_or("usage: files FOLDER [NAME=TEXT].., then NAME=TEXT or NAME in lines")?;
    let files: RwTable<File> = Db::new().table()?;
    let (initializer, _) = files.transact(|w| w.register_initializer("arguments"));
    let (handle, reconciler) = reconciler(&files, folder);
    tokio::select! {
        biased;
        _ = reconciler.run() => Ok(()),
        result = print(files.reader()) => Ok(result?),
        result = write(files.clone(), initializer, arguments.collect(), handle) => result,
    }
}

// ---- A test: the real operations in a temporary folder, in virtual time.

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_folder_follows_the_table() {
        let folder = tempfile::tempdir().unwrap();
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).ok();
        fs::write(folder.path().join("stale"), "of a previous run").unwrap();
        fs::create_dir(folder.path().join("busy")).unwrap();

        let files: RwTable<File> = Db::new().table().unwrap();
        let (initializer, _) = files.transact(|w| w.register_initializer("test"));
        let (handle, reconciler) = reconciler(&files, folder.path());
        let test = async {
            let (_, snapshot) =
                files.transact(|w| ["a=1", "b=2", "busy=3"].iter().for_each(|line| apply(w, line)));
            handle.wait_until(files.revision(&snapshot)).await.unwrap(); // each was tried once
            assert_eq!((text("a").as_deref(), text("b").as_deref()), (Some("1"), Some("2")));
            assert!(text("stale").is_some(), "nothing is pruned before the source is complete");
            let busy = files.wait_for(File::by_name("busy"), |file| file.status.error().is_some()).await;
            assert!(busy.status.error().unwrap().contains("Is a directory"));

            fs::remove_dir(folder.path().join("busy")).unwrap(); // the next try succeeds
            files.wait_for(File::by_name("busy"), |file| file.status.is_done()).await;
            assert_eq!(text("busy").as_deref(), Some("3"));

            let (_, snapshot) = files.transact(|w| {
                ["a=4", "b", "../c=5"].iter().for_each(|line| apply(w, line));
                initializer.done(w);
            });
            handle.wait_until(files.revision(&snapshot)).await.unwrap();
            assert_eq!((text("a").as_deref(), text("b"), text("../c")), (Some("4"), None, None));
            while text("stale").is_some() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            _ = reconciler.run() => panic!("the reconciler has stopped"),
            () = test => {}
        }
    }
}
