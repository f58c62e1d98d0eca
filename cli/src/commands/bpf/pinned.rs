//! The folder of the pinned maps, and maps in it by name.

use crate::output::{Output, table};
use anyhow::Context as _;
use bpf::{Map, RawMap};
use datapath_abi::Pod;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Default mount points of the bpf file system; agents use the second if the first is not one.
const ROOTS: [&str; 2] = ["/sys/fs/bpf", "/run/cilium/bpffs"];

/// Returns the folder of the maps: on a bpf file system at a default mount point, else on the first in the mount table.
pub(super) fn globals() -> anyhow::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the mount table")?;
    let usual = ROOTS.iter().map(Path::new).find(|root| bpf::is_bpffs(root)).map(Path::to_owned);
    let root = usual.or_else(|| first_bpffs(&mounts)).context("no bpf file system is mounted")?;
    Ok(root.join("tc/globals"))
}

fn first_bpffs(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "bpf").then(|| path.replace("\\040", " ").into())
    })
}

pub(in crate::commands) fn open(name: &str) -> anyhow::Result<RawMap> {
    let path = globals()?.join(name);
    RawMap::open(&path).with_context(|| format!("cannot open map {}", path.display()))
}

pub(in crate::commands) fn rows<K: Pod, V: Pod>(name: &str) -> anyhow::Result<Vec<(K, V)>> {
    Ok(Map::new(open(name)?)?.entries()?)
}

/// Whether the error means that the map does not exist.
pub(in crate::commands) fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<bpf::Error>().and_then(bpf::Error::errno) == Some(ENOENT)
}

const ENOENT: i32 = 2;

/// Prints two columns: a key and its value.
pub(super) fn pairs(
    titles: &str,
    rows: &BTreeMap<String, Vec<String>>,
    output: &Output,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if output.write(rows, out)? {
        return Ok(());
    }
    let mut text = format!("{titles}\t\n");
    for (key, values) in rows {
        for (n, value) in values.iter().enumerate() {
            let _ = writeln!(text, "{}\t{value}\t", if n == 0 { key.as_str() } else { "" });
        }
    }
    Ok(table(&text, 5, out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_names_the_file_system() {
        let mounts =
            "proc /proc proc rw 0 0\nnone /mnt/my\\040bpf bpf rw,mode=700 0 0\nnone /other bpf rw 0 0\n";
        assert_eq!(first_bpffs(mounts), Some("/mnt/my bpf".into()));
        assert_eq!(first_bpffs("proc /proc proc rw 0 0\n"), None);
    }
}
