//! A destination that is no regular file: a pipe, a terminal, a socket. Its reader may stop at any time, and the agent does
//! not wait for it.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::net::{SendFlags, send};

use crate::file::Unwritten;

/// How long a write waits for a reader that has kept up so far. One that has not is not waited for.
const WAIT_LIMIT: Duration = Duration::from_millis(100);
/// Bytes that a pipe takes at once or not at all (`PIPE_BUF`).
const CHUNK: usize = 4096;

/// An open stream.
#[derive(Debug)]
pub(crate) struct Stream {
    file: File,
    is_socket: bool,
    /// The end of a line of which the reader has the begin.
    rest: Vec<u8>,
    /// Whether the last write could not be completed.
    is_stuck: bool,
}

impl Stream {
    /// Opens a path.
    ///
    /// # Errors
    /// It cannot be opened; a pipe has no reader.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::new(nonblocking(path)?, false))
    }

    /// Returns the stream of the standard output.
    ///
    /// # Errors
    /// It is closed.
    pub(crate) fn stdout() -> io::Result<Self> {
        Self::of(io::stdout().as_fd().try_clone_to_owned()?)
    }

    /// Returns the stream of a descriptor that others may use as well.
    fn of(fd: OwnedFd) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let file = File::from(fd);
        let kind = file.metadata()?.file_type();
        // Only a description of its own may be non-blocking. It has another offset, which pipes and terminals have not.
        let own = (kind.is_fifo() || kind.is_char_device()).then(|| nonblocking(Path::new(&path)));
        let file = own.and_then(Result::ok).unwrap_or(file);
        Ok(Self::new(file, kind.is_socket()))
    }

    fn new(file: File, is_socket: bool) -> Self {
        Self { file, is_socket, rest: Vec::new(), is_stuck: false }
    }

    /// Writes lines. Those that the reader does not take in time are gone, but no line is gone in part.
    ///
    /// # Errors
    /// Lines are gone.
    pub(crate) fn write(&mut self, lines: &[String]) -> Result<(), Unwritten> {
        let wait = if self.is_stuck { Duration::ZERO } else { WAIT_LIMIT };
        let deadline = Instant::now() + wait;
        let lost = |count: usize, error| Unwritten { lines: count as u64, error };
        let rest = std::mem::take(&mut self.rest);
        self.put(rest, deadline).map_err(|error| lost(lines.len(), error))?;
        for (written, line) in lines.iter().enumerate() {
            let text = format!("{line}\n").into_bytes();
            let len = text.len();
            if let Err(error) = self.put(text, deadline) {
                // The reader gets the rest of a line that it has the begin of.
                let is_begun = !self.rest.is_empty() && self.rest.len() < len;
                if !is_begun {
                    self.rest.clear();
                }
                return Err(lost(lines.len() - written - usize::from(is_begun), error));
            }
        }
        self.is_stuck = false;
        Ok(())
    }

    /// Writes bytes until the deadline; what is left stays in `rest`.
    fn put(&mut self, bytes: Vec<u8>, deadline: Instant) -> io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            let chunk = &bytes[at..bytes.len().min(at + CHUNK)];
            match self.put_chunk(chunk, deadline) {
                Ok(count) => at += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => {
                    self.is_stuck = true;
                    self.rest = bytes[at..].to_vec();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn put_chunk(&mut self, chunk: &[u8], deadline: Instant) -> io::Result<usize> {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], Some(&left))? == 0 {
            return Err(io::Error::new(ErrorKind::TimedOut, "the reader of the exporter does not read"));
        }
        match self.is_socket {
            true => Ok(send(&self.file, chunk, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?),
            false => self.file.write(chunk),
        }
    }
}

fn nonblocking(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    OpenOptions::new().write(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Checks that a full pipe costs whole lines and little time, and that it goes on when it is read.
    fn check(mut stream: Stream, mut reader: impl io::Read) {
        let long = "x".repeat(10_000);
        let lines: Vec<String> = (0..20).map(|number| format!("{number} {long}")).collect();
        let start = Instant::now();
        let unwritten = stream.write(&lines).unwrap_err();
        assert_eq!(unwritten.error.kind(), ErrorKind::TimedOut);
        for _ in 0..1000 {
            assert_eq!(stream.write(&lines[..1]).unwrap_err().lines, 1);
        }
        assert!(start.elapsed() < Duration::from_secs(5), "a reader that does not read is not waited for");
        let written = lines.len() - usize::try_from(unwritten.lines).unwrap();
        let mut text = String::new();
        let mut buffer = [0; 4096];
        let mut read = |text: &mut String| {
            let count = reader.read(&mut buffer).unwrap();
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        };
        // Of the last line the pipe may have the begin: then it has space for the rest.
        while text.lines().count() < written {
            read(&mut text);
        }
        stream.write(&["end".to_owned()]).unwrap();
        while !text.ends_with("end\n") {
            read(&mut text);
        }
        let mut expected = lines[..written].to_vec();
        expected.push("end".to_owned());
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_pipe_that_is_not_read_loses_whole_lines_and_is_not_waited_for() {
        let (reader, writer) = io::pipe().unwrap();
        check(Stream::of(writer.into()).unwrap(), reader);
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let stream = Stream::of(writer.into()).unwrap();
        assert!(stream.is_socket);
        // A small buffer, as a pipe has.
        rustix::net::sockopt::set_socket_send_buffer_size(&stream.file, 32 << 10).unwrap();
        check(stream, reader);
    }

    #[test]
    fn a_pipe_without_a_reader_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        Stream::open(&path).unwrap_err();
        let reader =
            OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&path);
        let mut reader = reader.unwrap();
        let mut stream = Stream::open(&path).unwrap();
        stream.write(&["a".to_owned()]).unwrap();
        let mut text = [0; 2];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"a\n");
        drop(reader);
        assert_eq!(stream.write(&["b".to_owned()]).unwrap_err().error.kind(), ErrorKind::BrokenPipe);
    }
}
