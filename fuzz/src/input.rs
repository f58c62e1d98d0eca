//! Inputs of several parts.

/// Cuts an input at lines that hold nothing but `~`; a part that is missing is empty. Readable inputs make a corpus that
/// can be written by hand.
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

/// The text of a part, wrong bytes replaced.
pub(crate) fn text(part: &[u8]) -> String {
    String::from_utf8_lossy(part).into_owned()
}
