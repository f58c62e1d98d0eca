//! Answers that are read line by line, possibly without an end.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use crate::http::{Framing, Wire, chunk_size, end_of_chunks, end_of_line, invalid};

/// Maximum size of a line in bytes; bounds the memory that a broken peer can cost.
const MAX_LINE: u64 = 64 << 20;

/// The lines of an answer as they arrive. Dropping it closes the connection, which ends the answer at the agent as
/// well.
pub struct Lines {
    /// The HTTP status.
    pub status: u16,
    body: BufReader<Body>,
}

impl Lines {
    pub(crate) fn new(status: u16, framing: Framing, wire: Wire) -> Self {
        Lines { status, body: BufReader::new(Body { wire, framing, inside: false }) }
    }

    /// Waits for the next line and returns it without its newline; `None` after the last.
    ///
    /// # Errors
    /// Errors of the socket; `UnexpectedEof` if the agent closes the connection before the end of its answer.
    pub fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let read = self.body.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if read as u64 == MAX_LINE {
            return Err(invalid("line too long"));
        }
        Ok((read > 0).then_some(line))
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("status", &self.status).finish_non_exhaustive()
    }
}

/// A body without its framing.
struct Body {
    wire: Wire,
    framing: Framing,
    /// Whether the reader is inside of a chunk: its final CRLF is not read yet.
    inside: bool,
}

impl Read for Body {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if let Framing::Chunks { left: 0 } = self.framing {
            if self.inside {
                end_of_line(&mut self.wire)?;
            }
            let size = chunk_size(&mut self.wire)?;
            self.inside = size > 0;
            self.framing = if size > 0 { Framing::Chunks { left: size as u64 } } else { Framing::Length(0) };
            if size == 0 {
                end_of_chunks(&mut self.wire)?;
            }
        }
        let left = match &mut self.framing {
            Framing::UntilClosed => return self.wire.read(buf),
            Framing::Length(0) => return Ok(0),
            Framing::Length(left) | Framing::Chunks { left } => left,
        };
        let most = buf.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        let read = self.wire.read(&mut buf[..most])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *left -= read as u64;
        Ok(read)
    }
}
