//! A TCP connection that carries numbers, to check whether it survives.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::NetNs;

const INTERVAL: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection that sends a number every millisecond.
#[derive(Debug)]
pub struct TcpFlow {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    sender: JoinHandle<(u64, Option<String>)>,
    receiver: JoinHandle<(Duration, Option<String>)>,
}

/// The outcome of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpReport {
    /// Numbers written.
    pub sent: u64,
    /// Numbers read, in order.
    pub received: u64,
    /// The longest time between two numbers.
    pub longest_pause: Duration,
    /// The reason for a premature end of the connection.
    pub error: Option<String>,
}

impl TcpReport {
    /// Whether all numbers arrived on the one connection.
    #[must_use]
    pub fn is_perfect(&self) -> bool {
        self.sent > 0 && self.sent == self.received && self.error.is_none()
    }
}

impl TcpFlow {
    /// Connects from `from` to the address `to_ip` of `to` and starts sending.
    pub fn start(from: &NetNs, to: &NetNs, to_ip: IpAddr) -> io::Result<Self> {
        Self::through(from, to, SocketAddr::new(to_ip, 0), None)
    }

    /// Connects from `from` to a service's address, accepted at one of its backends in the namespace `to`; without a
    /// service the connection goes directly to the accepting end.
    pub fn through(
        from: &NetNs,
        to: &NetNs,
        backend: SocketAddr,
        service: Option<SocketAddr>,
    ) -> io::Result<Self> {
        let listener = to.run(|| TcpListener::bind(backend))?;
        let target = service.map_or_else(|| listener.local_addr(), Ok)?;
        let client = from.run(|| TcpStream::connect_timeout(&target, PATIENCE))?;
        let (server, _) = listener.accept()?;
        client.set_nodelay(true)?;
        client.set_write_timeout(Some(PATIENCE))?;
        server.set_read_timeout(Some(PATIENCE))?;

        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicU64::new(0));
        let sender = {
            let stop = Arc::clone(&stop);
            let builder = thread::Builder::new().name("tcp-sender".to_owned());
            builder.spawn(move || send(client, &stop))?
        };
        let receiver = {
            let received = Arc::clone(&received);
            let builder = thread::Builder::new().name("tcp-receiver".to_owned());
            builder.spawn(move || receive(server, &received))?
        };
        Ok(Self { stop, received, sender, receiver })
    }

    /// Returns the count of numbers received so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Closes the connection gracefully and returns the counts.
    ///
    /// # Panics
    /// If one of its threads has panicked.
    #[must_use]
    pub fn stop(self) -> TcpReport {
        self.stop.store(true, Ordering::Relaxed);
        let (sent, send_error) = self.sender.join().expect("the sender does not panic");
        let (longest_pause, error) = self.receiver.join().expect("the receiver does not panic");
        TcpReport {
            sent,
            received: self.received.load(Ordering::Relaxed),
            longest_pause,
            error: send_error.or(error),
        }
    }
}

fn send(mut stream: TcpStream, stop: &AtomicBool) -> (u64, Option<String>) {
    let mut next = Instant::now();
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = stream.write_all(&number.to_be_bytes()) {
            return (number, Some(format!("write: {error}")));
        }
        number += 1;
        next += INTERVAL;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let ended = stream.shutdown(Shutdown::Write);
    (number, ended.err().map(|e| format!("shutdown: {e}")))
}

fn receive(mut stream: TcpStream, count: &AtomicU64) -> (Duration, Option<String>) {
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    let mut buffer = [0u8; 8];
    loop {
        match stream.read_exact(&mut buffer) {
            Ok(()) => {
                let now = Instant::now();
                longest = longest.max(now - last);
                last = now;
                let expected = count.load(Ordering::Relaxed);
                let number = u64::from_be_bytes(buffer);
                if number != expected {
                    return (longest, Some(format!("read {number}, expected {expected}")));
                }
                count.store(expected + 1, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return (longest, None),
            Err(error) => return (longest, Some(format!("read: {error}"))),
        }
    }
}
