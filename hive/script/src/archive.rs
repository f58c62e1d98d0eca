//! The text archive of a script: the script, then its files.

use std::path::{Path, PathBuf};

use crate::state::resolved;

/// A script and its files, in the format `txtar`.
///
/// Text before the first marker is the script. A marker is a whole line `-- name --`; the bytes up to the next marker
/// are the content of that file, blank lines included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archive {
    /// The script.
    pub script: Vec<u8>,
    /// The files, in order.
    pub files: Vec<File>,
}

/// A file of an [`Archive`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path, relative to the work folder; variables in it are expanded when it is written.
    pub name: String,
    /// Its content.
    pub data: Vec<u8>,
}

impl Archive {
    /// Parses an archive; every text is valid. Parts that do not end with a newline get one.
    pub fn parse(text: &[u8]) -> Self {
        let mut archive = Archive::default();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            match marker(line) {
                Some(name) => archive.files.push(File { name, data: vec![] }),
                None => archive.last_part().extend_from_slice(line),
            }
        }
        if !archive.last_part().is_empty() && archive.last_part().last() != Some(&b'\n') {
            archive.last_part().push(b'\n');
        }
        archive
    }

    fn last_part(&mut self) -> &mut Vec<u8> {
        match self.files.last_mut() {
            Some(file) => &mut file.data,
            None => &mut self.script,
        }
    }

    /// Returns the script as text.
    pub fn script_text(&self) -> String {
        String::from_utf8_lossy(&self.script).into_owned()
    }

    /// Returns the archive as text; [`parse`](Archive::parse) restores the same archive if no part contains a marker
    /// line.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = ended(&self.script);
        for file in &self.files {
            text.extend_from_slice(format!("-- {} --\n", file.name).as_bytes());
            text.extend(ended(&file.data));
        }
        text
    }

    /// Returns the words of a first line `#! --flag=value`: arguments for the hive under test. They are split at single
    /// blanks, so that `#!` alone is one empty argument.
    pub fn arguments(&self) -> Option<Vec<String>> {
        let first = self.script.split(|byte| *byte == b'\n').next()?.strip_prefix(b"#!")?;
        Some(String::from_utf8_lossy(first).trim().split(' ').map(str::to_owned).collect())
    }

    /// Writes the files below a folder, with their names expanded by `expand`. A name that leads out of it is an error.
    pub fn extract(&self, folder: &Path, expand: impl Fn(&str) -> String) -> std::io::Result<()> {
        for file in &self.files {
            let name = expand(&file.name);
            let path = below(folder, Path::new(&name)).ok_or_else(|| {
                std::io::Error::other(format!("file `{name}` is outside of the work folder"))
            })?;
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(&path, &file.data)
                .map_err(|error| std::io::Error::new(error.kind(), format!("file `{name}`: {error}")))?;
        }
        Ok(())
    }
}

fn ended(part: &[u8]) -> Vec<u8> {
    let mut part = part.to_vec();
    if part.last().is_some_and(|last| *last != b'\n') {
        part.push(b'\n');
    }
    part
}

fn marker(line: &[u8]) -> Option<String> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let name = line.strip_prefix(b"-- ")?.strip_suffix(b" --")?;
    let name = String::from_utf8_lossy(name).trim().to_owned();
    Some(name).filter(|name| !name.is_empty())
}

/// Returns the path with `.` and `..` resolved lexically, if it is below the folder.
fn below(folder: &Path, name: &Path) -> Option<PathBuf> {
    Some(resolved(&folder.join(name))).filter(|path| path.starts_with(folder) && path != folder)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(name: &str, data: &str) -> File {
        File { name: name.to_owned(), data: data.as_bytes().to_vec() }
    }

    #[test]
    fn parts_end_at_markers_and_keep_blank_lines() {
        let archive = Archive::parse(b"# x\necho\n-- a/b --\none\n\n--   c   --\n-- --\n -- d --\nlast");
        assert_eq!(archive.script, b"# x\necho\n");
        assert_eq!(archive.files, [file("a/b", "one\n\n"), file("c", "-- --\n -- d --\nlast\n")]);
        assert_eq!(Archive::parse(b""), Archive::default());
    }

    #[test]
    fn the_first_line_holds_arguments() {
        let arguments = |script: &str| Archive::parse(script.as_bytes()).arguments();
        assert_eq!(arguments("#! --a=1  -b\n"), Some(vec!["--a=1".into(), "".into(), "-b".into()]));
        assert_eq!(arguments("#!\n#! --a"), Some(vec![String::new()]));
        assert_eq!(arguments("#! "), Some(vec![String::new()]));
        assert_eq!(arguments("# --a"), None);
        assert_eq!(arguments(""), None);
    }

    #[test]
    fn files_stay_in_the_work_folder() {
        let folder = tempfile::tempdir().unwrap();
        let extract = |name: &str| {
            let archive = Archive { script: vec![], files: vec![file(name, "x\n")] };
            archive.extract(folder.path(), |name| name.replace("$D", "deep"))
        };
        extract("$D/./er/../a").unwrap();
        assert_eq!(std::fs::read(folder.path().join("deep/a")).unwrap(), b"x\n");
        extract(folder.path().join("b").to_str().unwrap()).unwrap();
        for name in ["../a", "/etc/x", "a/../../b", ".", "$D/.."] {
            assert!(extract(name).unwrap_err().to_string().contains("outside of the work folder"), "{name}");
        }
    }

    proptest! {
        #[test]
        fn printed_archives_are_parsed_back(
            script in "([a-z#' ]{0,9}\n){0,4}",
            files in prop::collection::vec(("[a-z/$.]{1,8}", "([a-z\\-]{0,5}\n){0,4}"), 0..5),
        ) {
            let files = files.iter().map(|(name, data)| file(name, data)).collect();
            let archive = Archive { script: script.into_bytes(), files };
            prop_assert_eq!(Archive::parse(&archive.to_bytes()), archive);
        }

        #[test]
        fn any_bytes_are_an_archive(text in prop::collection::vec(prop_oneof![Just(b'-'), Just(b' '), Just(b'\n'), any::<u8>()], 0..200)) {
            let once = Archive::parse(&text);
            prop_assert_eq!(Archive::parse(&once.to_bytes()), once);
        }
    }
}
