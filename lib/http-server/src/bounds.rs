//! Limits of a server: connections, time for a request's head, buffers.

use std::fs;
use std::time::Duration;

/// The bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub(crate) connections: usize,
    pub(crate) header_timeout: Duration,
    pub(crate) title_case_headers: bool,
    pub(crate) buffer: Option<usize>,
}

/// Smallest buffer of a connection: hyper panics below 8 KiB.
const LEAST_BUFFER: usize = 8192;

impl Bounds {
    /// Returns bounds of `connections` at once, but no more than a quarter of the process's descriptors; a request's
    /// head must arrive within 60 s.
    pub fn new(connections: usize) -> Self {
        let descriptors = limit(&fs::read_to_string("/proc/self/limits").unwrap_or_default());
        let connections = connections.min(descriptors.map_or(usize::MAX, |limit| limit / 4)).max(1);
        Bounds {
            connections,
            header_timeout: Duration::from_secs(60),
            title_case_headers: false,
            buffer: None,
        }
    }

    /// Sets how long the head of a request may take to arrive.
    pub fn header_timeout(self, header_timeout: Duration) -> Self {
        Bounds { header_timeout, ..self }
    }

    /// Sets the size in bytes of a connection's read buffer and of its write buffer: a longer head gets 431. About 400
    /// kB if not set, at least 8 KiB.
    pub fn buffer(self, bytes: usize) -> Self {
        Bounds { buffer: Some(bytes.max(LEAST_BUFFER)), ..self }
    }

    /// Writes header names as `Content-Length`, not `content-length`.
    pub fn title_case_headers(self) -> Self {
        Bounds { title_case_headers: true, ..self }
    }
}

/// Returns the soft limit of descriptors from the text of `/proc/self/limits`; `None` if there is no limit.
fn limit(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_soft_one() {
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024        4096    files\n";
        assert_eq!(limit(limits), Some(1024));
        assert_eq!(limit("Max open files  unlimited  unlimited  files\n"), None);
        assert_eq!(limit(""), None);
        assert!((1..=7).contains(&Bounds::new(7).connections));
    }
}
