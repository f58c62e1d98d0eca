//! One network namespace, held open by a descriptor.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;

use crate::sys;

/// A network namespace of a sandbox. Clones are the same namespace.
#[derive(Clone, Debug)]
pub struct NetNs {
    fd: Arc<File>,
    path: PathBuf,
}

impl NetNs {
    /// Bind-mounts the calling thread's namespace, which is new, at `path`.
    pub(crate) fn pin_current(path: PathBuf) -> io::Result<Self> {
        reset_inherited()?;
        let source = "/proc/thread-self/ns/net";
        File::create(&path)?;
        sys::mount(source, &path, "", libc::MS_BIND)?;
        Ok(Self { fd: Arc::new(File::open(&path)?), path })
    }

    /// Creates a namespace, loopback up, bind-mounted at `path`.
    pub fn create(path: PathBuf) -> io::Result<Self> {
        let ns = on_thread("netns", || {
            sys::unshare(libc::CLONE_NEWNET)?;
            Self::pin_current(path)
        })?;
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    /// Unmounts a namespace of [`create`](Self::create), as a container runtime does: it ends with its last reference.
    pub fn remove(self) -> io::Result<()> {
        sys::unmount(&self.path)?;
        std::fs::remove_file(&self.path)
    }

    /// Creates a namespace, loopback up, that ends with its last user: nothing is mounted.
    pub fn detached() -> io::Result<Self> {
        let ns = on_thread("netns", || {
            sys::unshare(libc::CLONE_NEWNET)?;
            reset_inherited()?;
            Self::of_thread()
        })?;
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    /// Returns the calling thread's namespace, without a bind mount: its path is that of a descriptor of this process.
    pub(crate) fn of_thread() -> io::Result<Self> {
        let fd = File::open("/proc/thread-self/ns/net")?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()));
        Ok(Self { fd: Arc::new(fd), path })
    }

    /// Returns the path under which processes of the sandbox can open it, as a
    /// container runtime passes it to a CNI plugin.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the descriptor that keeps it alive.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Runs `work` on a thread of its own inside the namespace.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_thread("in-netns", || {
            sys::setns(self.fd(), libc::CLONE_NEWNET).expect("the namespace can be entered");
            work()
        })
    }

    /// Returns a command that will run inside the namespace; `self` must live until it
    /// has been started.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::start_in_netns(&mut command, self.fd());
        command
    }

    /// Runs a command line (split at white space) inside the namespace; returns its
    /// standard output, or an error with command line and standard error.
    pub fn exec(&self, line: &str) -> io::Result<String> {
        let mut words = line.split_whitespace();
        let program = words.next().ok_or_else(|| io::Error::other("empty command line"))?;
        let output = self.command(program).args(words).output()?;
        checked(line, output)
    }

    /// Runs `ip` with the given arguments inside the namespace.
    pub fn ip(&self, arguments: &str) -> io::Result<String> {
        self.exec(&format!("ip {arguments}"))
    }

    /// Runs many `ip` commands, one per line, in a single process.
    pub fn ip_batch(&self, lines: &str) -> io::Result<String> {
        use std::io::Write;
        let mut child = self
            .command("ip")
            .args(["-batch", "-"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().ok_or_else(|| io::Error::other("no standard input"))?;
        stdin.write_all(lines.as_bytes())?;
        drop(stdin);
        checked("ip -batch -", child.wait_with_output()?)
    }

    /// Creates a veth pair, `name` here and `peer_name` inside of `peer`, both up, without duplicate address detection.
    pub fn veth(&self, name: &str, peer: &NetNs, peer_name: &str) -> io::Result<()> {
        let target = peer.path.display();
        self.ip(&format!("link add {name} type veth peer name {peer_name} netns {target}"))?;
        // A router resolves the next hop of a forwarded IPv6 packet from its link-local address, and sends no neighbour
        // solicitation at all while that address is tentative: for a second or two a new link would lose packets.
        for (netns, name) in [(self, name), (peer, peer_name)] {
            netns.set_sysctl(&format!("net/ipv6/conf/{name}/accept_dad"), "0")?;
            netns.ip(&format!("link set {name} up"))?;
        }
        Ok(())
    }

    /// Makes packets that leave by a device have their checksums, as those of a network card: between the ends of a veth
    /// pair the kernel leaves them out, and programs of XDP cannot know.
    pub fn disable_checksum_offload(&self, device: &str) -> io::Result<()> {
        self.run(|| sys::disable_checksum_offload(device))
    }

    /// Reads a sysctl by its path below `/proc/sys/`, as `net/ipv4/ip_forward`.
    pub fn sysctl(&self, key: &str) -> io::Result<String> {
        self.run(|| std::fs::read_to_string(Path::new("/proc/sys").join(key)))
            .map(|text| text.trim_end().to_owned())
    }

    /// Writes a sysctl of this namespace.
    pub fn set_sysctl(&self, key: &str, value: &str) -> io::Result<()> {
        self.run(|| std::fs::write(Path::new("/proc/sys").join(key), value))
    }
}

/// IPv4 settings that a new namespace inherits from the initial one (`net.core.devconf_inherit_init_net`), at the
/// kernel's defaults: Docker turns forwarding on, systemd the reverse path filter, and no test may depend on either.
const INHERITED: [(&str, &str); 3] = [
    ("net/ipv4/ip_forward", "0"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
];

/// Resets the calling thread's namespace to the kernel's defaults.
fn reset_inherited() -> io::Result<()> {
    INHERITED.iter().try_for_each(|(key, value)| std::fs::write(Path::new("/proc/sys").join(key), value))
}

fn checked(line: &str, output: Output) -> io::Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{line}: {}: {}", output.status, stderr.trim_end())))
}

/// Runs `work` on a new thread, so that its changes of the thread's
/// namespaces end with it.
pub(crate) fn on_thread<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let handle = thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, work)
            .expect("a thread can be started");
        match handle.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sandbox, require_root};

    #[test]
    fn a_namespace_has_the_kernels_defaults_whatever_the_machine_has() {
        require_root!();
        let sandbox = Sandbox::new().unwrap();
        for ns in [sandbox.host().clone(), sandbox.netns("pod").unwrap()] {
            for (key, value) in INHERITED {
                assert_eq!(ns.sysctl(key).unwrap(), value, "{key}");
                // As on a machine with Docker.
                ns.set_sysctl(key, "1").unwrap();
            }
            ns.run(reset_inherited).unwrap();
            for (key, value) in INHERITED {
                assert_eq!(ns.sysctl(key).unwrap(), value, "{key}");
            }
        }
    }
}
