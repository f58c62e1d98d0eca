//! `bpf fs`: mounts of the bpf file system.

use std::fmt::Write as _;
use std::io::Write;

use anyhow::Context as _;
use clap::Subcommand;
use serde::Serialize;

use crate::commands::list::Listing;
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum FsCommand {
    /// Display the mounts of the bpf file system
    Show(Listing),
}

/// A mount, as the kernel describes it (`man 5 proc_pid_mountinfo`).
#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
struct Mount {
    #[serde(rename = "MountID")]
    mount_id: u32,
    #[serde(rename = "ParentID")]
    parent_id: u32,
    mount_point: String,
    mount_options: String,
    optional_fields: Vec<String>,
    filesystem_type: String,
    mount_source: String,
    super_options: String,
}

impl Mount {
    /// Reads a line; `None` for one of another form.
    fn parse(line: &str) -> Option<Mount> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let (mount_id, parent_id) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        // Behind the device and the root within it.
        let (point, options) = (fields.nth(2)?, fields.next()?);
        let mut rest = filesystem.split(' ');
        Some(Mount {
            mount_id,
            parent_id,
            mount_point: point.replace("\\040", " "),
            mount_options: options.to_owned(),
            optional_fields: fields.map(str::to_owned).collect(),
            filesystem_type: rest.next()?.to_owned(),
            mount_source: rest.next()?.to_owned(),
            super_options: rest.next()?.to_owned(),
        })
    }
}

pub(super) fn run(FsCommand::Show(options): &FsCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("cannot read the mount table")?;
    show(&mounts, &options.output, out)
}

fn show(mounts: &str, output: &Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let mounts = mounts.lines().filter_map(Mount::parse).filter(|mount| mount.filesystem_type == "bpf");
    let mounts: Vec<Mount> = mounts.collect();
    if output.write(&mounts, out)? {
        return Ok(());
    }
    let mut text = String::new();
    for mount in &mounts {
        for (title, value) in [
            ("MountID", mount.mount_id.to_string()),
            ("ParentID", mount.parent_id.to_string()),
            ("Mounted State", true.to_string()),
            ("MountPoint", mount.mount_point.clone()),
            ("MountOptions", mount.mount_options.clone()),
            ("OptionFields", format!("[{}]", mount.optional_fields.join(" "))),
            ("FilesystemType", mount.filesystem_type.clone()),
            ("MountSource", mount.mount_source.clone()),
            ("SuperOptions", mount.super_options.clone()),
        ] {
            let _ = writeln!(text, "{:<18}{value}", format!("{title}:"));
        }
    }
    anyhow::ensure!(!mounts.is_empty(), "no bpf file system is mounted");
    Ok(write!(out, "{text}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_those_of_the_kernel() {
        let line = "41 30 0:32 / /sys/fs/my\\040bpf rw,nosuid shared:10 master:1 - bpf none rw,mode=700";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.mount_id, mount.parent_id, &*mount.mount_point), (41, 30, "/sys/fs/my bpf"));
        assert_eq!(mount.optional_fields, ["shared:10", "master:1"]);
        assert_eq!((&*mount.mount_source, &*mount.super_options), ("none", "rw,mode=700"));
        let bare = Mount::parse("22 1 0:20 / /proc rw - proc proc rw").unwrap();
        assert_eq!((bare.filesystem_type.as_str(), bare.optional_fields.len()), ("proc", 0));
        assert_eq!(Mount::parse("22 1 0:20 / /proc"), None);
    }
}
