//! Features of the kernel: those that the datapath needs, checked at start, and those that it uses if present.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::error::{Error, Result};
use crate::link::{Direction, Link};
use crate::object::load_instructions;
use crate::prog::Program;
use crate::raw_map::RawMap;
use crate::spec::{Layout, MapFlags, MapSpec, MapType};

/// The optional features of the running kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Programs attach by tcx links (Linux 6.6); else by tc filters.
    pub tcx: bool,
}

/// Helpers that the datapath calls: id, name and purpose as errors print them, first Linux release.
const HELPERS: [(u64, &str, &str, &str); 6] = [
    (152, "the helper bpf_redirect_neigh", "sending packets to other nodes", "5.10"),
    (155, "the helper bpf_redirect_peer", "delivering packets into a pod's namespace", "5.10"),
    (43, "the helper bpf_skb_change_head", "delivering packets to devices without Ethernet", "4.10"),
    (38, "the helper bpf_skb_change_tail", "answering packets with ICMP errors", "4.9"),
    (69, "the helper bpf_fib_lookup", "route lookups in programs", "4.18"),
    (25, "the helper bpf_perf_event_output", "sending events to monitors", "4.4"),
];

/// Encodes an instruction (`struct bpf_insn`) with offset 0.
pub(crate) const fn instruction(code: u8, dst: u8, src: u8, imm: i32) -> u64 {
    u64::from_le_bytes({
        let i = imm.to_le_bytes();
        [code, dst | src << 4, 0, 0, i[0], i[1], i[2], i[3]]
    })
}

/// The first Linux releases that load programs which mix BPF-to-BPF calls and tail calls, as all programs of the
/// datapath do. Support is per architecture (`bpf_jit_supports_subprog_tailcalls`).
const SUBPROG_TAIL_CALLS_SINCE: &str = "5.10, on arm64 6.0";

const RETURN_0: [u64; 2] = [instruction(0xb7, 0, 0, 0), instruction(0x95, 0, 0, 0)];

/// Loads a program from instructions; returns the verifier's log, and the program or the error.
type Load<'a> = dyn Fn(&[u64]) -> (String, io::Result<OwnedFd>) + 'a;

/// Checks that a program may make a BPF-to-BPF call and a tail call through `array`.
fn check_subprog_tail_calls(array: BorrowedFd<'_>, load: &Load<'_>) -> Result<()> {
    let mov = |dst, src| instruction(0xbf, dst, src, 0);
    const PSEUDO_CALL: u8 = 1;
    const PSEUDO_MAP_FD: u8 = 1;
    const TAIL_CALL: i32 = 12;
    let program = [
        mov(6, 1),
        instruction(0x85, 0, PSEUDO_CALL, 7), // the subprogram after the first exit
        mov(1, 6),
        instruction(0x18, 2, PSEUDO_MAP_FD, array.as_raw_fd()),
        0,
        instruction(0xb7, 3, 0, 0),
        instruction(0x85, 0, 0, TAIL_CALL),
        RETURN_0[0],
        RETURN_0[1],
        RETURN_0[0],
        RETURN_0[1],
    ];
    load(&program).1.map(drop).map_err(|source| Error::Feature {
        feature: "BPF-to-BPF calls in programs that make tail calls (requires support by the kernel's BPF JIT compiler, enabled by net.core.bpf_jit_enable)",
        purpose: "the whole datapath",
        since: SUBPROG_TAIL_CALLS_SINCE,
        source,
    })
}

/// Checks the features that the datapath needs and detects the optional ones. The error names the first missing
/// feature, its purpose and the first Linux release that has it. Takes a few milliseconds; pins and attaches nothing.
pub fn probe() -> Result<Features> {
    let missing = |feature, purpose, since| move |source| Error::Feature { feature, purpose, since, source };
    let layout = |map_type, key_size, value_size, flags| Layout {
        map_type,
        key_size,
        value_size,
        max_entries: 2,
        flags,
    };
    let create = |layout: Layout, inner: Option<Layout>| {
        let spec = MapSpec { name: "probe".into(), layout, inner };
        RawMap::create(&spec).map_err(|e| match e {
            Error::Syscall { source, .. } => source,
            other => io::Error::other(other),
        })
    };

    let hash = create(layout(MapType::Hash, 4, 4, MapFlags::NONE), None).map_err(missing(
        "the bpf(2) system call (CONFIG_BPF_SYSCALL), or this process lacks the privileges for it (root, or CAP_BPF and CAP_NET_ADMIN)",
        "the whole datapath",
        "5.8",
    ))?;
    let trie = layout(MapType::LpmTrie, 12, 12, MapFlags(0x81));
    create(trie, None).map_err(missing("longest prefix match maps", "the ipcache and policies", "4.11"))?;
    create(layout(MapType::ArrayOfMaps, 4, 4, MapFlags::NONE), Some(trie)).map_err(missing(
        "maps of maps",
        "one policy map for each endpoint",
        "4.12",
    ))?;
    create(layout(MapType::LruPerCpuHash, 12, 16, MapFlags(2)), None).map_err(missing(
        "per-CPU LRU maps",
        "policy counters",
        "4.10",
    ))?;
    hash.update_batch(&1u32.to_ne_bytes(), &1u32.to_ne_bytes())
        .and_then(|()| hash.entries())
        .map_err(|e| io::Error::other(e.to_string()))
        .map_err(missing("batch operations on maps", "reading connection tables", "5.6"))?;

    let program = Program::from_instructions("probe", &RETURN_0)?;
    for (number, feature, purpose, since) in HELPERS {
        let (log, result) =
            load_instructions("probe", &[instruction(0x85, 0, 0, number as i32), RETURN_0[1]]);
        // Known helpers fail as well, since the call has no arguments; only the verifier's log distinguishes both cases.
        let unknown = ["invalid func", "unknown func", "cannot use helper"].iter().any(|w| log.contains(w));
        if let (true, Err(source)) = (unknown, result) {
            return Err(Error::Feature { feature, purpose, since, source });
        }
    }
    let array = create(layout(MapType::ProgArray, 4, 4, MapFlags::NONE), None).map_err(missing(
        "program arrays",
        "tail calls between programs",
        "4.2",
    ))?;
    check_subprog_tail_calls(array.as_fd(), &|program| load_instructions("probe", program))?;
    // Interface 0 does not exist: a kernel with tcx returns ENODEV, one without it EINVAL.
    let tcx = matches!(Link::tcx(&program, 0, Direction::Ingress), Err(e) if e.errno() == Some(libc::ENODEV));
    Ok(Features { tcx })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux before 6.0 on arm64, and any Linux with the JIT compiler off, rejects the program at load.
    #[test]
    fn a_kernel_without_calls_beside_tail_calls_is_refused_by_name() {
        let refusal = |_: &[u64]| {
            let log = "tail_calls are not allowed in programs with bpf-to-bpf calls".to_owned();
            (log, Err(io::Error::from_raw_os_error(libc::EINVAL)))
        };
        let array = std::fs::File::open("/dev/null").unwrap();
        let error = check_subprog_tail_calls(array.as_fd(), &refusal).unwrap_err().to_string();
        for part in ["tail calls", "net.core.bpf_jit_enable", "arm64 6.0", "Invalid argument"] {
            assert!(error.contains(part), "{part:?} is not in {error}");
        }
        let accepted = |_: &[u64]| (String::new(), Ok(std::fs::File::open("/dev/null").unwrap().into()));
        check_subprog_tail_calls(array.as_fd(), &accepted).unwrap();
    }

    /// Shows that the program of the check is valid, so that its rejection means a missing feature.
    #[test]
    fn the_running_kernel_accepts_the_program_of_the_check() {
        test_kit::require_root!();
        let layout = Layout {
            map_type: MapType::ProgArray,
            key_size: 4,
            value_size: 4,
            max_entries: 2,
            flags: MapFlags::NONE,
        };
        let array = RawMap::create(&MapSpec { name: "probe".into(), layout, inner: None }).unwrap();
        let seen = std::cell::RefCell::new(String::new());
        let result = check_subprog_tail_calls(array.as_fd(), &|program| {
            let (log, result) = load_instructions("probe", program);
            seen.replace(log.clone());
            (log, result)
        });
        assert!(result.is_ok(), "{}: {result:?}", seen.borrow());
    }

    #[test]
    fn instructions_are_encoded_as_the_kernel_reads_them() {
        assert_eq!(RETURN_0[0].to_ne_bytes(), [0xb7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(instruction(0x85, 0, 0, 155).to_ne_bytes(), [0x85, 0, 0, 0, 155, 0, 0, 0]);
    }
}
