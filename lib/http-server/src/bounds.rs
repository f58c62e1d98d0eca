//! How many connections, and how long a request may take to arrive.

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

/// The least that a connection may have for what it reads and writes.
const LEAST_BUFFER: usize = 8192;

impl Bounds {
    /// At most so many connections at once, and no more than a quarter of the process's descriptors; a request's head
    /// arrives within 60 s.
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

    /// How long the head of a request may take.
    pub fn header_timeout(self, header_timeout: Duration) -> Self {
        Bounds { header_timeout, ..self }
    }

    /// How many bytes a connection may take for what it reads, and for what it writes: a longer head gets 431. About
    /// 400 kB if not set, at least 8 kB.
    pub fn buffer(self, bytes: usize) -> Self {
        Bounds { buffer: Some(bytes.max(LEAST_BUFFER)), ..self }
    }

    /// Writes `Content-Length`, not `content-length`.
    pub fn title_case_headers(self) -> Self {
        Bounds { title_case_headers: true, ..self }
    }
}

/// The soft limit of descriptors in a file such as `/proc/self/limits`; none if there is no limit.
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
