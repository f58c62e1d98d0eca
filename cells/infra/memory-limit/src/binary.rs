//! The mapped pages of the program's own file.
#![expect(unsafe_code, reason = "page tables have no safe interface")]

use std::fs;
use std::io;
use std::ops::Range;

/// Unmaps code and constants of the program, and marks their pages as cold: a start runs much code that is not needed
/// again, and the kernel maps whole ranges around each page that is touched. A page that is needed is mapped again by a
/// fault that needs no I/O while the page is in the page cache. From there the kernel takes cold pages first, and a
/// kubelet does not count them as the container's working set. Returns the bytes that were mapped.
///
/// Takes a millisecond. Mappings with private pages are left alone: they have relocated data, or the breakpoints of a
/// debugger.
pub fn unmap_binary() -> io::Result<usize> {
    let program = fs::read_link("/proc/self/exe")?;
    let mappings = clean_mappings(&fs::read_to_string("/proc/self/smaps")?, &program.to_string_lossy());
    for Mapping { addresses, .. } in &mappings {
        let start = std::ptr::without_provenance_mut(addresses.start);
        // JUSTIFICATION: no safe call releases mapped pages of a file.
        // SAFETY: a file of a running program cannot be written, and the mapping is never writable and has no page of
        // its own, so each page is read again with the same content. Mappings of the program's file last as long as
        // the process.
        unsafe {
            // Not before Linux 5.4; without it the pages are only unmapped.
            libc::madvise(start, addresses.len(), libc::MADV_COLD);
            if libc::madvise(start, addresses.len(), libc::MADV_DONTNEED) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(mappings.iter().map(|mapping| mapping.resident).sum())
}

/// A mapping of which each page is the file's.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    addresses: Range<usize>,
    /// Bytes that are mapped.
    resident: usize,
}

/// Returns the mappings of a file, from the text of `/proc/PID/smaps`, that are not writable and have no private pages.
fn clean_mappings(smaps: &str, file: &str) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let mut current: Option<Mapping> = None;
    for line in smaps.lines() {
        let kilobytes = |key| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse::<usize>().ok();
        if let Some(resident) = kilobytes("Rss:") {
            current = current.map(|mapping| Mapping { resident: resident << 10, ..mapping });
        } else if let Some(private) = kilobytes("Anonymous:") {
            mappings.extend(current.take().filter(|_| private == 0));
        } else if let Some(addresses) = addresses(line, file) {
            current = Some(Mapping { addresses, resident: 0 });
        } else if !line.split(' ').next().is_some_and(|word| word.ends_with(':')) {
            // The head of another mapping: a kernel that reports no private pages leaves `current` unused.
            current = None;
        }
    }
    mappings
}

/// Returns the addresses of a mapping's first line, if it is of this file and not writable.
fn addresses(line: &str, file: &str) -> Option<Range<usize>> {
    let (head, path) = line.split_once('/')?;
    let mut words = head.split_ascii_whitespace();
    let (addresses, permissions) = (words.next()?, words.next()?);
    if file.strip_prefix('/') != Some(path) || permissions.contains('w') {
        return None;
    }
    let (start, end) = addresses.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
5000-7000 r--p 00000000 00:2a 17    /bin/agent\nSize: 8 kB\nRss: 4 kB\nAnonymous: 0 kB\nVmFlags: rd mr\n\
7000-9000 r-xp 00002000 00:2a 17    /bin/agent\nRss: 8 kB\nAnonymous: 4 kB\n\
9000-b000 r--p 00004000 00:2a 17    /bin/agent\nRss: 8 kB\n\
b000-c000 rw-p 00006000 00:2a 17    /bin/agent\nRss: 4 kB\nAnonymous: 0 kB\n\
c000-d000 rw-p 00000000 00:00 0     [heap]\nRss: 4 kB\nAnonymous: 0 kB\n\
d000-e000 r-xp 00000000 00:2a 18    /lib/bin/agent\nRss: 4 kB\nAnonymous: 0 kB\n\
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\nAnonymous: 0 kB\n";

    #[test]
    fn only_unchanged_pages_of_the_program_are_unmapped() {
        let expected = [Mapping { addresses: 0x5000..0x7000, resident: 4 << 10 }];
        assert_eq!(clean_mappings(SMAPS, "/bin/agent"), expected);
        assert_eq!(clean_mappings(SMAPS, "/bin/other"), []);
    }

    #[test]
    fn code_and_constants_are_unmapped_and_read_again() {
        let constant = std::hint::black_box(SMAPS);
        let before = unmap_binary().unwrap();
        let faulted = unmap_binary().unwrap();
        assert!(faulted > 0 && faulted < before, "{before} bytes were mapped, then {faulted}");
        assert!(constant.ends_with("[vsyscall]\nAnonymous: 0 kB\n"));
    }
}
