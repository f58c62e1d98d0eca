//! A server between the agent and the API server that spoils answers.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use cluster_stage::Stage;
use test_kit::{Process, wait_until};

/// The handling of a request: the client, and the complete answer of the real server when it is requested.
type Spoil = Arc<dyn Fn(&mut TcpStream, Real<'_>) -> io::Result<()> + Send + Sync>;

/// Plain HTTP/1.1, one request a connection. It passes everything on to the API server, as administrator, but requests
/// with certain words in their address, while there are corruptions to apply.
pub struct Spoiler {
    listener: TcpListener,
    shared: Arc<Shared>,
    _proxy: Process,
}

struct Shared {
    socket: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By a word of the address.
    spoils: Vec<(&'static str, Spoil)>,
    /// Clients, by the address that they asked for.
    clients: Vec<(String, TcpStream)>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer that the API server would give.
pub struct Real<'a> {
    socket: &'a Path,
    request: &'a str,
}

impl Real<'_> {
    /// The requested key.
    #[must_use]
    pub fn asked(&self) -> &str {
        self.request.lines().next().unwrap_or_default()
    }

    /// Its bytes as they come.
    pub fn stream(&self) -> io::Result<UnixStream> {
        let mut stream = UnixStream::connect(self.socket)?;
        stream.write_all(self.request.as_bytes())?;
        Ok(stream)
    }
}

impl fmt::Debug for Spoiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url())
    }
}

impl Spoiler {
    /// Listens in the calling thread's namespace. `folder`: where its socket may be.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn new(stage: &Stage, folder: &Path) -> Self {
        let socket = folder.join("api-server.sock");
        // Brings requests to the API server, over TLS and with credentials.
        let mut command = stage.kubectl_command(&["proxy", "--unix-socket", socket.to_str().unwrap()]);
        let proxy = Process::start(command.stdin(Stdio::null()).stdout(Stdio::null())).unwrap();
        wait_until("kubectl proxy", Duration::from_secs(120), || UnixStream::connect(&socket).is_ok());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let shared = Arc::new(Shared { socket, state: Mutex::default() });
        let (theirs, state) = (listener.try_clone().unwrap(), shared.clone());
        Builder::new().name("spoiler".to_owned()).spawn(move || accept(&theirs, &state)).unwrap();
        Self { listener, shared, _proxy: proxy }
    }

    /// Where it listens.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Answers requests with `word` in their address in this way from now on; cuts requests in flight.
    pub fn spoil(
        &self,
        word: &'static str,
        spoil: impl Fn(&mut TcpStream, Real<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) {
        let mut state = self.shared.state();
        state.spoils.retain(|(other, _)| *other != word);
        state.spoils.push((word, Arc::new(spoil)));
        cut(&mut state, word);
    }

    /// Passes everything on again.
    pub fn stop(&self) {
        let mut state = self.shared.state();
        for (word, _) in std::mem::take(&mut state.spoils) {
            cut(&mut state, word);
        }
    }
}

impl Drop for Spoiler {
    fn drop(&mut self) {
        cut(&mut self.shared.state(), "");
        if let Ok(listener) = self.listener.try_clone() {
            let _ = TcpStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
        }
    }
}

fn cut(state: &mut State, word: &str) {
    state.clients.retain(|(address, client)| {
        let cut = address.contains(word);
        if cut {
            let _ = client.shutdown(Shutdown::Both);
        }
        !cut
    });
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        let shared = shared.clone();
        // A client that cannot be served loses its connection.
        let _ = Builder::new().name("spoiler-client".to_owned()).spawn(move || serve(client, &shared));
    }
}

fn serve(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    let (head, body) = request(&mut client)?;
    let mut lines = head.lines();
    let first = lines.next().unwrap_or_default();
    let address = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let kept = lines.filter(|line| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        !line.is_empty() && name != "host" && name != "connection"
    });
    let kept: String = kept.map(|line| format!("{line}\r\n")).collect();
    let request = format!("{first}\r\nHost: localhost\r\nConnection: close\r\n{kept}\r\n{body}");
    let spoil = {
        let mut state = shared.state();
        state.clients.push((address.clone(), client.try_clone()?));
        state.spoils.iter().find(|(word, _)| address.contains(word)).cloned()
    };
    let real = Real { socket: &shared.socket, request: &request };
    let result = match spoil {
        Some((_, spoil)) => spoil(&mut client, real),
        None => io::copy(&mut real.stream()?, &mut client).map(drop),
    };
    let _ = client.shutdown(Shutdown::Both);
    let port = client.peer_addr().ok();
    shared.state().clients.retain(|(_, other)| other.peer_addr().ok() != port);
    result
}

/// Head and body of a request.
pub(crate) fn request(client: &mut impl Read) -> io::Result<(String, String)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or_default() {
                return Ok((head.to_owned(), body.to_owned()));
            }
        }
        match client.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => bytes.extend_from_slice(&buffer[..length]),
        }
    }
}
