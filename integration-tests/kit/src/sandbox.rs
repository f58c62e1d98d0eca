//! Isolated namespaces and folders for a test.

use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, process};

use crate::memory_group::MemoryGroup;
use crate::{NetNs, sys};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Optional parts of a sandbox beyond its namespaces.
#[derive(Clone, Debug, Default)]
pub struct SandboxOptions {
    /// Also create a cgroup v2 below the machine's root.
    pub cgroup: bool,
    /// Also create a cgroup with this memory limit in bytes, below the test's own; an error of the kind
    /// [`io::ErrorKind::Unsupported`] if the machine does not permit it.
    pub memory: Option<u64>,
}

/// Own network and mount namespace for the calling thread, with a private
/// bpffs, run and state folder. Dropping it restores the thread's namespaces and removes
/// everything.
///
/// Inside, `/sys` shows the new network namespace, `/sys/fs/bpf` is the private
/// bpffs, and the machine-wide `/proc/sys/kernel`, `/proc/sys/vm` and
/// `/proc/sys/net/core` are read-only.
#[derive(Debug)]
pub struct Sandbox {
    dir: PathBuf,
    host: NetNs,
    cgroup: Option<PathBuf>,
    memory: Option<MemoryGroup>,
    old_net: File,
    old_mnt: File,
    old_cwd: PathBuf,
    /// Namespaces belong to a thread, so the value is not `Send`.
    _thread: PhantomData<*const ()>,
}

impl Sandbox {
    /// Creates a sandbox without a cgroup.
    pub fn new() -> io::Result<Self> {
        Self::with(&SandboxOptions::default())
    }

    /// Creates a sandbox with the given options.
    pub fn with(options: &SandboxOptions) -> io::Result<Self> {
        let dir = fresh_dir()?;
        let old_net = File::open("/proc/thread-self/ns/net")?;
        let old_mnt = File::open("/proc/thread-self/ns/mnt")?;
        let old_cwd = env::current_dir()?;
        let cgroup = if options.cgroup { Some(make_cgroup(&dir)?) } else { None };
        let memory = match options.memory.map(|limit| MemoryGroup::new(&file_name(&dir)?, limit)).transpose()
        {
            Ok(memory) => memory,
            Err(error) => {
                fs::remove_dir(&dir)?;
                return Err(error);
            }
        };
        let enter = || {
            sys::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS)?;
            furnish(&dir, &[("cgroup", cgroup.as_deref()), ("memory", memory.as_ref().map(|m| &*m.folder))])?;
            NetNs::pin_current(dir.join("netns/host"))
        };
        let host = match enter() {
            Ok(host) => host,
            Err(error) => {
                leave(&dir, cgroup.as_deref(), &old_net, &old_mnt, &old_cwd);
                return Err(error);
            }
        };
        let sandbox = Self { dir, host, cgroup, memory, old_net, old_mnt, old_cwd, _thread: PhantomData };
        sandbox.host.ip("link set lo up")?;
        Ok(sandbox)
    }

    /// Returns the namespace of the thread itself: the "host" of the test.
    #[must_use]
    pub fn host(&self) -> &NetNs {
        &self.host
    }

    /// Creates another network namespace, for a pod or the outside world.
    pub fn netns(&self, name: &str) -> io::Result<NetNs> {
        NetNs::create(self.dir.join("netns").join(name))
    }

    /// Unmounts a namespace of [`netns`](Self::netns), as a container runtime
    /// does: it ends with its last reference.
    pub fn remove_netns(&self, ns: NetNs) -> io::Result<()> {
        ns.remove()
    }

    /// Returns the sandbox's folder (a tmpfs that is visible only inside).
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the private bpffs, for `--bpf-root`.
    #[must_use]
    pub fn bpf_root(&self) -> PathBuf {
        self.dir.join("bpf")
    }

    /// Returns the run folder: sockets and pid files.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// Returns the state folder.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Returns the cgroup with the memory limit, if requested.
    #[must_use]
    pub fn memory_group(&self) -> Option<PathBuf> {
        self.memory.as_ref().map(|_| self.dir.join("memory"))
    }

    /// Returns the private cgroup v2, if requested.
    #[must_use]
    pub fn cgroup(&self) -> Option<PathBuf> {
        self.cgroup.as_ref().map(|_| self.dir.join("cgroup"))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        leave(&self.dir, self.cgroup.as_deref(), &self.old_net, &self.old_mnt, &self.old_cwd);
    }
}

fn fresh_dir() -> io::Result<PathBuf> {
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("apiary-{}-{number}", process::id()));
        match fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Mounts everything in the thread's new mount namespace.
fn furnish(dir: &Path, cgroups: &[(&str, Option<&Path>)]) -> io::Result<()> {
    sys::mount("", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE)?;
    sys::mount("sandbox", dir, "tmpfs", 0)?;
    for name in ["bpf", "run", "state", "netns"] {
        fs::create_dir(dir.join(name))?;
    }
    sys::mount("bpf", &dir.join("bpf"), "bpf", 0)?;
    for (name, cgroup) in cgroups {
        let Some(cgroup) = cgroup else { continue };
        fs::create_dir(dir.join(name))?;
        sys::mount(&cgroup.to_string_lossy(), &dir.join(name), "", libc::MS_BIND)?;
    }
    for key in ["kernel", "vm", "net/core"] {
        sys::read_only(&Path::new("/proc/sys").join(key))?;
    }
    // A new sysfs shows the links of the new network namespace.
    sys::mount("sysfs", Path::new("/sys"), "sysfs", 0)?;
    let default_root = Path::new("/sys/fs/bpf");
    if default_root.is_dir() {
        let source = dir.join("bpf");
        sys::mount(&source.to_string_lossy(), default_root, "", libc::MS_BIND)?;
    }
    Ok(())
}

/// Creates a cgroup named as the sandbox's folder below the machine's root.
fn make_cgroup(dir: &Path) -> io::Result<PathBuf> {
    let root = crate::machine::cgroup_root()
        .ok_or_else(|| io::Error::other("no cgroup v2 file system is mounted"))?;
    let cgroup = root.join(file_name(dir)?);
    fs::create_dir(&cgroup)?;
    Ok(cgroup)
}

fn file_name(dir: &Path) -> io::Result<String> {
    let name = dir.file_name().ok_or_else(|| io::Error::other("sandbox folder without a name"))?;
    Ok(name.to_string_lossy().into_owned())
}

/// Restores the thread's namespaces and removes folder and cgroup. Best effort: also used
/// for a partly created sandbox.
fn leave(dir: &Path, cgroup: Option<&Path>, net: &File, mnt: &File, cwd: &Path) {
    // Threads started inside share the thread's root and working folder, and
    // the kernel refuses to change a namespace that is shared.
    if let Err(error) = sys::unshare(libc::CLONE_FS) {
        complain("own working folder", &error);
    }
    if let Err(error) = sys::setns(mnt.as_fd(), libc::CLONE_NEWNS) {
        complain("back to the old mount namespace", &error);
    }
    if let Err(error) = sys::setns(net.as_fd(), libc::CLONE_NEWNET) {
        complain("back to the old network namespace", &error);
    }
    if let Err(error) = env::set_current_dir(cwd) {
        complain("back to the old folder", &error);
    }
    if let Err(error) = fs::remove_dir(dir) {
        complain("remove the sandbox's folder", &error);
    }
    if let Some(cgroup) = cgroup {
        remove_cgroup(cgroup);
    }
}

/// Removes a cgroup tree, deepest first; moves its processes to the root.
fn remove_cgroup(cgroup: &Path) {
    if let Ok(entries) = fs::read_dir(cgroup) {
        for entry in entries.flatten().filter(|e| e.path().is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    if let (Ok(pids), Some(parent)) = (fs::read_to_string(cgroup.join("cgroup.procs")), cgroup.parent()) {
        for pid in pids.lines() {
            let _ = fs::write(parent.join("cgroup.procs"), pid);
        }
    }
    if let Err(error) = fs::remove_dir(cgroup) {
        complain("remove the sandbox's cgroup", &error);
    }
}

fn complain(what: &str, error: &io::Error) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "sandbox: {what}: {error}");
}
