//! A machine of a cluster for containers: the namespaces of a node with a root folder and processes of its own, so that what
//! containers do to their host is done to nothing else.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use test_kit::{Container, Mount, NetNs, Process, try_wait_until};

use crate::Node;

const LIMIT: Duration = Duration::from_secs(60);
/// Where the machine has the program that becomes a container's process, and images.
const PROGRAMS: &str = "/tests";
const IMAGES: &str = "/images";
/// Files of containers.
const CONTAINERS: &str = "/containers";

/// A machine. Dropping it ends its processes, those of containers too.
#[derive(Debug)]
pub struct Machine {
    _first: Process,
    _cgroup: Option<EmptyAtDrop>,
    /// The first process, as this process sees it.
    pid: u32,
    root: PathBuf,
    ns: NetNs,
}

impl Machine {
    /// Starts a machine in the network namespace of a node, and in its cgroup if it has one, with images that are folders of
    /// `images`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(node: &Node, images: &Path) -> Self {
        let root = node.sandbox().dir().join("machine");
        for folder in ["etc/sysctl.d", "opt", "run", "var/lib", "tmp", "containers"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        symlink("/run", root.join("var/run")).unwrap();
        let programs = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples");
        let is_built = programs.join("container").is_file();
        assert!(
            is_built,
            "{}/container is not built: cargo build -p test-kit --examples",
            programs.display()
        );
        let read_only = |source: &Path, target: &str| Mount {
            source: source.to_owned(),
            target: target.into(),
            is_read_only: true,
            ..Mount::default()
        };
        // Programs that were built here need the libraries of this machine, as they do on a host of Debian's.
        let mut mounts = vec![
            read_only(Path::new("/usr"), "/usr"),
            // Mounts of a container stay in its namespace because this one is not shared.
            Mount { source: root.join("containers"), target: CONTAINERS.into(), ..Mount::default() },
            read_only(&programs, PROGRAMS),
            Mount { source: images.to_owned(), target: IMAGES.into(), ..Mount::default() },
        ];
        for name in ["bin", "sbin", "lib", "lib64"] {
            let path = Path::new("/").join(name);
            match fs::read_link(&path) {
                Ok(link) => symlink(link, root.join(name)).unwrap(),
                Err(_) if path.is_dir() => mounts.push(read_only(&path, path.to_str().unwrap())),
                Err(_) => {}
            }
        }
        let first = Container {
            root: root.clone(),
            mounts,
            is_privileged: true,
            is_host: true,
            allow_privilege_escalation: true,
            environment: vec![("PATH".to_owned(), "/usr/sbin:/usr/bin".to_owned())],
            program: ["sleep", "infinity"].map(str::to_owned).to_vec(),
            ..Container::default()
        };
        let file = root.join("containers/machine");
        fs::write(&file, first.to_text()).unwrap();
        let ns = node.host().clone();
        let options = ["--mount", "--propagation=private", "--pid", "--fork", "--kill-child=KILL"];
        let mut command = match node.sandbox().cgroup() {
            // The root of a cgroup v2 that is mounted on the machine is this cgroup, not the one of this whole machine.
            Some(cgroup) => {
                let mut command = ns.command("bash");
                command
                    .args(["-c", "echo 0 >$0/cgroup.procs && exec unshare --cgroup \"$@\""])
                    .arg(cgroup)
                    .args(options);
                command
            }
            None => {
                let mut command = ns.command("unshare");
                command.args(options);
                command
            }
        };
        command.arg(programs.join("container")).arg(file);
        let process = Process::start(&mut command).unwrap();
        let find = || match descendants(process.id()).first() {
            Some(pid) if name(*pid) == "sleep" => Ok(*pid),
            _ => Err("the machine's first process does not sleep".to_owned()),
        };
        let pid = try_wait_until(LIMIT, find).unwrap();
        Machine { _first: process, _cgroup: node.sandbox().cgroup().map(EmptyAtDrop), pid, root, ns }
    }

    /// Returns its root folder. File systems that it mounts are not seen there.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns a command that runs on it.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.ns.command("nsenter");
        command.args(["--mount", "--pid", "--target"]).arg(self.pid.to_string()).arg("--").arg(program);
        command
    }

    /// Runs a command line on it, split at white space. Returns its output.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn exec(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let output = self.command(words.next().unwrap()).args(words).output().unwrap();
        assert!(output.status.success(), "{line}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the command that starts a container of an image, with a layer for its changes that stays for the next one of this
    /// name.
    ///
    /// # Panics
    /// When its files cannot be written.
    #[must_use]
    pub fn container_command(&self, name: &str, image: &Path, container: &Container) -> Command {
        let folder = Path::new(CONTAINERS).join(name);
        let image = Path::new(IMAGES).join(image.file_name().unwrap());
        let layers = [image, folder.join("changes"), folder.join("work")];
        let container = Container { root: folder.join("root"), overlay: Some(layers), ..container.clone() };
        let file = self.write(name, &container);
        let mut command = self.command("unshare");
        command
            .args(["--mount", "--propagation=unchanged", "--pid", "--fork"])
            .args([format!("{PROGRAMS}/container"), file]);
        command
    }

    /// Returns the command that runs a program in the container of the process `pid`, as this process sees it.
    ///
    /// # Panics
    /// When its files cannot be written.
    #[must_use]
    pub fn hook_command(&self, name: &str, pid: u32, container: &Container) -> Command {
        let file = self.write(name, container);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
        // The ids in each namespace, from this process's to the container's own, which is inside of the machine's.
        let of_machine = pids.split_whitespace().rev().nth(1).unwrap();
        let mut command = self.command(&format!("{PROGRAMS}/container"));
        command.args([&file, of_machine]);
        command
    }

    fn write(&self, name: &str, container: &Container) -> String {
        fs::write(self.root.join(format!("containers/{name}.container")), container.to_text()).unwrap();
        format!("{CONTAINERS}/{name}.container")
    }
}

/// A cgroup that has no processes any more once this is dropped, as its folder cannot be removed before. Those of the machine
/// are killed with its first process, but not at once.
#[derive(Debug)]
struct EmptyAtDrop(PathBuf);

impl Drop for EmptyAtDrop {
    fn drop(&mut self) {
        let is_empty = || match fs::read_to_string(self.0.join("cgroup.procs")) {
            Ok(list) if !list.trim().is_empty() => Err(format!("{} has {list}", self.0.display())),
            _ => Ok(()),
        };
        let _ = try_wait_until(LIMIT, is_empty);
    }
}

/// Returns the processes that a process has started, and those that they have: the child, its child, and so on.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut last = pid;
    let children =
        |pid: u32| fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    while let Some(child) = children(last).split_whitespace().next().and_then(|child| child.parse().ok()) {
        found.push(child);
        last = child;
    }
    found
}

/// Returns the name of a process.
pub(crate) fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Returns both outputs of a process.
pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
