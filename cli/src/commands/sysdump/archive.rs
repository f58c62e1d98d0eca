//! The archive: a tar of one folder, compressed or not. Uses nothing.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum;
use flate2::Compression;
use flate2::write::GzEncoder;

/// The format of an archive.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ArchiveType {
    Tar,
    Gz,
}

impl ArchiveType {
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Tar => "tar",
            Self::Gz => "tar.gz",
        }
    }

    /// Returns the word that stands before the path.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Tar => "ARCHIVE",
            Self::Gz => "GZIP",
        }
    }
}

/// Writes a folder as an archive with this name inside.
pub(super) fn write(kind: ArchiveType, folder: &Path, name: &OsStr, out: impl Write) -> anyhow::Result<()> {
    match kind {
        ArchiveType::Tar => pack(folder, name, out).map(drop),
        ArchiveType::Gz => {
            pack(folder, name, GzEncoder::new(out, Compression::default()))?.finish()?;
            Ok(())
        }
    }
}

/// Writes it to a new file that only its owner reads.
pub(super) fn write_file(kind: ArchiveType, folder: &Path, name: &OsStr, path: &Path) -> anyhow::Result<()> {
    let text = || format!("cannot write {}", path.display());
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).with_context(text)?;
    let mut file = BufWriter::new(file);
    let written = write(kind, folder, name, &mut file).and_then(|()| Ok(file.flush()?));
    if written.is_err() {
        // A part of an archive is of no use.
        let _ = std::fs::remove_file(path);
    }
    written.with_context(text)
}

fn pack<W: Write>(folder: &Path, name: &OsStr, out: W) -> anyhow::Result<W> {
    let mut tar = tar::Builder::new(out);
    tar.follow_symlinks(false);
    tar.append_dir_all(name, folder)?;
    Ok(tar.into_inner()?)
}
