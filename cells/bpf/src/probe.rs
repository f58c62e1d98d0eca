//! What the kernel must have for the datapath, asked at start, and what it may have.

use std::io;

use crate::error::{Error, Result};
use crate::link::{Direction, Link};
use crate::object::load_instructions;
use crate::prog::Program;
use crate::raw_map::RawMap;
use crate::spec::{Layout, MapFlags, MapSpec, MapType};

/// Optional features found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Programs attach by tcx links (Linux 6.6); else by tc filters.
    pub tcx: bool,
}

/// Helpers that the datapath calls: number, name, purpose, first release.
const HELPERS: [(u64, &str, &str, &str); 6] = [
    (152, "the helper bpf_redirect_neigh", "sending packets to other nodes", "5.10"),
    (155, "the helper bpf_redirect_peer", "delivering packets into a pod's namespace", "5.10"),
    (43, "the helper bpf_skb_change_head", "delivering packets to devices without Ethernet", "4.10"),
    (38, "the helper bpf_skb_change_tail", "answering packets with ICMP errors", "4.9"),
    (69, "the helper bpf_fib_lookup", "choosing routes in programs", "4.18"),
    (25, "the helper bpf_perf_event_output", "telling monitors about packets", "4.4"),
];

pub(crate) const fn instruction(code: u8, dst: u8, src: u8, imm: i32) -> u64 {
    u64::from_le_bytes({
        let i = imm.to_le_bytes();
        [code, dst | src << 4, 0, 0, i[0], i[1], i[2], i[3]]
    })
}

const RETURN_0: [u64; 2] = [instruction(0xb7, 0, 0, 0), instruction(0x95, 0, 0, 0)];

/// Asks the kernel for everything the datapath needs. The error names the first thing that is missing, what it is for
/// and since when Linux has it. A few milliseconds; leaves nothing behind.
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
        "the bpf(2) system call (CONFIG_BPF_SYSCALL), or this process the right to use it (root, or CAP_BPF and CAP_NET_ADMIN)",
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
        // A known helper is refused too, but for its missing arguments.
        let unknown = ["invalid func", "unknown func", "cannot use helper"].iter().any(|w| log.contains(w));
        if let (true, Err(source)) = (unknown, result) {
            return Err(Error::Feature { feature, purpose, since, source });
        }
    }
    // Interface 0 does not exist: a kernel with tcx says ENODEV, one without EINVAL.
    let tcx = matches!(Link::tcx(&program, 0, Direction::Ingress), Err(e) if e.errno() == Some(libc::ENODEV));
    Ok(Features { tcx })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_encoded_as_the_kernel_reads_them() {
        assert_eq!(RETURN_0[0].to_ne_bytes(), [0xb7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(instruction(0x85, 0, 0, 155).to_ne_bytes(), [0x85, 0, 0, 0, 155, 0, 0, 0]);
    }
}
