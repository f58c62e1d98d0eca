//! Resolution of a path, with the directory entries that it depends on.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links in one resolution, as in the kernel (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;

/// The resolution of a path.
#[derive(Debug)]
pub struct Way {
    /// Folder and name of each component, up to the end or to the first missing one.
    pub steps: Vec<(PathBuf, OsString)>,
    /// The resolved path, without links.
    pub end: io::Result<PathBuf>,
}

/// Resolves an absolute path. Each change of the result is a change of one of the returned steps.
pub fn resolve(path: &Path) -> Way {
    let mut steps = Vec::new();
    let end = walk(path, &mut steps);
    Way { steps, end }
}

fn walk(path: &Path, steps: &mut Vec<(PathBuf, OsString)>) -> io::Result<PathBuf> {
    // Components not resolved yet; a link puts those of its target in front of them.
    let mut left: VecDeque<OsString> = names(path).collect();
    let mut here = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        steps.push((here.clone(), name));
        if next.symlink_metadata()?.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(io::Error::other(format!(
                    "{} leads in a circle of symbolic links",
                    path.display()
                )));
            }
            let target = std::fs::read_link(&next)?;
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                left.push_front(name);
            }
        } else {
            here = next;
        }
    }
    Ok(here)
}

fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn resolution_follows_links() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("v1/sub")).unwrap();
        std::fs::write(root.join("v1/sub/f"), "").unwrap();
        symlink("v1", root.join("current")).unwrap();
        symlink(root.join("current/sub/../sub"), root.join("link")).unwrap();
        let way = resolve(&root.join("link/f"));
        assert_eq!(way.end.unwrap(), root.join("v1/sub/f"));
        let last: Vec<String> =
            way.steps.iter().rev().take(3).map(|s| s.1.to_string_lossy().into()).collect();
        assert_eq!(last, ["f", "sub", "sub"]);
        assert!(way.steps.contains(&(root.clone(), "current".into())));
        assert!(way.steps.contains(&(root.clone(), "link".into())));

        let way = resolve(&root.join("v2/f"));
        assert_eq!(way.end.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(way.steps.last().unwrap(), &(root.clone(), "v2".into()));

        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        assert!(resolve(&root.join("a")).end.unwrap_err().to_string().contains("circle"));
    }
}
