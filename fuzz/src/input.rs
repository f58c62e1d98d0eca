//! Inputs with several parts, and a folder for those that are files.

use std::path::Path;

use tempfile::TempDir;

/// Splits an input at lines that contain only `~`; a missing part is empty. Readable inputs allow a hand-written
/// corpus.
pub(crate) fn parts<const N: usize>(data: &[u8]) -> [&[u8]; N] {
    let mut rest = data;
    std::array::from_fn(|at| {
        let end = if at + 1 == N { None } else { rest.windows(3).position(|three| three == b"\n~\n") };
        let part;
        (part, rest) = match end {
            Some(end) => (&rest[..end], &rest[end + 3..]),
            None => (rest, &[][..]),
        };
        part
    })
}

/// Returns the text of a part, with invalid bytes replaced.
pub(crate) fn text(part: &[u8]) -> String {
    String::from_utf8_lossy(part).into_owned()
}

/// Returns an empty folder for one input, in memory if the machine has a tmpfs.
pub(crate) fn scratch() -> TempDir {
    let shm = Path::new("/dev/shm");
    let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("apiary-fuzz-").tempdir_in(parent).unwrap()
}
