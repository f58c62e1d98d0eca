//! Answers that come line by line, some of them without an end.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use crate::http::{Framing, Wire, chunk_size, end_of_chunks, end_of_line, invalid};

/// No line of the agent is longer.
const MAX_LINE: u64 = 64 << 20;

/// The lines of an answer as they arrive. Dropped, it hangs up, which ends the answer at the agent, too.
pub struct Lines {
    /// The HTTP status.
    pub status: u16,
    body: BufReader<Body>,
}

impl Lines {
    pub(crate) fn new(status: u16, framing: Framing, wire: Wire) -> Self {
        Lines { status, body: BufReader::new(Body { wire, framing, inside: false }) }
    }

    /// Waits for the next line and gives it without its end; none behind the last.
    ///
    /// # Errors
    /// Those of the socket; `UnexpectedEof` if the agent hangs up before the end of its answer.
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

/// A body without what frames it.
struct Body {
    wire: Wire,
    framing: Framing,
    /// A chunk has begun, whose end of line is still to come.
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
