//! Resolution of a path: the folder, its files, and all links and folders on the path to them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use file_watch::resolve;

use super::file::{Signature, is_manifest};
use super::watch::{Concern, Wanted};

/// The resolved folder.
pub(crate) struct Place {
    pub(crate) place: io::Result<PathBuf>,
    /// The files of manifests; without a signature if `stat` fails.
    pub(crate) names: io::Result<BTreeMap<String, Option<Signature>>>,
    pub(crate) wanted: Wanted,
}

pub(crate) fn find(path: &Path) -> Place {
    let way = resolve(path);
    let folder = |(place, name): (PathBuf, OsString)| (place, name, Concern::Folder);
    let mut steps: Vec<_> = way.steps.into_iter().map(folder).collect();
    let place = way.end;
    let names = match &place {
        Ok(place) => list(place, &mut steps),
        Err(_) => Ok(BTreeMap::new()),
    };
    let wanted = Wanted { folder: place.as_ref().ok().cloned(), steps };
    Place { place, names, wanted }
}

/// Lists the files of a folder; adds the steps of the paths to those that are links.
fn list(
    place: &Path,
    steps: &mut Vec<(PathBuf, OsString, Concern)>,
) -> io::Result<BTreeMap<String, Option<Signature>>> {
    let mut names = BTreeMap::new();
    for entry in std::fs::read_dir(place)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().filter(|name| is_manifest(name)).map(str::to_owned)
        else {
            continue;
        };
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            let concern = Concern::File(name.clone());
            steps
                .extend(resolve(&path).steps.into_iter().map(|(place, step)| (place, step, concern.clone())));
        }
        let signature = match path.metadata() {
            Ok(metadata) => Some(Signature::of(&metadata)),
            // A dangling link is ignored.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(_) => None,
        };
        names.insert(name, signature);
    }
    Ok(names)
}
