//! The pinned links of the programs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bpf::{BpfFs, Link, Program, names_in, unpin};

use crate::cgroup::Cgroup;
use crate::error::Error;

/// Programs as they were attached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attached {
    /// The kernel's id of the cgroup.
    cgroup: u64,
    /// The programs by name, with the kernel's ids.
    programs: Vec<(&'static str, u32)>,
}

impl Attached {
    pub(crate) fn new(cgroup: &Cgroup) -> Attached {
        Attached { cgroup: cgroup.id, programs: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.programs.len()
    }
}

/// The folder of the links, which exist while no agent runs.
#[derive(Debug)]
pub(crate) struct Links {
    fs: BpfFs,
    folder: PathBuf,
}

impl Links {
    pub(crate) fn new(fs: &BpfFs) -> Links {
        Links { fs: fs.clone(), folder: fs.socket_links() }
    }

    fn pin(&self, program: &str) -> PathBuf {
        self.folder.join(program)
    }

    /// Whether all programs are attached to this cgroup.
    pub(crate) fn are_attached(&self, cgroup: &Cgroup, names: &[&str]) -> bool {
        names.iter().all(|name| {
            let info = Link::open(&self.pin(name)).and_then(|link| link.info());
            info.is_ok_and(|info| info.cgroup == Some(cgroup.id))
        })
    }

    /// Attaches a program of this name and adds it to `attached`; see [`attach`](Self::attach).
    pub(crate) fn attach_to(
        &self,
        cgroup: &Cgroup,
        name: &'static str,
        program: &Program,
        attached: &mut Attached,
    ) -> Result<(), Error> {
        self.attach(cgroup, program)?;
        attached.programs.push((name, program.info()?.id));
        Ok(())
    }

    /// Compares the links with the programs that were attached to the cgroup that is at `root` now. Returns what other
    /// processes have changed.
    pub(crate) fn drift(&self, root: &Path, attached: &Attached) -> Vec<String> {
        match Cgroup::open(root) {
            Err(error) => return vec![error.to_string()],
            Ok(cgroup) if cgroup.id != attached.cgroup => {
                return vec![format!("another cgroup is at {}", root.display())];
            }
            Ok(_) => {}
        }
        let drifted = attached.programs.iter().filter_map(|(name, program)| {
            let change = match Link::open(&self.pin(name)).and_then(|link| link.info()) {
                Err(error) if error.is_not_found() => "its pin was removed",
                Err(_) => "its pin is of something else",
                Ok(info) if info.cgroup != Some(attached.cgroup) => "its link was detached",
                Ok(info) if info.program != *program => "its link runs another program",
                Ok(_) => return None,
            };
            Some(format!("{name}: {change}"))
        });
        drifted.collect()
    }

    /// Attaches a program to the cgroup. An existing link to it is updated in place, be it of the previous run or of
    /// Cilium; any other is replaced after the new one is attached.
    pub(crate) fn attach(&self, cgroup: &Cgroup, program: &Program) -> Result<(), Error> {
        let pin = self.pin(program.name());
        let old = match Link::open(&pin) {
            Ok(link) => Some(link),
            Err(error) if error.is_not_found() => None,
            // Something else has this name, such as a pinned map.
            Err(_) => {
                unpin(&pin)?;
                None
            }
        };
        if let Some(link) = &old
            && link.info().is_ok_and(|info| info.cgroup == Some(cgroup.id))
            && link.update(program).is_ok()
        {
            return Ok(());
        }
        let failed =
            |source| Error::Attach { program: program.name().to_owned(), path: cgroup.path.clone(), source };
        let link = Link::cgroup(program, cgroup).map_err(failed)?;
        fs::create_dir_all(&self.folder).map_err(|source| Error::Folder {
            operation: "create folder",
            path: self.folder.clone(),
            source,
        })?;
        self.fs.replace_pin(&pin, |pending| link.pin(pending))?;
        // The old one is still held by this process: end it now, not with the descriptor.
        if let Some(link) = old {
            let _ = link.detach();
        }
        Ok(())
    }

    /// Detaches the programs that are not among `names`: those that translate before those that translate back. Returns
    /// their names.
    pub(crate) fn retain(&self, names: &[&str]) -> Result<Vec<String>, Error> {
        let mut others = names_in(&self.folder)?;
        others.retain(|name| !names.contains(&&**name));
        let is_forward = |name: &String| name.ends_with("_connect") || name.ends_with("_sendmsg");
        others.sort_by_key(|name| !is_forward(name));
        let id = |name: &str| Some(Link::open(&self.pin(name)).ok()?.info().ok()?.id);
        let kept: Vec<u32> = names.iter().filter_map(|name| id(name)).collect();
        for name in &others {
            // Another pin of a link that stays is only a name.
            if id(name).is_none_or(|id| !kept.contains(&id)) {
                detach(&self.pin(name));
            }
            unpin(&self.pin(name))?;
        }
        if names.is_empty() {
            self.remove_folders();
        }
        Ok(others)
    }

    /// Removes the folders up to that of all of Cilium's links.
    fn remove_folders(&self) {
        for folder in self.folder.ancestors().take(3) {
            match fs::remove_dir(folder) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // Others have pins there.
                Err(_) => return,
            }
        }
    }
}

fn detach(pin: &Path) {
    if let Ok(link) = Link::open(pin) {
        // Fails if the cgroup is gone, which has detached it.
        let _ = link.detach();
    }
}
