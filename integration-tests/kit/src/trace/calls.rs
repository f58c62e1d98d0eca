//! The system calls that change state which outlives the process.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::sys::{self, pid_t};

/// A call that has changed kernel or files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Write {
    /// The kind of call, as `bpf MAP_UPDATE_ELEM` or `rename`.
    pub kind: String,
    /// The object of the call: a path, a map's name.
    pub what: String,
    /// The name of the thread that has made it.
    pub thread: String,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.what)
    }
}

/// Returns the counted calls. Maps, programs and BTF that are neither pinned nor linked die with the process, so a kill
/// after their creation is equivalent to one before it: of bpf(2) only changes of persistent objects count, of open(2)
/// only creation and truncation.
pub(super) fn watched() -> Vec<i64> {
    #[cfg(target_arch = "x86_64")]
    let old = [
        libc::SYS_open,
        libc::SYS_creat,
        libc::SYS_rename,
        libc::SYS_unlink,
        libc::SYS_mkdir,
        libc::SYS_rmdir,
        libc::SYS_link,
        libc::SYS_symlink,
        libc::SYS_chmod,
        libc::SYS_mknod,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let old = [];
    let all = [
        libc::SYS_bpf,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_pwrite64,
        libc::SYS_pwritev,
        libc::SYS_pwritev2,
        libc::SYS_sendfile,
        libc::SYS_copy_file_range,
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_bind,
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_unlinkat,
        libc::SYS_mkdirat,
        libc::SYS_mknodat,
        libc::SYS_linkat,
        libc::SYS_symlinkat,
        libc::SYS_ftruncate,
        libc::SYS_truncate,
        libc::SYS_fallocate,
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_move_mount,
        libc::SYS_setxattr,
        libc::SYS_fsetxattr,
        // Writes that the tracer cannot observe: their use fails the test.
        libc::SYS_io_uring_setup,
    ];
    all.into_iter().chain(old).collect()
}

/// Returns the change of a call; `None` if it has no effect that outlives the process.
pub(super) fn write(tid: pid_t, call: i64, arguments: &[u64; 6]) -> Option<Write> {
    let (kind, what) = change(&Process(tid), call, arguments)?;
    let thread = fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
    Some(Write { kind, what, thread: thread.trim_end().to_owned() })
}

/// Kind and object of a change.
type Change = (String, String);

fn change(process: &Process, call: i64, arguments: &[u64; 6]) -> Option<Change> {
    let [first, second, third, fourth, ..] = *arguments;
    // Log files are not state, and devices have no state of the agent.
    let about = |kind: &str, what: String| {
        (!what.ends_with(".log") && !what.starts_with("/dev/")).then(|| (kind.to_owned(), what))
    };
    let file = |kind: &str, fd| about(kind, process.file(fd)?);
    match call {
        libc::SYS_bpf => process.bpf(first, second),
        libc::SYS_sendto => process.netlink(first, second),
        // struct msghdr: the list of buffers at 16; struct iovec: the buffer at 0.
        libc::SYS_sendmsg | libc::SYS_sendmmsg => {
            process.netlink(first, process.word(process.word(second + 16)?)?)
        }
        libc::SYS_write | libc::SYS_pwrite64 => file("write", first),
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => file("writev", first),
        libc::SYS_sendfile
        | libc::SYS_fallocate
        | libc::SYS_ftruncate
        | libc::SYS_fchmod
        | libc::SYS_fsetxattr => file(name(call), first),
        libc::SYS_copy_file_range => file(name(call), third),
        libc::SYS_openat => {
            (third as i32 & MAKES != 0).then(|| process.path(first, second)).and_then(|p| about("open", p))
        }
        libc::SYS_openat2 => (process.word(third)? as i32 & MAKES != 0)
            .then(|| process.path(first, second))
            .and_then(|path| about("open", path)),
        libc::SYS_bind => process.bind(second),
        libc::SYS_renameat | libc::SYS_renameat2 => about("rename", process.path(third, fourth)),
        libc::SYS_linkat => about("link", process.path(third, fourth)),
        libc::SYS_symlinkat => about("symlink", process.path(second, third)),
        libc::SYS_unlinkat | libc::SYS_mkdirat | libc::SYS_mknodat | libc::SYS_fchmodat => {
            about(name(call), process.path(first, second))
        }
        libc::SYS_mount => about("mount", process.text(second)),
        libc::SYS_io_uring_setup => about("io_uring", "its writes cannot be observed".to_owned()),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open if second as i32 & MAKES == 0 => None,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename | libc::SYS_link | libc::SYS_symlink => about(name(call), process.text(second)),
        _ => about(name(call), process.text(first)),
    }
}

/// Flags of open(2) that modify files.
const MAKES: i32 = libc::O_CREAT | libc::O_TRUNC;

fn name(call: i64) -> &'static str {
    match call {
        libc::SYS_sendfile => "sendfile",
        libc::SYS_copy_file_range => "copy_file_range",
        libc::SYS_fallocate => "fallocate",
        libc::SYS_ftruncate | libc::SYS_truncate => "truncate",
        libc::SYS_fchmod | libc::SYS_fchmodat => "chmod",
        libc::SYS_fsetxattr | libc::SYS_setxattr => "setxattr",
        libc::SYS_unlinkat => "unlink",
        libc::SYS_mkdirat => "mkdir",
        libc::SYS_mknodat => "mknod",
        libc::SYS_umount2 => "umount",
        libc::SYS_move_mount => "move_mount",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open | libc::SYS_creat => "open",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename => "rename",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink => "unlink",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir => "mkdir",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rmdir => "rmdir",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link => "link",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_symlink => "symlink",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => "chmod",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mknod => "mknod",
        _ => "another call",
    }
}

/// Returns the commands of bpf(2) with persistent effects (linux/bpf.h).
fn bpf_command(command: u64) -> Option<(&'static str, Target)> {
    Some(match command {
        2 => ("bpf MAP_UPDATE_ELEM", Target::Map),
        3 => ("bpf MAP_DELETE_ELEM", Target::Map),
        6 => ("bpf OBJ_PIN", Target::Path),
        8 => ("bpf PROG_ATTACH", Target::Other),
        9 => ("bpf PROG_DETACH", Target::Other),
        21 => ("bpf MAP_LOOKUP_AND_DELETE_ELEM", Target::Map),
        // struct bpf_attr, batch: the map's descriptor at 36.
        25 => ("bpf MAP_LOOKUP_AND_DELETE_BATCH", Target::Batch),
        26 => ("bpf MAP_UPDATE_BATCH", Target::Batch),
        27 => ("bpf MAP_DELETE_BATCH", Target::Batch),
        28 => ("bpf LINK_CREATE", Target::Other),
        29 => ("bpf LINK_UPDATE", Target::Other),
        34 => ("bpf LINK_DETACH", Target::Other),
        _ => return None,
    })
}

/// The attribute of a bpf(2) command that identifies its object.
enum Target {
    Map,
    Batch,
    Path,
    Other,
}

/// A stopped thread, and through it its process.
struct Process(pid_t);

impl Process {
    fn bpf(&self, command: u64, attributes: u64) -> Option<Change> {
        let (kind, target) = bpf_command(command)?;
        let map = |offset| {
            let fd = u64::from(u32::try_from(self.word(attributes + offset)? & 0xffff_ffff).ok()?);
            sys::map_name(self.0, fd)
        };
        let what = match target {
            Target::Map => map(0),
            Target::Batch => map(36),
            Target::Path => self.word(attributes).map(|path| self.text(path)),
            Target::Other => None,
        };
        Some((kind.to_owned(), what.unwrap_or_default()))
    }

    /// Returns a message to the kernel, if it requests a change.
    fn netlink(&self, fd: u64, buffer: u64) -> Option<Change> {
        let (family, protocol) = sys::socket_kind(self.0, fd)?;
        if family != libc::AF_NETLINK || protocol == libc::NETLINK_SOCK_DIAG {
            return None;
        }
        // struct nlmsghdr: the type at 4. In each group of four routing messages the third is RTM_GET*, a read.
        let kind = (self.word(buffer)? >> 32) as u16;
        if protocol == libc::NETLINK_ROUTE && (kind < 16 || kind % 4 == 2) {
            return None;
        }
        let protocol = match protocol {
            libc::NETLINK_ROUTE => "route",
            libc::NETLINK_NETFILTER => "netfilter",
            libc::NETLINK_GENERIC => "generic",
            _ => "other",
        };
        Some((format!("netlink {protocol}"), format!("message {kind}")))
    }

    /// Returns the creation of a unix socket in the file system.
    fn bind(&self, address: u64) -> Option<Change> {
        let head = self.word(address)?;
        let is_path = head as u16 == libc::AF_UNIX as u16 && head >> 16 & 0xff != 0;
        is_path.then(|| ("bind".to_owned(), self.text(address + 2)))
    }

    /// Returns the path of a regular file or of a kernel file; `None` for pipes, sockets and devices.
    fn file(&self, fd: u64) -> Option<String> {
        let path = fs::read_link(format!("/proc/{}/fd/{fd}", self.0)).ok()?;
        let path = path.to_string_lossy().into_owned();
        path.starts_with('/').then_some(path)
    }

    fn path(&self, folder: u64, text: u64) -> String {
        let text = self.text(text);
        if text.starts_with('/') || folder as i32 == libc::AT_FDCWD {
            return text;
        }
        let folder = fs::read_link(format!("/proc/{}/fd/{folder}", self.0)).unwrap_or_default();
        folder.join(text).to_string_lossy().into_owned()
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory()?.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// Reads a NUL-terminated string.
    fn text(&self, address: u64) -> String {
        let mut bytes = [0; 4096];
        // Bytes after the text may lie on a page that is not mapped.
        let to_page = 4096 - (address as usize & 4095);
        let read = |bytes: &mut [u8]| self.memory()?.read_at(bytes, address).ok();
        let first = read(&mut bytes[..to_page]).unwrap_or(0);
        let length = match bytes[..first].contains(&0) {
            true => first,
            false => read(&mut bytes).unwrap_or(first),
        };
        let text = bytes[..length].split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    fn memory(&self) -> Option<File> {
        File::open(format!("/proc/{}/mem", self.0)).ok()
    }
}
