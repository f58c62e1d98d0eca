//! The bpf(2) system call: one attribute struct a command, laid out as in `linux/bpf.h`.
#![expect(unsafe_code, reason = "the bpf(2) system call takes pointers")]

use std::ffi::{CString, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::calls::observed;

/// Commands of `enum bpf_cmd`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgLoad = 5,
    ObjPin = 6,
    ObjGet = 7,
    ProgTestRun = 10,
    ProgFdById = 13,
    MapFdById = 14,
    ObjInfo = 15,
    BtfLoad = 18,
    MapLookupAndDelete = 21,
    MapFreeze = 22,
    MapLookupBatch = 24,
    MapUpdateBatch = 26,
    MapDeleteBatch = 27,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkDetach = 34,
}

impl Command {
    /// Returns the name under which Cilium counts the command; commands that it does not count have the kernel's name.
    pub(crate) fn operation(self) -> &'static str {
        match self {
            Command::MapCreate => "create",
            Command::MapLookup => "lookup",
            Command::MapUpdate => "update",
            Command::MapDelete => "delete",
            Command::MapNextKey => "getNextKey",
            Command::ProgLoad => "progLoad",
            Command::ObjPin => "objPin",
            Command::ObjGet => "objGet",
            Command::ProgTestRun => "progTestRun",
            Command::ProgFdById | Command::MapFdById => "getFDByID",
            Command::ObjInfo => "getInfoByFD",
            Command::BtfLoad => "btfLoad",
            Command::MapLookupAndDelete => "lookupAndDelete",
            Command::MapFreeze => "freeze",
            Command::MapLookupBatch => "lookupBatch",
            Command::MapUpdateBatch => "updateBatch",
            Command::MapDeleteBatch => "deleteBatch",
            Command::LinkCreate => "linkCreate",
            Command::LinkUpdate => "linkUpdate",
            Command::LinkDetach => "linkDetach",
        }
    }
}

/// Plain data without padding: the attribute structs below.
///
/// # Safety
/// `repr(C)`, integers only, explicit padding.
pub(crate) unsafe trait Attr {}

macro_rules! attrs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Default, Debug)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
        // JUSTIFICATION: the system call reads the struct as bytes.
        // SAFETY: repr(C), integer fields, padding spelled out; sizes are asserted below.
        unsafe impl Attr for $name {}
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "padding");
    )* };
}

attrs! {
    MapCreateAttr {
        map_type: u32, key_size: u32, value_size: u32, max_entries: u32, map_flags: u32, inner_map_fd: u32,
        numa_node: u32, name: [u8; 16], ifindex: u32, btf_fd: u32, btf_key_type_id: u32, btf_value_type_id: u32,
        btf_vmlinux_value_type_id: u32, map_extra: u64,
    }
    ElementAttr { map_fd: u32, pad: u32, key: u64, value: u64, flags: u64 }
    BatchAttr { in_batch: u64, out_batch: u64, keys: u64, values: u64, count: u32, map_fd: u32, elem_flags: u64, flags: u64 }
    ProgLoadAttr {
        prog_type: u32, insn_cnt: u32, insns: u64, license: u64, log_level: u32, log_size: u32, log_buf: u64,
        kern_version: u32, prog_flags: u32, prog_name: [u8; 16], prog_ifindex: u32, expected_attach_type: u32,
        prog_btf_fd: u32, func_info_rec_size: u32, func_info: u64, func_info_cnt: u32, line_info_rec_size: u32,
        line_info: u64, line_info_cnt: u32, attach_btf_id: u32,
    }
    BtfLoadAttr { btf: u64, log_buf: u64, btf_size: u32, log_size: u32, log_level: u32, pad: u32 }
    ObjAttr { pathname: u64, fd: u32, flags: u32 }
    IdAttr { id: u32, next_id: u32, flags: u32 }
    InfoAttr { fd: u32, info_len: u32, info: u64 }
    FdAttr { fd: u32, pad: u32 }
    LinkCreateAttr { prog_fd: u32, ifindex: u32, attach_type: u32, flags: u32, relative: u32, pad: u32, revision: u64 }
    LinkUpdateAttr { link_fd: u32, prog_fd: u32, flags: u32, old_prog_fd: u32 }
    TestRunAttr {
        prog_fd: u32, retval: u32, data_size_in: u32, data_size_out: u32, data_in: u64, data_out: u64, repeat: u32,
        duration: u32, ctx_size_in: u32, ctx_size_out: u32, ctx_in: u64, ctx_out: u64, flags: u32, cpu: u32,
        batch_size: u32, pad: u32,
    }
    /// `struct bpf_map_info`.
    RawMapInfo {
        map_type: u32, id: u32, key_size: u32, value_size: u32, max_entries: u32, map_flags: u32, name: [u8; 16],
        ifindex: u32, btf_vmlinux_value_type_id: u32, netns_dev: u64, netns_ino: u64, btf_id: u32,
        btf_key_type_id: u32, btf_value_type_id: u32, btf_vmlinux_id: u32, map_extra: u64,
    }
    /// The head of `struct bpf_prog_info`, up to the run-time numbers.
    RawProgInfo {
        prog_type: u32, id: u32, tag: [u8; 8], jited_len: u32, xlated_len: u32, jited: u64, xlated: u64,
        load_time: u64, created_by_uid: u32, nr_map_ids: u32, map_ids: u64, name: [u8; 16], ifindex: u32, bits: u32,
        netns_dev: u64, netns_ino: u64, nr_jited_ksyms: u32, nr_jited_func_lens: u32, jited_ksyms: u64,
        jited_func_lens: u64, btf_id: u32, func_info_rec_size: u32, func_info: u64, nr_func_info: u32,
        nr_line_info: u32, line_info: u64, jited_line_info: u64, nr_jited_line_info: u32, line_info_rec_size: u32,
        jited_line_info_rec_size: u32, nr_prog_tags: u32, prog_tags: u64, run_time_ns: u64, run_cnt: u64,
        recursion_misses: u64, verified_insns: u32, attach_btf_obj_id: u32, attach_btf_id: u32, pad: u32,
    }
    /// The head of `struct bpf_link_info` with the two words that tcx, netkit and XDP links have.
    RawLinkInfo { link_type: u32, id: u32, prog_id: u32, pad: u32, ifindex: u32, attach_type: u32, more: [u64; 4] }
}

/// Runs a command that returns an integer.
///
/// # Safety
/// Every pointer in `attr` must be valid for what the command reads and writes there.
pub(crate) unsafe fn bpf<A: Attr>(command: Command, attr: &mut A) -> io::Result<c_long> {
    // JUSTIFICATION: see the loop around the system call.
    // SAFETY: the caller guarantees the pointers.
    observed(command, || unsafe { repeated(command, attr) })
}

/// Runs a command, again if a signal has interrupted it.
///
/// # Safety
/// As [`bpf`].
unsafe fn repeated<A: Attr>(command: Command, attr: &mut A) -> io::Result<c_long> {
    loop {
        // JUSTIFICATION: bpf(2) has no wrapper in libc.
        // SAFETY: `attr` is a live struct of the given size; the caller guarantees that its pointers are valid for the
        // command.
        let answer =
            unsafe { libc::syscall(libc::SYS_bpf, command as i32, attr as *mut A, size_of::<A>() as u32) };
        if answer >= 0 {
            return Ok(answer);
        }
        let error = io::Error::last_os_error();
        // A signal may interrupt the verifier, which then returns EAGAIN: retry. Other commands do not return it for a
        // signal.
        if matches!(command, Command::ProgLoad) && error.raw_os_error() == Some(libc::EAGAIN) {
            continue;
        }
        return Err(error);
    }
}

/// Runs a command that returns a new file descriptor.
///
/// # Safety
/// As [`bpf`]; the command must be one that creates a descriptor.
pub(crate) unsafe fn bpf_fd<A: Attr>(command: Command, attr: &mut A) -> io::Result<OwnedFd> {
    // JUSTIFICATION: as in bpf().
    // SAFETY: the caller guarantees the pointers; the result is a new descriptor that nothing else owns.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd as i32)) }
}

/// Runs a command with an attribute without pointers.
pub(crate) fn plain<A: Attr>(command: Command, attr: &mut A) -> io::Result<c_long> {
    debug_assert!(matches!(
        command,
        Command::MapFreeze
            | Command::LinkCreate
            | Command::LinkUpdate
            | Command::LinkDetach
            | Command::MapCreate
    ));
    // JUSTIFICATION: as in bpf().
    // SAFETY: no pointers.
    unsafe { bpf(command, attr) }
}

/// Runs a command as [`plain`] that returns a new file descriptor.
pub(crate) fn plain_fd<A: Attr>(command: Command, attr: &mut A) -> io::Result<OwnedFd> {
    // JUSTIFICATION: as in bpf_fd().
    // SAFETY: no pointers; the commands used with it create a descriptor.
    unsafe { bpf_fd(command, attr) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attr = ObjAttr { pathname: path.as_ptr() as u64, fd: fd.as_raw_fd() as u32, flags: 0 };
    // JUSTIFICATION: the kernel reads the path.
    // SAFETY: path is a NUL-terminated string that lives until the call returns.
    unsafe { bpf(Command::ObjPin, &mut attr) }.map(drop)
}

pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attr = ObjAttr { pathname: path.as_ptr() as u64, fd: 0, flags: 0 };
    // JUSTIFICATION: the kernel reads the path.
    // SAFETY: path is a NUL-terminated string that lives until the call returns.
    unsafe { bpf_fd(Command::ObjGet, &mut attr) }
}

pub(crate) fn fd_by_id(command: Command, id: u32) -> io::Result<OwnedFd> {
    debug_assert!(matches!(command, Command::ProgFdById | Command::MapFdById));
    plain_fd_by_id(command, id)
}

fn plain_fd_by_id(command: Command, id: u32) -> io::Result<OwnedFd> {
    let mut attr = IdAttr { id, ..IdAttr::default() };
    // JUSTIFICATION: as in bpf_fd().
    // SAFETY: no pointers; both commands create a descriptor.
    unsafe { bpf_fd(command, &mut attr) }
}

/// Fills one of the `Raw*Info` structs; additional fields of newer kernels are cut off, fields unknown to older ones
/// stay zero.
pub(crate) fn info<I: Attr + Default>(fd: BorrowedFd<'_>) -> io::Result<I> {
    let mut info = I::default();
    let mut attr =
        InfoAttr { fd: fd.as_raw_fd() as u32, info_len: size_of::<I>() as u32, info: &raw mut info as u64 };
    // JUSTIFICATION: the kernel writes the info struct.
    // SAFETY: info lives here and has the length given; any bytes are valid integers.
    unsafe { bpf(Command::ObjInfo, &mut attr) }?;
    Ok(info)
}

/// Returns the kernel's name of an object: at most 15 bytes, other characters than letters, digits, `_` and `.`
/// replaced.
pub(crate) fn kernel_name(name: &str) -> [u8; 16] {
    let mut out = [0; 16];
    for (to, from) in out.iter_mut().take(15).zip(name.bytes()) {
        *to = if from.is_ascii_alphanumeric() || from == b'_' || from == b'.' { from } else { b'_' };
    }
    out
}

/// Returns the text of a kernel name.
pub(crate) fn name_text(name: &[u8; 16]) -> String {
    String::from_utf8_lossy(name.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}
