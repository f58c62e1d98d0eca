//! The subset of HTTP/1.1 that the agent's API uses: one request at a time, bodies with a length or in chunks.

use crate::Address;
use crate::lines::Lines;
use serde::Deserialize;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Timeout of an answer, which may wait for a rate limit (60 s at the agent) and the regeneration of an endpoint.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum size of a body in bytes: larger than any answer of the API; bounds the memory that a broken peer can cost.
const MAX_BODY: usize = 64 << 20;

/// An open connection to the agent; carries one request after the other.
pub struct Connection {
    stream: Wire,
}

/// The bytes from the agent.
pub(crate) type Wire = BufReader<Box<dyn Stream>>;

/// The transport of a connection.
pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// Status and body of an answer.
#[derive(Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The body, whole.
    pub body: Vec<u8>,
    /// Whether the connection can carry another request.
    pub keep_alive: bool,
}

impl Response {
    /// Returns the status and the agent's error text of a failed request: a JSON string from handlers, an object with a
    /// message from the framework.
    pub fn words(&self) -> String {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Words {
            Text(String),
            Framework { message: String },
        }
        let words = match serde_json::from_slice(&self.body) {
            Ok(Words::Text(text) | Words::Framework { message: text }) => text,
            Err(_) => String::from_utf8_lossy(&self.body).trim().to_owned(),
        };
        if words.is_empty() {
            format!("status {}", self.status)
        } else {
            format!("status {}: {words}", self.status)
        }
    }
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Errors of the socket, for instance when no agent is listening.
    pub fn open(address: &Address) -> io::Result<Self> {
        Self::open_with_timeout(address, ANSWER_TIMEOUT)
    }

    /// Connects; each read of an answer and each write of a request ends after `timeout`.
    ///
    /// # Errors
    /// As [`open`](Self::open), and a timeout of zero.
    pub fn open_with_timeout(address: &Address, timeout: Duration) -> io::Result<Self> {
        let stream: Box<dyn Stream> = match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                Box::new(stream)
            }
            Address::Tcp(host) => {
                // No host names: the resolver alone would be a tenth of the static CNI plugin's size.
                let address: SocketAddr = host
                    .parse()
                    .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "want tcp://IP:PORT"))?;
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                Box::new(stream)
            }
        };
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a request with an optional JSON body and reads the answer. `path` begins with `/v1`.
    ///
    /// # Errors
    /// Errors of the socket, and `InvalidData` for a response that is not HTTP.
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> io::Result<Response> {
        self.send(method, path, headers, body)?;
        read_response(&mut self.stream)
    }

    /// Sends a request as [`call`](Self::call) does; returns the answer to be read line by line as it arrives.
    ///
    /// # Errors
    /// The errors of [`call`](Self::call).
    pub fn lines(mut self, method: &str, path: &str, body: Option<&[u8]>) -> io::Result<Lines> {
        self.send(method, path, &[], body)?;
        let Head { status, framing, .. } = read_head(&mut self.stream)?;
        Ok(Lines::new(status, framing, self.stream))
    }

    fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> io::Result<()> {
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = body {
            request += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        request += "\r\n";
        let mut bytes = request.into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        self.stream.get_mut().write_all(&bytes)
    }
}

/// The head of a message.
struct Head {
    status: u16,
    framing: Framing,
    keep_alive: bool,
}

/// The framing of a body, which determines its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Remaining bytes of the body.
    Length(u64),
    /// Remaining bytes of the current chunk.
    Chunks { left: u64 },
    /// It ends with the connection.
    UntilClosed,
}

fn read_head(stream: &mut impl BufRead) -> io::Result<Head> {
    let line = read_line(stream)?;
    let status = line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| invalid(&format!("no HTTP status in {line:?}")))?;
    let mut length = None;
    let mut chunked = false;
    let mut keep_alive = line.starts_with("HTTP/1.1");
    loop {
        let line = read_line(stream)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| invalid(&format!("no header in {line:?}")))?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                length = Some(value.parse().map_err(|_| invalid(&format!("content length {value:?}")))?);
            }
            "transfer-encoding" => chunked = value.eq_ignore_ascii_case("chunked"),
            "connection" => keep_alive &= !value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    let framing = match (status, length) {
        (204 | 304, _) => Framing::Length(0),
        _ if chunked => Framing::Chunks { left: 0 },
        (_, Some(length)) => Framing::Length(length),
        _ => Framing::UntilClosed,
    };
    keep_alive &= framing != Framing::UntilClosed;
    Ok(Head { status, framing, keep_alive })
}

fn read_response(stream: &mut impl BufRead) -> io::Result<Response> {
    let Head { status, framing, keep_alive } = read_head(stream)?;
    let body = match framing {
        Framing::Chunks { .. } => read_chunks(stream)?,
        Framing::Length(length) => read_exactly(stream, usize::try_from(length).unwrap_or(usize::MAX))?,
        Framing::UntilClosed => {
            let mut body = Vec::new();
            stream.take(MAX_BODY as u64).read_to_end(&mut body)?;
            body
        }
    };
    Ok(Response { status, body, keep_alive })
}

fn read_chunks(stream: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = chunk_size(stream)?;
        if size == 0 {
            end_of_chunks(stream)?;
            return Ok(body);
        }
        if body.len().saturating_add(size) > MAX_BODY {
            return Err(invalid("body too large"));
        }
        body.extend(read_exactly(stream, size)?);
        end_of_line(stream)?;
    }
}

/// Reads the line before a chunk; returns its size, 0 for the last one.
pub(crate) fn chunk_size(stream: &mut impl BufRead) -> io::Result<usize> {
    let line = read_line(stream)?;
    let size = line.split(';').next().unwrap_or_default().trim();
    usize::from_str_radix(size, 16).map_err(|_| invalid(&format!("chunk size {line:?}")))
}

/// Reads the trailer after the last chunk.
pub(crate) fn end_of_chunks(stream: &mut impl BufRead) -> io::Result<()> {
    while !read_line(stream)?.is_empty() {}
    Ok(())
}

/// Reads the rest of a line.
pub(crate) fn end_of_line(stream: &mut impl BufRead) -> io::Result<()> {
    read_line(stream).map(drop)
}

fn read_exactly(stream: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    if length > MAX_BODY {
        return Err(invalid("body too large"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    const MAX_LINE: u64 = 64 << 10;
    let mut line = Vec::new();
    if stream.take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let text = String::from_utf8(line).map_err(|_| invalid("header is not UTF-8"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("bad HTTP answer: {what}"))
}

/// Percent-encodes a query value: all bytes but letters, digits and `-_.~`.
pub fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped += &format!("%{byte:02X}");
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(text: &str) -> io::Result<Response> {
        read_response(&mut text.as_bytes())
    }

    #[test]
    fn body_with_length() {
        let answer = response("HTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\n{}\nrest").unwrap();
        assert_eq!(
            (answer.status, answer.body.as_slice(), answer.keep_alive),
            (201, b"{}\n".as_slice(), true)
        );
    }

    #[test]
    fn body_in_chunks() {
        let text = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\nA;x=y\r\n0123456789\r\n0\r\nT: v\r\n\r\n";
        assert_eq!(response(text).unwrap().body, b"abcd0123456789");
    }

    /// Reads the lines of an answer up to its end or its first error.
    fn lines(text: &'static str) -> (Vec<String>, Option<io::ErrorKind>) {
        struct Said(io::Cursor<&'static [u8]>);
        impl Read for Said {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                // Short reads, as from a socket.
                let most = buf.len().min(5);
                self.0.read(&mut buf[..most])
            }
        }
        impl Write for Said {
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                Ok(buf.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let stream: Box<dyn Stream> = Box::new(Said(io::Cursor::new(text.as_bytes())));
        let mut answer = Connection { stream: BufReader::new(stream) }.lines("GET", "/", None).unwrap();
        let mut lines = Vec::new();
        loop {
            match answer.next_line() {
                Ok(Some(line)) => lines.push(String::from_utf8(line).unwrap()),
                Ok(None) => return (lines, None),
                Err(error) => return (lines, Some(error.kind())),
            }
        }
    }

    #[test]
    fn lines_are_read_in_each_framing_and_an_early_end_is_an_error() {
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let cut = Some(io::ErrorKind::UnexpectedEof);
        for (rest, expected, error) in [
            ("3\r\na\nb\r\n2;x\r\nc\n\r\n1\r\nd\r\n0\r\n\r\n", vec!["a", "bc", "d"], None),
            ("2\r\na\n\r\n", vec!["a"], cut),
            ("9\r\na\nb", vec!["a"], cut),
            ("2\r\na\n\r\nx\r\n", vec!["a"], Some(io::ErrorKind::InvalidData)),
            ("0\r\n\r\n", vec![], None),
        ] {
            let text: &'static str = String::leak(format!("{chunks}{rest}"));
            assert_eq!(lines(text), (expected.into_iter().map(str::to_owned).collect(), error), "{rest:?}");
        }
        assert_eq!(lines("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na\nbcd").0, ["a", "bc"]);
        assert_eq!(lines("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na").1, cut);
        assert_eq!(lines("HTTP/1.0 200 OK\r\n\r\na\n\nb"), (["a", "", "b"].map(str::to_owned).into(), None));
    }

    #[test]
    fn bodies_of_old_and_closing_peers() {
        let answer = response("HTTP/1.0 404 Not Found\r\n\r\ngone").unwrap();
        assert_eq!((answer.body.as_slice(), answer.keep_alive), (b"gone".as_slice(), false));
        let answer = response("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").unwrap();
        assert_eq!((answer.body.len(), answer.keep_alive), (0, false));
    }

    #[test]
    fn broken_answers_are_errors() {
        for text in [
            "",
            "SSH-2.0-x\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        ] {
            assert!(response(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn words_of_the_agent() {
        let words = |status, body: &str| Response { status, body: body.into(), keep_alive: true }.words();
        assert_eq!(words(500, "\"no\"\n"), "status 500: no");
        assert_eq!(
            words(404, r#"{"code":404,"message":"path x was not found"}"#),
            "status 404: path x was not found"
        );
        assert_eq!(words(404, ""), "status 404");
        assert_eq!(words(502, "<html>"), "status 502: <html>");
    }

    #[test]
    fn escapes() {
        assert_eq!(escape("default/p 1"), "default%2Fp%201");
    }
}
