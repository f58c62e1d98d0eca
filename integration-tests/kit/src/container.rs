//! A process in a container, started as a container runtime does it: mounts, a root of its own, capabilities.
//!
//! The namespaces are made by unshare(1), which runs the example `container` of this crate with a [`Container`] as its file:
//! a process has to be in a pid namespace before it can mount that namespace's `/proc`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitStatus};

use crate::sys;

/// Device files of every container.
const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];
/// Settings of the whole machine, which no test may change.
const MACHINE_SETTINGS: [&str; 3] = ["kernel", "vm", "net/core"];
/// Links to follow in a path before it counts as a loop, as the kernel has it.
const MAX_LINKS: usize = 40;

/// A container's process and its surroundings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// The root folder, or where it is mounted if there are layers.
    pub root: PathBuf,
    /// The folder of the image, one for changes and one for the kernel, which together are the root.
    pub overlay: Option<[PathBuf; 3]>,
    /// Folders and files of the outside, in the order in which they are mounted.
    pub mounts: Vec<Mount>,
    /// Numbers of the capabilities that it has.
    pub capabilities: Vec<u8>,
    /// Whether a program may get more of them.
    pub allow_privilege_escalation: bool,
    /// Whether all capabilities and `/proc/sys` are as outside.
    pub is_privileged: bool,
    /// Whether the root is mounted read-only.
    pub is_read_only: bool,
    /// Whether it is the host of others: its mounts are shared with theirs, but for those without propagation.
    pub is_host: bool,
    /// The variables.
    pub environment: Vec<(String, String)>,
    /// The program and its arguments.
    pub program: Vec<String>,
}

/// A folder or file of the outside in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// The path outside.
    pub source: PathBuf,
    /// The path inside.
    pub target: PathBuf,
    /// Whether the container cannot write it.
    pub is_read_only: bool,
    /// Which mounts that are made there later appear on the other side.
    pub propagation: Propagation,
}

/// Propagation of mounts, by the names that Kubernetes has for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// None.
    #[default]
    None,
    /// Those of the outside appear inside.
    HostToContainer,
    /// Those of either side appear on the other.
    Bidirectional,
}

impl Propagation {
    const ALL: [Self; 3] = [Self::None, Self::HostToContainer, Self::Bidirectional];

    /// Returns the one with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| format!("{one:?}") == name)
    }
}

impl Container {
    /// Returns it as the text of a file, of which [`parse`](Self::parse) makes it again. Only values of variables
    /// have line breaks.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines = vec![format!("root {}", self.root.display())];
        if let Some([image, changes, work]) = &self.overlay {
            lines.push(format!("overlay {} {} {}", image.display(), changes.display(), work.display()));
        }
        let flags = [
            ("allow-privilege-escalation", self.allow_privilege_escalation),
            ("privileged", self.is_privileged),
            ("read-only", self.is_read_only),
            ("host", self.is_host),
        ];
        lines.extend(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name.to_owned()));
        lines.extend(self.mounts.iter().map(|mount| {
            let (source, target) = (mount.source.display(), mount.target.display());
            format!("mount {source} {target} {} {:?}", mount.is_read_only, mount.propagation)
        }));
        lines.extend(self.capabilities.iter().map(|number| format!("capability {number}")));
        lines.extend(self.environment.iter().map(|(name, value)| {
            // One that has several lines, such as a configuration, is one line here.
            format!("variable {name}={}", value.replace('\\', "\\\\").replace('\n', "\\n"))
        }));
        lines.extend(self.program.iter().map(|word| format!("word {word}")));
        lines.iter().fold(String::new(), |text, line| text + line + "\n")
    }

    /// Parses the text of a container.
    ///
    /// # Errors
    /// When a line is none of [`to_text`](Self::to_text).
    pub fn parse(text: &str) -> io::Result<Self> {
        let mut container = Self::default();
        for line in text.lines() {
            let unknown = || io::Error::other(format!("no line of a container: {line}"));
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            let words: Vec<&str> = value.split(' ').collect();
            match (key, &words[..]) {
                ("root", _) => container.root = value.into(),
                ("overlay", [image, changes, work]) => {
                    container.overlay = Some([image, changes, work].map(PathBuf::from));
                }
                ("allow-privilege-escalation", _) => container.allow_privilege_escalation = true,
                ("privileged", _) => container.is_privileged = true,
                ("read-only", _) => container.is_read_only = true,
                ("host", _) => container.is_host = true,
                ("mount", [source, target, is_read_only, propagation]) => container.mounts.push(Mount {
                    source: source.into(),
                    target: target.into(),
                    is_read_only: *is_read_only == "true",
                    propagation: Propagation::by_name(propagation).ok_or_else(unknown)?,
                }),
                ("capability", [number]) => {
                    container.capabilities.push(number.parse().map_err(|_| unknown())?);
                }
                ("variable", _) => {
                    let (name, value) = value.split_once('=').ok_or_else(unknown)?;
                    container.environment.push((name.to_owned(), unescape(value)));
                }
                ("word", _) => container.program.push(value.to_owned()),
                _ => return Err(unknown()),
            }
        }
        Ok(container)
    }

    /// Replaces this process, the first of its pid namespace in a mount namespace of its own, by the container's.
    ///
    /// # Errors
    /// When a mount or the program fails; this process is lost then, as it may have another root already.
    pub fn become_it(&self) -> io::Result<std::convert::Infallible> {
        self.mount_all()?;
        self.give_up()?;
        Err(self.command().exec())
    }

    /// Runs its program in the namespaces of the process `pid`, as hooks of a container run.
    ///
    /// # Errors
    /// When the namespaces cannot be entered, or the program cannot be started.
    pub fn run_beside(&self, pid: u32) -> io::Result<ExitStatus> {
        let open = |kind: &str| File::open(format!("/proc/{pid}/ns/{kind}"));
        let (mounts, pids) = (open("mnt")?, open("pid")?);
        sys::setns(std::os::fd::AsFd::as_fd(&pids), libc::CLONE_NEWPID)?;
        sys::setns(std::os::fd::AsFd::as_fd(&mounts), libc::CLONE_NEWNS)?;
        self.give_up()?;
        self.command().status()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program.first().map_or("", String::as_str));
        command.args(self.program.iter().skip(1)).env_clear();
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Mounts all that the container has, and makes it the root of this process.
    fn mount_all(&self) -> io::Result<()> {
        fs::create_dir_all(&self.root)?;
        match &self.overlay {
            Some([image, changes, work]) => {
                for folder in [changes, work] {
                    fs::create_dir_all(folder)?;
                }
                let (image, changes, work) = (image.display(), changes.display(), work.display());
                let layers = format!("lowerdir={image},upperdir={changes},workdir={work}");
                sys::mount_with("overlay", &self.root, "overlay", 0, &layers)?;
            }
            None => bind(&self.root, &self.root)?,
        }
        let folder = |name: &str| -> io::Result<PathBuf> {
            let path = inside(&self.root, Path::new(name))?;
            fs::create_dir_all(&path)?;
            Ok(path)
        };
        let proc = folder("/proc")?;
        sys::mount("proc", &proc, "proc", 0)?;
        if self.is_host {
            for key in MACHINE_SETTINGS {
                sys::read_only(&proc.join("sys").join(key))?;
            }
        } else if !self.is_privileged {
            sys::read_only(&proc.join("sys"))?;
        }
        let read_only = if self.is_host || self.is_privileged { 0 } else { libc::MS_RDONLY };
        sys::mount("sysfs", &folder("/sys")?, "sysfs", read_only)?;
        let devices = folder("/dev")?;
        sys::mount("dev", &devices, "tmpfs", 0)?;
        for name in DEVICES {
            File::create(devices.join(name))?;
            bind(&Path::new("/dev").join(name), &devices.join(name))?;
        }
        for mount in &self.mounts {
            self.mount(mount)?;
        }
        sys::pivot_root(&self.root)?;
        if self.is_host {
            sys::mount("", Path::new("/"), "", libc::MS_REC | libc::MS_SHARED)?;
            for mount in self.mounts.iter().filter(|mount| mount.propagation == Propagation::None) {
                sys::mount("", &mount.target, "", libc::MS_REC | libc::MS_PRIVATE)?;
            }
        }
        if self.is_read_only {
            sys::mount("", Path::new("/"), "", libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY)?;
        }
        Ok(())
    }

    fn mount(&self, mount: &Mount) -> io::Result<()> {
        let target = inside(&self.root, &mount.target)?;
        if fs::metadata(&mount.source)?.is_dir() {
            fs::create_dir_all(&target)?;
        } else if !target.exists() {
            fs::create_dir_all(target.parent().unwrap_or(&self.root))?;
            File::create(&target)?;
        }
        bind(&mount.source, &target)?;
        if mount.is_read_only {
            sys::mount("", &target, "", libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY)?;
        }
        let flag = match mount.propagation {
            Propagation::None => libc::MS_PRIVATE,
            Propagation::HostToContainer => libc::MS_SLAVE,
            // A bind mount of a shared one is its peer.
            Propagation::Bidirectional => return Ok(()),
        };
        sys::mount("", &target, "", libc::MS_REC | flag)
    }

    fn give_up(&self) -> io::Result<()> {
        if !self.is_privileged {
            sys::keep_capabilities(&self.capabilities)?;
        }
        if self.allow_privilege_escalation { Ok(()) } else { sys::no_new_privileges() }
    }
}

fn bind(source: &Path, target: &Path) -> io::Result<()> {
    sys::mount(&source.to_string_lossy(), target, "", libc::MS_BIND | libc::MS_REC)
}

/// Returns the path of a container below its root: links are followed as inside, where `/` is the root.
fn inside(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut rest: Vec<Vec<u8>> = components(path).rev().collect();
    let (mut found, mut links) = (PathBuf::new(), 0);
    while let Some(name) = rest.pop() {
        let name = OsStr::from_bytes(&name);
        if name == ".." {
            found.pop();
            continue;
        }
        match fs::read_link(root.join(&found).join(name)) {
            Err(_) => found.push(name),
            Ok(_) if links == MAX_LINKS => return Err(io::Error::other("too many links")),
            Ok(link) => {
                links += 1;
                if link.is_absolute() {
                    found = PathBuf::new();
                }
                rest.extend(components(&link).rev());
            }
        }
    }
    Ok(root.join(found))
}

fn components(path: &Path) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.as_bytes().to_owned()),
        Component::ParentDir => Some(b"..".to_vec()),
        _ => None,
    })
}

/// Returns a value with its line breaks and backslashes.
fn unescape(value: &str) -> String {
    let mut letters = value.chars();
    let mut text = String::new();
    while let Some(letter) = letters.next() {
        text.push(match letter {
            '\\' => match letters.next() {
                Some('n') => '\n',
                other => other.unwrap_or('\\'),
            },
            _ => letter,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_comes_back_from_its_text() {
        let mount =
            Mount { source: "/run/a".into(), target: "/b".into(), is_read_only: true, ..Mount::default() };
        let container = Container {
            root: "/root".into(),
            overlay: Some(["/image", "/changes", "/work"].map(PathBuf::from)),
            mounts: vec![
                mount.clone(),
                Mount { propagation: Propagation::Bidirectional, is_read_only: false, ..mount },
            ],
            capabilities: vec![12, 39],
            is_read_only: true,
            environment: vec![
                ("A".to_owned(), "b=c d".to_owned()),
                ("LINES".to_owned(), "a: |\n  b\\n\n".to_owned()),
            ],
            program: ["agent", "", "--config-dir=/x y"].map(str::to_owned).to_vec(),
            ..Container::default()
        };
        assert_eq!(Container::parse(&container.to_text()).unwrap(), container);
        let host = Container { is_host: true, is_privileged: true, ..Container::default() };
        assert_eq!(Container::parse(&host.to_text()).unwrap(), host);
        for text in ["mount /a", "capability all", "variable A", "something"] {
            assert!(Container::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn links_do_not_lead_out_of_the_root() {
        use std::os::unix::fs::symlink;
        let root = std::env::temp_dir().join(format!("apiary-links-{}", std::process::id()));
        fs::create_dir_all(root.join("var")).unwrap();
        symlink("/run", root.join("var/run")).unwrap();
        symlink("../../../../etc", root.join("var/up")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let found = |path: &str| {
            inside(&root, Path::new(path)).map(|found| found.strip_prefix(&root).unwrap().to_owned())
        };
        assert_eq!(found("/var/run/cilium").unwrap(), Path::new("run/cilium"));
        assert_eq!(found("/var/up/passwd").unwrap(), Path::new("etc/passwd"));
        assert_eq!(found("/var/new/folder").unwrap(), Path::new("var/new/folder"));
        assert!(found("/loop").is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}
