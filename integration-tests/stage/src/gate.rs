//! The way to the API server: a proxy that tests can disturb.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder};
use std::time::Duration;

use anyhow::Result;
use test_kit::Keeper;

use crate::User;
use crate::users::Users;

/// A TCP listener in the namespace of the thread that made it, in front of the API server. Dropping it ends its connections.
#[derive(Debug)]
pub struct Gate {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    users: Arc<Users>,
    files: PathBuf,
}

/// The handling of bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Held,
    Closed,
}

#[derive(Debug)]
struct Shared {
    traffic: Mutex<Traffic>,
    changed: Condvar,
}

#[derive(Debug)]
struct Traffic {
    state: State,
    delay: Duration,
    accepted: u64,
    /// Number of the connection, the client's end, the server's end.
    connections: Vec<(u64, TcpStream, TcpStream)>,
}

impl Shared {
    fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        self.traffic().state = state;
        self.changed.notify_all();
    }

    /// Waits until a piece of a stream may go on; `false` if it never may.
    fn pass(&self) -> bool {
        let held = |traffic: &mut Traffic| traffic.state == State::Held;
        let traffic = self.changed.wait_while(self.traffic(), held).unwrap_or_else(PoisonError::into_inner);
        let (open, delay) = (traffic.state == State::Open, traffic.delay);
        drop(traffic);
        thread::sleep(delay);
        open
    }

    fn cut(&self) -> usize {
        let connections = std::mem::take(&mut self.traffic().connections);
        for (_, client, server) in &connections {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
        connections.len()
    }
}

impl Gate {
    /// Listens in the calling thread's namespace, connects to `server` in the keeper's.
    /// Its files have names that begin with `files`.
    pub(crate) fn new(
        keeper: &Keeper,
        server: SocketAddr,
        users: Arc<Users>,
        files: PathBuf,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let traffic =
            Traffic { state: State::Open, delay: Duration::ZERO, accepted: 0, connections: Vec::new() };
        let shared = Arc::new(Shared { traffic: Mutex::new(traffic), changed: Condvar::new() });
        let (theirs, state) = (listener.try_clone()?, shared.clone());
        keeper.run(move || {
            Builder::new().name("gate".to_owned()).spawn(move || accept(&theirs, server, &state))
        })?;
        Ok(Self { listener, address, shared, users, files })
    }

    /// Where it listens; only in the namespace of the thread that has made it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The API server's URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// A kubeconfig file by which `user` comes through this gate. Token and certificate are files of their own.
    pub fn kubeconfig(&self, user: User) -> Result<PathBuf> {
        let mut path = self.files.clone().into_os_string();
        path.push(format!("-{user:?}.kubeconfig").to_lowercase());
        let path = PathBuf::from(path);
        self.users.kubeconfig(user, &self.url(), &path)?;
        Ok(path)
    }

    /// Ends all connections; new ones pass. How many there were.
    pub fn cut(&self) -> usize {
        self.shared.cut()
    }

    /// Ends all connections, and all new ones at once, until it is opened.
    pub fn close(&self) {
        self.shared.set(State::Closed);
        self.shared.cut();
    }

    /// Lets no byte pass in either direction, without ending anything, until it is opened: what a broken network does.
    pub fn hold(&self) {
        self.shared.set(State::Held);
    }

    /// Lets everything pass again, also what was held.
    pub fn open(&self) {
        self.shared.set(State::Open);
    }

    /// Holds each piece of a stream (what one read gives) for so long.
    pub fn delay(&self, delay: Duration) {
        self.shared.traffic().delay = delay;
    }

    /// Connections that are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.traffic().connections.len()
    }

    /// Connections that clients have made so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.traffic().accepted
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.close();
        // Wakes the thread that accepts; the standard library can shut down streams only.
        if let Ok(listener) = self.listener.try_clone() {
            let _ = TcpStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, server: SocketAddr, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        let number = {
            let mut traffic = shared.traffic();
            traffic.accepted += 1;
            traffic.accepted
        };
        let state = shared.clone();
        // A connection that cannot be served ends by the drop of its stream.
        let _ = Builder::new()
            .name(format!("gate-{number}"))
            .spawn(move || forward(number, client, server, &state));
    }
}

/// Serves one connection until both directions have ended.
fn forward(number: u64, client: TcpStream, server: SocketAddr, shared: &Arc<Shared>) -> io::Result<()> {
    if !shared.pass() {
        return Ok(());
    }
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    {
        let mut traffic = shared.traffic();
        if traffic.state == State::Closed {
            return Ok(());
        }
        traffic.connections.push((number, client.try_clone()?, server.try_clone()?));
    }
    thread::scope(|scope| {
        let there = || copy(&client, &server, shared);
        let there = Builder::new().name(format!("gate-{number}-to")).spawn_scoped(scope, there);
        copy(&server, &client, shared);
        // Without a thread for the other direction nothing would ever end the connection.
        if there.is_err() {
            let _ = client.shutdown(Shutdown::Both);
        }
    });
    shared.traffic().connections.retain(|(other, ..)| *other != number);
    Ok(())
}

/// Copies one direction, and ends it where it has ended.
fn copy(mut from: &TcpStream, mut to: &TcpStream, shared: &Shared) {
    let mut buffer = vec![0; 16 * 1024];
    let ended = loop {
        match from.read(&mut buffer) {
            Ok(0) => break Shutdown::Write,
            Ok(length) if shared.pass() && to.write_all(&buffer[..length]).is_ok() => {}
            _ => break Shutdown::Both,
        }
    };
    let _ = to.shutdown(ended);
    if ended == Shutdown::Both {
        let _ = from.shutdown(ended);
    }
}
